"""The two things the guard does to a kernel: have what is open on it saved, and end it.

Ending: the kernel's tree is recorded first; it is interrupted if busy, shut down through Jupyter, and then it is
confirmed that its processes are gone and their GPU memory is back. Only processes of that record may be ended. Each
attempt stands in the journal, so that a server killed at any step leaves a trace, a tombstone and its recovery files.

Not here: whether and when (core.lifecycle), what front ends answer (notebooks), who may be signalled (processes).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from logging import Logger
from pathlib import Path
from typing import Any

from .core.deadline import Cause, Warning_
from .core.model import Attribution, Instant, Kernel, Link, ProcessKey, Sample, TelemetryState, Unknown, Usage
from .core.policy import Policy
from .core.reasons import Reason, because
from .history import History, HistoryError
from .kernels import KernelWatch
from .notebooks import SaveOutcome, Saver, SaveRequest
from .presence import People
from .processes import TreeRecord, record_tree
from .procfs import ProcFiles
from .reach import Reaches
from .record import Recorder, iso

#: How long a busy kernel may take to answer an interrupt; a hard kill amid a CUDA kernel can leave a GPU stuck.
INTERRUPT_SECONDS = 10.0
#: How long Jupyter's own shutdown may take (it allows 5 s by default and then kills).
SHUTDOWN_SECONDS = 60.0
#: How long processes may take to go by themselves, after SIGTERM and after SIGKILL, and the driver to drop them.
GONE_SECONDS, TERM_SECONDS, KILL_SECONDS, RELEASE_SECONDS = 5.0, 5.0, 5.0, 10.0
POLL_SECONDS, QUIET_SECONDS = 0.1, 0.5
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and why it is to be ended: what the journal and the tombstone start from."""

    kernel: Kernel
    policy: Policy
    cause: Cause
    reason: Reason
    warnings: tuple[Warning_, ...]
    reaches: Reaches  # of these warnings, as far as they have come by now
    owner: str | None = None

    def to_row(self) -> dict[str, Any]:
        """The tombstone as far as it is known before the end."""
        given = [w for w in self.warnings if w.given is not None and w.lead is not None]
        return {
            "kernel_id": self.kernel.kernel_id,
            "name": self.kernel.name,
            "notebooks": list(self.kernel.notebooks),
            "cause": self.cause.value,
            "reason": self.reason.to_wire(),
            "policy": self.policy.name,
            "owner": self.owner,
            "warnings": [
                {
                    "at": iso(w.given.at),
                    "lead_seconds": w.lead.total_seconds(),
                    **self.reaches.of(w).to_wire(),
                }
                for w in given
                if w.given is not None and w.lead is not None
            ],
            "saved": [],
            "unanswered": [],
            "lost": ["variables"],
            "survivors": 0,
            "memory_released_bytes": None,
            "problems": [],
        }


