"""The steps of a life: the one place where a life moves, and where what it asks for is done.

Not here: when a kernel is looked at (guard), how a save and a shutdown go (reclaim), who shows it (app wires that).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from logging import Logger

from .core import lifecycle
from .core.deadline import Cause, Warning_
from .core.lifecycle import Phase
from .core.model import Instant, VerdictKind
from .core.reasons import Reason, because
from .history import HistoryError
from .reclaim import Case, Reclaimer
from .record import Happening, Recorder, iso
from .watched import Watched

UNDER_WAY = (Phase.SAVING, Phase.CULLING, Phase.FAILED)


class Steps:
    """Moves lives. `look` makes a full round and says whether everything was observed; `hold` says why nothing may be
    ended now; `on_change` and `on_warning` are for those who show it."""

    def __init__(
        self, reclaimer: Reclaimer, recorder: Recorder, log: Logger, clock: Callable[[], Instant]
    ) -> None:
        self._reclaimer = reclaimer
        self._recorder = recorder
        self._log = log
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self.look: Callable[[], Awaitable[bool]] | None = None
        self.hold: Callable[[], Reason | None] = lambda: None
        self.on_change: Callable[[Watched], None] = lambda watched: None
        self.on_warning: Callable[[Watched, Warning_], None] = lambda watched, warning: None

    async def stop(self) -> None:
        """Leave what is under way to the journal."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run it beside the rounds. Kept until it ends: the loop alone wouldn't hold it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.error("gpu_guard: a step failed", exc_info=error)

    def advance(self, watched: Watched, event: lifecycle.Event) -> None:
        """Move a life, do what it asks for, then tell."""
        before = watched.life
        if before.phase is Phase.CULLED:
            return
        watched.life, actions = lifecycle.advance(before, event, watched.policy, self._clock())
        if watched.life.phase is not Phase.SAVING or watched.life.attempt != before.attempt:
            self._stop_saving(watched)
        for action in actions:
            self._do(watched, action)
        if before.phase in UNDER_WAY and watched.life.phase not in (*UNDER_WAY, Phase.CULLED):
            postponed = watched.life.phase is Phase.WARNED
            self.spawn(self._close(watched, "postponed" if postponed else "cancelled", keep=postponed))
        for action in actions:
            self._tell(watched, before.phase, action)
        if watched.life.phase is not before.phase or actions:
            self._safely(self.on_change, watched)

    def let_go(self, watched: Watched) -> None:
        """The kernel is gone, by whatever hand: close what stands open once what is under way has ended."""
        self.spawn(self._close(watched, "gone", keep=False))

    def delivered(self, watched: Watched, warning: Warning_) -> None:
        """A page that shows this warning has it. Written down once, and decides nothing."""
        watched.reaches.forget_all_but(watched.life.warnings)
        if warning in watched.life.warnings and watched.reaches.delivered(warning, self._clock().at):
            self._note(watched, "warning_delivered", warning)

    def seen(self, watched: Watched, given_at: str) -> None:
        """A page tells that it showed the warning of that `at`; one that stands no more says nothing. What was seen
        was delivered, though by polling or with a first status."""
        standing = [w for w in watched.life.warnings if w.given is not None and iso(w.given.at) == given_at]
        for warning in standing:
            self.delivered(watched, warning)
            if watched.reaches.seen(warning, self._clock().at):
                self._note(watched, "warning_seen", warning)

    def _note(self, watched: Watched, action: str, warning: Warning_) -> None:
        assert warning.given is not None
        reason = because(action, at=iso(warning.given.at))
        record = lifecycle.Record(action, reason)
        self._recorder.record(self._happening(watched, watched.life.phase, record))
        self._safely(self.on_change, watched)

    def _do(self, watched: Watched, action: lifecycle.Action) -> None:
        if isinstance(action, lifecycle.AskToSave):
            watched.saving = self.spawn(self._save(watched, action.attempt))
        elif isinstance(action, lifecycle.LookAgain):
            watched.ending = self.spawn(self._last_look(watched))
        elif isinstance(action, lifecycle.EndKernel):
            watched.ending = self.spawn(self._end(watched))

    def _tell(self, watched: Watched, before: Phase, action: lifecycle.Action) -> None:
        if isinstance(action, lifecycle.Record):
            self._recorder.record(self._happening(watched, before, action))
        elif isinstance(action, lifecycle.Warn):
            self._safely(self.on_warning, watched, action.warning)

    def _safely(self, tell: Callable[..., None], *about: object) -> None:
        """Whoever fails to show something must not keep it from being done."""
        try:
            tell(*about)
        except Exception:
            self._log.exception("gpu_guard: a change could not be shown")

    def _happening(self, watched: Watched, before: Phase, action: lifecycle.Record) -> Happening:
        verdict = watched.verdict
        return Happening(
            at=self._clock().at,
            kernel_id=watched.kernel.kernel_id,
            action=action.action,
            before=before.value,
            after=watched.life.phase.value,
            reason=action.reason,
            kernel_name=watched.kernel.name,
            notebooks=watched.kernel.notebooks,
            policy=watched.policy.name,
            verdict=None if verdict is None else verdict.kind,
            evidence=() if verdict is None else verdict.evidence,
        )

    # --- what runs beside the rounds ---

    def _case(self, watched: Watched) -> Case:
        life = watched.life
        reason = life.reason or because("asked_by_user", owner="")
        cause = life.cause or Cause.USER
        return Case(watched.kernel, watched.policy, cause, reason, life.warnings, watched.reaches, life.owner)

    def _stop_saving(self, watched: Watched) -> None:
        """A save whose outcome nobody waits for takes no more answers."""
        task, watched.saving = watched.saving, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _save(self, watched: Watched, attempt: int) -> None:
        try:
            kind, reason = await self._reclaimer.save(self._case(watched))
        except Exception as error:  # a save that breaks is a save that failed, never a reason to go on
            self._log.exception("gpu_guard: saving failed")
            kind, reason = "failed", because("save_failed", path="", error=str(error) or type(error).__name__)
        self.advance(watched, lifecycle.Saved(kind, reason, attempt))

    async def _last_look(self, watched: Watched) -> None:
        """Write down that it comes to an end, look, and decide with nothing in between."""
        assert self.look is not None, "the guard sets it"
        began = self._clock()
        hold: Reason | None = None
        try:
            await self._reclaimer.journal(self._case(watched), "culling")
        except HistoryError:
            hold = self._recorder.hold
        seen = await self.look() and watched.judged is not None and watched.judged >= began
        if watched.verdict is None:
            return
        verdict = watched.verdict if seen else replace(watched.verdict, kind=VerdictKind.UNKNOWN)
        self.advance(watched, lifecycle.Looked(verdict, hold or self.hold()))

    async def _end(self, watched: Watched) -> None:
        try:
            error, watched.released = await self._reclaimer.end(self._case(watched), watched.usage)
        except Exception as exc:
            self._log.exception("gpu_guard: the shutdown failed")
            error = because("shutdown_failed", error=str(exc) or type(exc).__name__)
        self.advance(watched, lifecycle.Culled(error))

    async def _close(self, watched: Watched, outcome: str, keep: bool) -> None:
        running = [task for task in (watched.saving, watched.ending) if task is not None and not task.done()]
        current = asyncio.current_task()
        await asyncio.gather(*(task for task in running if task is not current), return_exceptions=True)
        if watched.life.phase not in (*UNDER_WAY, Phase.CULLED) or outcome == "gone":
            await self._reclaimer.forget(watched.kernel.kernel_id, outcome, keep)
