"""What people and front ends ask of the guard, checked and carried out: keep, end, report, answer a save request.

Not here: how it comes in (routes), what it does to a life (core.lifecycle).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from .core.deadline import Cause
from .core.reasons import Reason, because
from .extensions import Extensions, Kept
from .guard import Guard
from .notebooks import OldNonce, Saver, UnknownClient
from .presence import People
from .reach import parse_seen
from .reclaim import Reclaimer
from .record import iso
from .recovery import NoSuchCopy, RecoveryStore
from .save_answers import parse_documents
from .watched import Watched


class TooLate(Exception):
    """What was asked for would not help any more; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class Commands:
    """The doors of the guard; `routes` opens them."""

    def __init__(
        self,
        guard: Guard,
        people: People,
        saver: Saver,
        recovery: RecoveryStore,
        reclaimer: Reclaimer,
        extensions: Extensions,
    ) -> None:
        self.guard = guard
        self._people = people
        self._saver = saver
        self._recovery = recovery
        self.recovery_of = reclaimer.recovery_of
        self._extensions = extensions
        self.owner = extensions.owner

    async def keep(
        self, watched: Watched, span: timedelta, owner: str, note: str
    ) -> tuple[datetime, timedelta]:
        """Extend a kernel's time by `span` from now. Returns until when, and what is left of the total after it.

        Raises Refused over a limit, TooLate where it would not help, HistoryError when the ledger can't be read.
        """
        now = self.guard.clock()
        left = await self._extensions.check(_kept(watched), span, watched.policy, now)
        until = now.at + span
        if not self.guard.keep(watched, until, owner, note):
            by_policy = watched.life.cause is Cause.MAX_RUNTIME and not watched.life.ending
            raise TooLate(because("not_extendable" if by_policy else "shutting_down"))
        return watched.life.keep_until or until, left

    def end_keep(self, watched: Watched) -> None:
        """Take an extension back."""
        self.guard.end_keep(watched)

    def ask(self, watched: Watched, owner: str, save: bool) -> None:
        """End a kernel because a person wants it: the same road as by policy, in every mode."""
        self.guard.ask(watched, owner, save)

    def report(self, client_id: str, body: Mapping[str, Any]) -> None:
        """Take in what a page has open, whether somebody is there, and which warnings it showed. Raises BadReport, and
        changes nothing then. To see a warning is no input: it moves no deadline."""
        seen = parse_seen(body.get("warnings_seen", []))
        changed = self._people.report(
            client_id,
            body.get("documents", []),
            body.get("focused_kernel_id"),
            body.get("input_age_seconds"),
            self.guard.clock(),
            body.get("visible", True),
        )
        for one in seen:  # before an input of the same report, which may take the warning back
            watched = self.guard.state.watched.get(one.kernel_id)
            if watched is not None:
                self.guard.steps.seen(watched, one.given_at)
        self._people_changed(changed)

    def shows(self, client_id: str, kernel_id: str) -> bool:
        """Whether this page shows the warnings of a kernel: those that have it open do; where none has, all do."""
        holders = self._people.clients_of(kernel_id)
        return not holders or client_id in holders

    def is_hidden(self, client_id: str) -> bool:
        """Whether a page has said that nobody can see it."""
        return self._people.is_hidden(client_id)

    def gone(self, client_id: str) -> None:
        """A page says good-bye."""
        self._people_changed(self._people.gone(client_id))

    def saved(self, kernel_id: str, nonce: str, client_id: str, documents: object) -> None:
        """Take a front end's answer to a save request. Raises OldNonce, UnknownClient or BadAnswer."""
        self._saver.answer(nonce, client_id, parse_documents(documents), kernel_id)

    async def hand_over(self, kernel_id: str, nonce: object, client_id: str, path: str, data: bytes) -> str:
        """Keep a front end's copy of a document for which there is no place beside it. Returns the copy's id, to be
        named in the answer. Raises OldNonce and UnknownClient unless a save request asks for it, and RecoveryError."""
        request = next(
            (r for r in self._saver.pending if r.nonce == nonce and r.kernel_id == kernel_id), None
        )
        if request is None:
            raise OldNonce(str(nonce))
        if client_id not in request.clients or (client_id, path) not in request.copies:
            raise UnknownClient(client_id)
        return (await self._recovery.store(data, path, kernel_id, client_id)).id

    async def recovery_file(self, copy_id: str) -> tuple[bytes, str] | None:
        """The bytes and the name of a recovery copy; None when there is none of that id. Raises RecoveryError."""
        try:
            return await self._recovery.open(copy_id)
        except NoSuchCopy:
            return None

    def open_requests(self, client_id: str | None = None) -> list[dict[str, object]]:
        """The save requests that still take answers, for clients that poll: all, or those to one client."""
        return [
            request.to_wire(client_id)
            for request in self._saver.pending
            if client_id is None or client_id in request.clients
        ]

    def keep_alive_left(self, watched: Watched) -> timedelta:
        """What is left of the extensions for this kernel's notebook, as far as it was read."""
        return self._extensions.remaining_known(_kept(watched), watched.policy)

    def _people_changed(self, kernel_ids: Iterable[str]) -> None:
        """Input or an edit since a kernel's last look is activity now, not at the next round."""
        presence = self._people.for_kernels(self.guard.clock())
        for kernel_id in kernel_ids:
            watched = self.guard.state.watched.get(kernel_id)
            seen = presence.get(kernel_id)
            if watched is None:
                continue
            before = watched.presence.last_input
            if seen is not None:
                watched.presence = seen
            last = None if seen is None else seen.last_input
            if last is not None and (before is None or last > before) and last > watched.life.since:
                self.guard.touch(watched, because("present", at=iso(last.at)))
            self.guard.steps.on_change(watched)


def _kept(watched: Watched) -> Kept:
    return Kept(watched.kernel.kernel_id, watched.kernel.notebooks)
