"""Extensions that people give a kernel: how long, how much in all, and the ledger of it.

Of one extension `keep_alive_max` is the limit; of all extensions of an owner and a notebook path within seven days,
restarts or not, `keep_alive_total`. Only time that a kernel lives by its extension is charged: not while it is active.

Not here: what an extension does to the deadline (core).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from .core.model import Instant
from .core.policy import Policy
from .core.reasons import Reason, because
from .history import HistoryError
from .record import Recorder

#: What counts towards keep_alive_total.
LEDGER_DAYS = timedelta(days=7)
#: Charges are written this often, so that a killed server forgets little.
WRITE_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Kept:
    """A kernel that lives by its extension now."""

    kernel_id: str
    notebooks: tuple[str, ...]

    @property
    def path(self) -> str:
        """What the ledger is kept by: the notebook, or the kernel where it has none."""
        return self.notebooks[0] if self.notebooks else self.kernel_id


class Refused(Exception):
    """An extension that the policy doesn't allow; `reason` says the limit."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class Extensions:
    """Checks and charges extensions for one owner."""

    def __init__(self, recorder: Recorder, owner: str) -> None:
        self.owner = owner
        self._recorder = recorder
        self._pending: dict[str, timedelta] = {}
        self._charged: dict[str, timedelta] = {}  # from the ledger, for showing
        self._last: Instant | None = None
        self._written: Instant | None = None

    async def remaining(self, kept: Kept, policy: Policy, now: Instant) -> timedelta:
        """What is left of keep_alive_total for this notebook. Raises HistoryError when the ledger can't be read."""
        since = now.at - LEDGER_DAYS
        seconds = await self._recorder.ask(lambda history: history.charged(self.owner, kept.path, since))
        self._charged[kept.path] = timedelta(seconds=seconds)
        return self.remaining_known(kept, policy)

    async def read(self, kept: Kept, policy: Policy, now: Instant) -> None:
        """Read the ledger of this notebook, so that `remaining_known` tells the truth."""
        with contextlib.suppress(HistoryError):
            await self.remaining(kept, policy, now)

    def remaining_known(self, kept: Kept, policy: Policy) -> timedelta:
        """The same from what was last read, without asking."""
        used = self._charged.get(kept.path, timedelta(0)) + self._pending.get(kept.path, timedelta(0))
        return max(policy.keep_alive_total - used, timedelta(0))

    async def check(self, kept: Kept, span: timedelta, policy: Policy, now: Instant) -> timedelta:
        """Raise Refused if the policy doesn't allow this extension; else what is left after it, if used up."""
        if policy.keep_alive_max <= timedelta(0):
            raise Refused(because("keep_alive_off"))
        if span > policy.keep_alive_max:
            raise Refused(because("keep_alive_too_long", limit_seconds=policy.keep_alive_max.total_seconds()))
        left = await self.remaining(kept, policy, now)
        if span > left:
            raise Refused(because("keep_alive_used_up", limit_seconds=left.total_seconds()))
        return left - span

    async def charge(self, kept: Iterable[Kept], now: Instant) -> None:
        """Charge the time since the last call to those that live by an extension; write once a minute."""
        elapsed = timedelta(0) if self._last is None else now.since(self._last)
        self._last = now
        for one in kept:
            self._pending[one.path] = self._pending.get(one.path, timedelta(0)) + elapsed
        if self._written is None or now.since(self._written) >= WRITE_EVERY:
            self._written = now
            await self._write(now)

    async def close(self) -> None:
        """Write what is pending."""
        if self._last is not None:
            await self._write(self._last)

    async def _write(self, now: Instant) -> None:
        for path, span in list(self._pending.items()):
            if not span:
                continue
            seconds = span.total_seconds()
            try:
                await self._recorder.ask(
                    lambda history, path=path, seconds=seconds: history.charge(  # type: ignore[misc]
                        self.owner, path, seconds, now.at
                    )
                )
            except HistoryError:
                return  # stays pending: nobody's time is forgotten because a disk was full
            self._pending[path] -= span
            self._charged[path] = self._charged.get(path, timedelta(0)) + span