class Reclaimer:
    """Saves and ends kernels. `look` makes a fresh round (the app wires it); `on_request` tells front ends."""

    def __init__(
        self,
        watch: KernelWatch,
        saver: Saver,
        people: People,
        recorder: Recorder,
        log: Logger,
        clock: Callable[[], Instant],
    ) -> None:
        self._server = own_identity()
        self._watch = watch
        self._saver = saver
        self._people = people
        self._recorder = recorder
        self._log = log
        self._clock = clock
        self._outcomes: dict[str, SaveOutcome] = {}
        self._entries: dict[str, int] = {}
        self.seen: Callable[[], tuple[Sample, Attribution]] | None = None
        self.look: Callable[[], Awaitable[bool]] | None = None
        self.on_request: Callable[[SaveRequest], None] = lambda request: None

    # --- saving ---

    async def save(self, case: Case) -> tuple[str, Reason]:
        """Ask every front end that has a document of this kernel open, and verify what they answer. Returns the kind of
        `core.life.Saved` and the reason. If it is cancelled, the request takes no more answers."""
        kernel_id = case.kernel.kernel_id
        try:
            await self.journal(case, "saving")
        except HistoryError as error:
            return "failed", because("cannot_record", error=str(error))
        present = self._people.for_kernels(self._clock()).get(kernel_id)
        documents = () if present is None else present.open_documents
        request = await self._saver.open_request(kernel_id, documents, case.policy.save_timeout)
        try:
            if request.clients:
                self.on_request(request)
            outcome = _with_earlier(self._outcomes.get(kernel_id), await self._saver.wait(request.nonce))
        finally:
            self._saver.close(request.nonce)
        self._outcomes[kernel_id] = outcome
        kind = "recovered" if outcome.kind == "failed" and outcome.all_copied else outcome.kind
        return kind, outcome.reason or case.reason

    def recovery_of(self, kernel_id: str) -> list[dict[str, Any]]:
        """The recovery copies of the last save of this kernel: `{path, recovery_path, recovery_id}`."""
        outcome = self._outcomes.get(kernel_id)
        return [
            {"path": d.path, "recovery_path": d.recovery_path, "recovery_id": d.recovery_id}
            for d in (() if outcome is None else outcome.documents)
            if d.copied
        ]

    async def forget(self, kernel_id: str, outcome: str, keep: bool = False) -> None:
        """Close what stands open for a kernel that lives on (`cancelled`, `postponed`) or ended otherwise (`gone`).
        `keep`: what was saved and copied is still shown."""
        if not keep:
            self._outcomes.pop(kernel_id, None)
        entry = self._entries.pop(kernel_id, None)
        if entry is not None:
            try:
                await self._recorder.ask(lambda history: history.close_journal(entry, outcome))
            except HistoryError:
                self._entries.setdefault(kernel_id, entry)

    # --- ending ---

    async def end(self, case: Case, usage: Usage) -> tuple[Reason | None, bool]:
        """Interrupt if busy, shut down, confirm, leave a tombstone. `usage` is of the look just before.

        Returns what went wrong (None: the kernel is gone) and whether its GPU memory is known to be back.
        """
        kernel_id = case.kernel.kernel_id
        sample, attribution = self._seen()
        others = {key for other in attribution.usages.values() if other is not usage for key, _ in other.tree}
        links = {key: link for key, link in usage.tree if key not in others}
        apart = {key for key in links if _session(key) != case.kernel.pid}
        tree = record_tree(links.items())
        try:
            error = await self._shut_down(case.kernel)
            survivors = await self._confirm(tree, links, apart, case)
        finally:
            tree.close()
        if any(links[key] is Link.KERNEL for key in survivors):
            return error or because("survivors", count=len(survivors)), False
        if error is not None and any(k.kernel_id == kernel_id for k in await self._watch.kernels()):
            return error, False
        released, held = await self._released(usage, sample, {key.pid for key in survivors})
        await self._bury(case, usage, survivors, released, held)
        return None, released is not None and held == 0

    async def _shut_down(self, kernel: Kernel) -> Reason | None:
        try:
            if kernel.executing:
                await asyncio.wait_for(self._watch.interrupt(kernel.kernel_id), INTERRUPT_SECONDS)
                await self._until_quiet(kernel.kernel_id)
            await asyncio.wait_for(self._watch.shutdown(kernel.kernel_id), SHUTDOWN_SECONDS)
        except Exception as error:  # whatever the manager or its provisioner raises: the processes decide
            self._log.warning("gpu_guard: shutting down kernel %s failed", kernel.kernel_id, exc_info=True)
            return because("shutdown_failed", error=str(error) or type(error).__name__)
        return None

    async def _until_quiet(self, kernel_id: str) -> None:
        for _ in range(int(INTERRUPT_SECONDS / QUIET_SECONDS)):
            kernels = {k.kernel_id: k for k in await self._watch.kernels()}
            if kernel_id not in kernels or not kernels[kernel_id].executing:
                return
            await asyncio.sleep(QUIET_SECONDS)

    async def _confirm(
        self, tree: TreeRecord, links: dict[ProcessKey, Link], apart: Collection[ProcessKey], case: Case
    ) -> list[ProcessKey]:
        """Wait for the tree to go; end those of the record that may be ended. Returns what still lives."""
        alive = await self._gone(tree, links, GONE_SECONDS)
        allowed = {Link.DESCENDANT, Link.DETACHED} if case.policy.end_detached else {Link.DESCENDANT}
        by_user = case.cause is Cause.USER
        for signal, patience in ((tree.terminate, TERM_SECONDS), (tree.kill, KILL_SECONDS)):
            # A person's own request never ends what set itself apart in a session of its own: it may be working.
            targets = [k for k in alive if links.get(k) in allowed and not (by_user and k in apart)]
            if targets:
                signal(targets)
                alive = await self._gone(tree, links, patience, only=targets)
        return [key for key in alive if key in links]

    async def _gone(
        self,
        tree: TreeRecord,
        links: dict[ProcessKey, Link],
        patience: float,
        only: Collection[ProcessKey] | None = None,
    ) -> tuple[ProcessKey, ...]:
        waited = 0.0
        while True:
            alive = tree.alive()
            waiting_for = [
                k for k in alive if (links.get(k) is not Link.DETACHED if only is None else k in only)
            ]
            if not waiting_for or waited >= patience:
                return alive
            await asyncio.sleep(POLL_SECONDS)
            waited += POLL_SECONDS

    async def _released(
        self, usage: Usage, before: Sample, survivors: Collection[int]
    ) -> tuple[int | None, int]:
        """Bytes that came back (None where that can't be read), and bytes that are still held by processes that are
        gone. Waits a little: the driver drops a process late. What survives keeps its memory, so that isn't waited for.
        """
        pids = {pid for share in usage.shares for pid in share.pids} - set(survivors)
        cards = {share.uuid for share in usage.shares}
        held = _held_by(before, cards, pids)
        if not cards or held is None:
            return None, 0
        waited = 0.0
        while pids:
            assert self.look is not None, "the guard sets it"
            await self.look()
            still = _held_by(self._seen()[0], cards, pids)
            if still == 0 or waited >= RELEASE_SECONDS:
                return (None, 0) if still is None else (max(held - still, 0), still)
            await asyncio.sleep(1.0)
            waited += 1.0
        return 0, 0

    def _seen(self) -> tuple[Sample, Attribution]:
        assert self.seen is not None, "the guard sets it"
        return self.seen()

    # --- what is left to read ---

    async def journal(self, case: Case, step: str) -> None:
        """Write down how far this has come, before it is done. Raises HistoryError."""
        kernel_id = case.kernel.kernel_id
        row = {**self._with_outcome(case), "server": self._server}
        entry = self._entries.pop(kernel_id, None)
        if entry is not None:
            try:
                await self._recorder.ask(lambda h: h.step_journal(entry, step, row))
                self._entries[kernel_id] = entry
                return
            except HistoryError:
                pass  # it went with a damaged file, or the disk is full: a new entry tells
        self._entries[kernel_id] = await self._recorder.ask(lambda h: h.open_journal(kernel_id, step, row))

    def _with_outcome(self, case: Case) -> dict[str, Any]:
        row = case.to_row()
        outcome = self._outcomes.get(case.kernel.kernel_id)
        for document in () if outcome is None else outcome.documents:
            if document.outcome == "silent":
                row["unanswered"].append(document.to_row())
            else:
                row["saved"].append(document.to_row())
        return row

    async def _bury(
        self, case: Case, usage: Usage, survivors: Collection[ProcessKey], released: int | None, held: int
    ) -> None:
        row = self._with_outcome(case)
        problems = []
        if survivors:
            problems.append(because("survivors", count=len(survivors)))
        if held:
            problems.append(because("memory_not_released", bytes=held))
            self._log.warning("gpu_guard: kernel %s is gone, %d bytes are not", case.kernel.kernel_id, held)
        row.update(
            ended_at=iso(self._clock().at),
            survivors=len(survivors),
            memory_released_bytes=released,
            problems=[problem.to_wire() for problem in problems],
        )
        if usage.shares:
            row["lost"].append("gpu_memory")
        entry = self._entries.pop(case.kernel.kernel_id, None)
        self._outcomes.pop(case.kernel.kernel_id, None)
        try:
            if entry is None:
                await self._recorder.ask(lambda history: history.add_tombstone(row))
            else:
                await self._recorder.ask(lambda history: history.close_journal(entry, "culled", row))
        except HistoryError:
            self._log.error(
                "gpu_guard: the end of kernel %s could not be written down", case.kernel.kernel_id
            )

    async def close_open_entries(self) -> int:
        """After a start: what a killed server left open is closed with an outcome and a tombstone. Returns how many."""
        entries = await self._recorder.ask(lambda history: history.open_entries())
        closed = 0
        for entry in entries:
            row = dict(entry["data"])
            if is_alive(row.pop("server", None)):
                continue  # another server of this user and folder is at it
            row.update(reason=because("server_restarted").to_wire(), ended_at=entry["at"], step=entry["step"])
            close = functools.partial(
                History.close_journal, entry=entry["id"], outcome="server_restarted", tombstone=row
            )
            await self._recorder.ask(close)
            closed += 1
        return closed


