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
from dataclasses import dataclass
from logging import Logger
from pathlib import Path
from typing import Any

from .core.deadline import Cause, Warning_
from .core.lifecycle import Culled, Saved
from .core.model import Attribution, Instant, Kernel, Link, ProcessKey, Sample, TelemetryState, Unknown, Usage
from .core.policy import Policy
from .core.reasons import Reason, because
from .history import History, HistoryError
from .kernels import KernelWatch
from .notebooks import SaveOutcome, Saver, SaveRequest
from .presence import People
from .processes import TreeRecord, record_tree
from .procfs import ProcFiles
from .record import Recorder, iso

#: How long a busy kernel may take to answer an interrupt; a hard kill amid a CUDA kernel can leave a GPU stuck.
INTERRUPT_SECONDS = 10.0
#: How long Jupyter's own shutdown may take (it allows 5 s by default and then kills).
SHUTDOWN_SECONDS = 60.0
#: How long processes may take to go by themselves, after SIGTERM and after SIGKILL, and the driver to drop them.
GONE_SECONDS, TERM_SECONDS, KILL_SECONDS, RELEASE_SECONDS = 5.0, 5.0, 5.0, 10.0
POLL_SECONDS = 0.1
PROC = Path("/proc")

Look = Callable[[], Awaitable[tuple[Sample, Attribution]]]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and why it is to be ended: what the journal and the tombstone start from."""

    kernel: Kernel
    policy: Policy
    cause: Cause
    reason: Reason
    warnings: tuple[Warning_, ...]
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
                {"at": iso(w.given.at), "lead_seconds": w.lead.total_seconds()}
                for w in given
                if w.given is not None and w.lead is not None
            ],
            "saved": [],
            "unanswered": [],
            "lost": ["variables"],
            "survivors": 0,
            "memory_released_bytes": None,
        }


class Reclaimer:
    """Saves and ends kernels. `look` takes a fresh reading and attributes it."""

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
        self.look: Look | None = None
        self.on_request: Callable[[SaveRequest], None] = lambda request: None

    # --- saving ---

    async def save(self, case: Case) -> Saved:
        """Ask every front end that has a document of this kernel open, and verify what they answer."""
        kernel_id = case.kernel.kernel_id
        self._outcomes.pop(kernel_id, None)
        try:
            await self._journal(case, "saving")
        except HistoryError:
            return Saved("failed", self._recorder.hold)
        present = self._people.for_kernels(self._clock()).get(kernel_id)
        documents = () if present is None else present.open_documents
        request = await self._saver.open_request(kernel_id, documents, case.policy.save_timeout)
        if request.clients:
            self.on_request(request)
        outcome = await self._saver.wait(request.nonce)
        self._outcomes[kernel_id] = outcome
        kind = "recovered" if outcome.kind == "failed" and outcome.all_copied else outcome.kind
        return Saved(kind, outcome.reason or case.reason)

    def recovery_of(self, kernel_id: str) -> list[dict[str, Any]]:
        """The recovery copies of the last save of this kernel: `{path, recovery_path, recovery_id}`."""
        outcome = self._outcomes.get(kernel_id)
        return [
            {"path": d.path, "recovery_path": d.recovery_path, "recovery_id": d.recovery_id}
            for d in (() if outcome is None else outcome.documents)
            if d.copied
        ]

    async def forget(self, kernel_id: str, outcome: str) -> None:
        """Close what stands open for a kernel that lives on (`cancelled`) or that ended otherwise (`gone`)."""
        self._outcomes.pop(kernel_id, None)
        entry = self._entries.pop(kernel_id, None)
        if entry is not None:
            try:
                await self._recorder.ask(lambda history: history.close_journal(entry, outcome))
            except HistoryError:
                self._entries[kernel_id] = entry

    # --- ending ---

    async def end(self, case: Case) -> Culled:
        """Interrupt if busy, shut down, confirm, leave a tombstone. The reason of the result says what went wrong."""
        kernel_id = case.kernel.kernel_id
        try:
            await self._journal(case, "culling")
        except HistoryError:
            return Culled(self._recorder.hold)
        sample, attribution = await self._fresh()
        usage = attribution.usages.get(kernel_id, Usage(kernel_id))
        others = {key for other in attribution.usages.values() if other is not usage for key, _ in other.tree}
        tree = record_tree([(key, link) for key, link in usage.tree if key not in others])
        try:
            error = await self._shut_down(case.kernel)
            survivors = await self._confirm(tree, usage, case)
        finally:
            tree.close()
        if any(link is Link.KERNEL for link in survivors.values()):
            return Culled(error or because("survivors", count=len(survivors)))
        released = await self._released(usage, sample, {key.pid for key in survivors})
        await self._bury(case, usage, len(survivors), released)
        return Culled(None)

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
        for _ in range(int(INTERRUPT_SECONDS / POLL_SECONDS)):
            kernels = {k.kernel_id: k for k in await self._watch.kernels()}
            if kernel_id not in kernels or not kernels[kernel_id].executing:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _confirm(self, tree: TreeRecord, usage: Usage, case: Case) -> dict[ProcessKey, Link]:
        """Wait for the tree to go; end those of the record that may be ended. Returns what still lives."""
        links = dict(usage.tree)
        alive = await self._gone(tree, links, GONE_SECONDS)
        # A person's own request never ends a child that was set apart from the kernel: it may be working.
        allowed = set() if case.cause is Cause.USER else {Link.DESCENDANT}
        if allowed and case.policy.end_detached:
            allowed.add(Link.DETACHED)
        for signal, patience in ((tree.terminate, TERM_SECONDS), (tree.kill, KILL_SECONDS)):
            targets = [key for key in alive if links.get(key) in allowed]
            if targets:
                signal(targets)
                alive = await self._gone(tree, links, patience, only=targets)
        return {key: links[key] for key in alive if key in links}

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

    async def _released(self, usage: Usage, before: Sample, survivors: Collection[int]) -> int | None:
        """Bytes that came back, or None where that can't be read. Waits a little: the driver drops a process late.
        What survives keeps its memory, so that isn't waited for."""
        pids = {pid for share in usage.shares for pid in share.pids} - set(survivors)
        cards = {share.uuid for share in usage.shares}
        held = _held_by(before, cards, pids)
        if not cards or held is None:
            return None
        waited = 0.0
        while pids:
            sample, _ = await self._fresh()
            still = _held_by(sample, cards, pids)
            if still == 0 or waited >= RELEASE_SECONDS:
                return None if still is None else max(held - still, 0)
            await asyncio.sleep(1.0)
            waited += 1.0
        return 0

    async def _fresh(self) -> tuple[Sample, Attribution]:
        assert self.look is not None, "the guard sets it"
        return await self.look()

    # --- what is left to read ---

    async def _journal(self, case: Case, step: str) -> None:
        """Write down how far this has come, before it is done."""
        kernel_id = case.kernel.kernel_id
        row = {**self._with_outcome(case), "server": self._server}
        entry = self._entries.get(kernel_id)
        if entry is None:
            self._entries[kernel_id] = await self._recorder.ask(
                lambda h: h.open_journal(kernel_id, step, row)
            )
        else:
            await self._recorder.ask(lambda h: h.step_journal(entry, step, row))

    def _with_outcome(self, case: Case) -> dict[str, Any]:
        row = case.to_row()
        outcome = self._outcomes.get(case.kernel.kernel_id)
        for document in () if outcome is None else outcome.documents:
            if document.outcome == "silent":
                row["unanswered"].append(document.to_row())
            else:
                row["saved"].append(document.to_row())
        return row

    async def _bury(self, case: Case, usage: Usage, survivors: int, released: int | None) -> None:
        row = self._with_outcome(case)
        row.update(ended_at=iso(self._clock().at), survivors=survivors, memory_released_bytes=released)
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
