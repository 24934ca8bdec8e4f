"""One record of what happened, for everybody: history, log, events, metrics and browser read the same.

The history is written in a daemon thread. While it can't be written, `hold` says so and nothing is culled; what
happened meanwhile is kept (bounded) and written when the history is back. Before a step that ends something, the
journal is written first (reclaim).

Not here: how the history stores it (history), how the sinks show it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from logging import Logger
from typing import Any, TypeVar

from .core.model import Evidence, VerdictKind
from .core.reasons import Reason, because
from .history import History, HistoryError
from .worker import Hung, Worker

T = TypeVar("T")

#: A history that takes longer than this to write counts as not writable.
HISTORY_DEADLINE = 10.0
#: While the history can't be written, it is tried again this often: nothing else may happen that would be written.
RETRY_SECONDS = 3.0
#: So many records are kept while the history can't be written; then the oldest go.
MOST_PENDING = 1000


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened to one kernel. `action` is one of the event schema."""

    at: datetime
    kernel_id: str
    action: str
    before: str
    after: str
    reason: Reason
    kernel_name: str = ""
    notebooks: tuple[str, ...] = ()
    policy: str = ""
    verdict: VerdictKind | None = None
    evidence: tuple[Evidence, ...] = ()

    def to_row(self) -> dict[str, Any]:
        """As the history and `GET history` have it."""
        return {
            "at": iso(self.at),
            "kernel_id": self.kernel_id,
            "action": self.action,
            "from": self.before,
            "to": self.after,
            "reason": self.reason.to_wire(),
            "kernel_name": self.kernel_name,
            "notebooks": list(self.notebooks),
            "policy": self.policy,
            "verdict": None if self.verdict is None else self.verdict.value,
            "evidence": [evidence_to_wire(e) for e in self.evidence],
        }


def iso(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and a Z, as on the wire."""
    return at.isoformat(timespec="milliseconds")[:23] + "Z"  # strftime takes ten times as long


def evidence_to_wire(evidence: Evidence) -> dict[str, Any]:
    """`{signal, value, threshold, since, reason}`."""
    return {
        "signal": evidence.signal,
        "value": evidence.value,
        "threshold": evidence.threshold,
        "since": None if evidence.since is None else iso(evidence.since),
        "reason": None if evidence.reason is None else evidence.reason.to_wire(),
    }


class Recorder:
    """Hands happenings to the sinks and writes them to the history."""

    def __init__(self, history: History, log: Logger) -> None:
        self._history = history
        self._log = log
        self._worker = Worker("gpu-guard-history")
        self._pending: list[Happening] = []
        self._writing: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None
        self.sinks: list[Callable[[Happening], None]] = []
        self.hold: Reason | None = None

    async def ask(self, question: Callable[[History], T]) -> T:
        """Run a call on the history in its thread. Raises HistoryError; sets and lifts `hold` by the outcome."""
        try:
            answer = await self._worker.call(lambda: question(self._history), HISTORY_DEADLINE)
        except (HistoryError, Hung) as error:
            if self.hold is None:
                self._log.error("gpu_guard: the history cannot be used, culling is paused: %s", error)
            self.hold = because("cannot_record", error=str(error))
            if self._retrying is None or self._retrying.done():
                self._retrying = asyncio.get_running_loop().create_task(self._retry())
            raise HistoryError(str(error)) from error
        self._lift()
        return answer

    def _lift(self) -> None:
        """End the hold, unless something still waits to be written: a full disk can be read all the same."""
        if self.hold is not None and not self._pending:
            self._log.info("gpu_guard: the history can be written again")
            self.hold = None

    async def _retry(self) -> None:
        while self.hold is not None:
            await asyncio.sleep(RETRY_SECONDS)
            with contextlib.suppress(HistoryError):
                await (self._write_soon() if self._pending else self.ask(lambda history: history.record()))

    def record(self, happening: Happening) -> None:
        """Tell the sinks now and write it down soon; called on the event loop."""
        self._log.info(
            "gpu_guard: kernel %s %s: %s", happening.kernel_id, happening.action, happening.reason.text
        )
        for sink in self.sinks:
            try:
                sink(happening)
            except Exception:  # whoever fails to show it must not keep it from being done
                self._log.exception("gpu_guard: %s could not be told to %r", happening.action, sink)
        self._pending = [*self._pending[-(MOST_PENDING - 1) :], happening]
        self._write_soon()

    def _write_soon(self) -> asyncio.Task[None]:
        """One writer at a time, or what is pending would be written twice."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._flush())
        return self._writing

    async def _flush(self) -> None:
        """Write what is pending. Leaves it pending, with `hold` set, when the history can't be written."""
        while self._pending:
            batch = list(self._pending)
            rows = [happening.to_row() for happening in batch]
            try:
                await self.ask(lambda history, rows=rows: history.record(*rows))  # type: ignore[misc]
            except HistoryError:
                return
            written = {id(happening) for happening in batch}
            self._pending = [happening for happening in self._pending if id(happening) not in written]
            self._lift()

    async def close(self) -> None:
        """Write what is pending, once, and let go of the file."""
        await self._write_soon()
        with contextlib.suppress(HistoryError):
            await self.ask(lambda history: history.close())
        if self._retrying is not None:
            self._retrying.cancel()
        self._worker.stop()