def _with_earlier(before: SaveOutcome | None, after: SaveOutcome) -> SaveOutcome:
    """What the guard had saved a moment ago, for the same shutdown, is found clean now: it was saved all the same."""
    saved = {
        (d.client_id, d.path) for d in (() if before is None else before.documents) if d.outcome == "saved"
    }
    return replace(
        after,
        documents=tuple(
            replace(d, outcome="saved") if d.outcome == "clean" and (d.client_id, d.path) in saved else d
            for d in after.documents
        ),
    )


def _held_by(sample: Sample, cards: Collection[str], pids: Collection[int]) -> int | None:
    """Bytes that these pids hold on these cards by this sample; None where it can't be read."""
    if sample.state is not TelemetryState.OK:
        return None
    total = 0
    for gpu in sample.gpus:
        if gpu.uuid not in cards:
            continue
        if isinstance(gpu.processes, Unknown):
            return None
        for process in gpu.processes:
            if process.pid not in pids:
                continue
            if isinstance(process.memory_bytes, Unknown):
                return None
            total += process.memory_bytes
    return total


def _session(key: ProcessKey) -> int | None:
    """The session of a process that is still the one of that key."""
    stat = ProcFiles(PROC, ()).stat(key.pid)
    return stat.session if stat is not None and stat.start_ticks == key.start_ticks else None


def own_identity() -> dict[str, Any]:
    """This process for good: a server that comes later can tell whether the one that wrote a journal still runs."""
    stat = ProcFiles(PROC, ()).stat(os.getpid())
    return {"boot": _boot(), "pid": os.getpid(), "start_ticks": None if stat is None else stat.start_ticks}


def is_alive(identity: dict[str, Any] | None) -> bool:
    """Whether the server of that identity runs, and isn't this one."""
    if identity is None or identity["boot"] != _boot() or identity["pid"] == os.getpid():
        return False
    stat = ProcFiles(PROC, ()).stat(identity["pid"])
    return stat is not None and stat.start_ticks == identity["start_ticks"] and stat.state not in "ZX"


def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
