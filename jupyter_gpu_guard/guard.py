"""The round: observe, attribute, judge, decide, act, record.

One `Guard` runs for each server, on its event loop. Whatever may hang (driver, /proc, history) is asked in a daemon
thread of its own with a deadline. What happens between rounds (an execution, a person, a button) comes in through the
methods at the end and is decided at once.

Not here: how a save is collected and a kernel ended (reclaim), how any of it is shown (wire, stream, events, metrics).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from logging import Logger

from .config import Settings
from .core import lifecycle
from .core.attribution import AttributionMemory, attribute
from .core.deadline import Cause, Deadline, Warning_, next_deadline
from .core.judgement import Track, fresh_track, judge
from .core.lifecycle import Life, Phase
from .core.model import (
    Attribution,
    Instant,
    Kernel,
    Observation,
    Presence,
    Sample,
    Terminal,
    Usage,
    Verdict,
    VerdictKind,
)
from .core.policy import KernelFacts, Mode, Policy, PolicyLayers, resolve
from .core.reasons import Reason, because
from .extensions import Extensions, Kept
from .history import HistoryError
from .kernels import KernelWatch
from .labels import Labels
from .observer import Observer
from .policies import PolicyFile
from .reclaim import Case, Reclaimer
from .record import Happening, Recorder, iso
from .worker import Hung, Worker

#: A policy file on a file system that hangs keeps the last good policies in force.
POLICY_DEADLINE = 10.0
#: A kernel of which nothing is known.
ANY_KERNEL = KernelFacts(kernel_name="", paths=(), gpu_models=(), user=None, groups=(), label=None)


def instant() -> Instant:
    """Now, by both clocks."""
    return Instant(time.monotonic(), datetime.now(timezone.utc))


@dataclass(slots=True)
class Watched:
    """One kernel under the guard: what was last seen and concluded of it."""

    kernel: Kernel
    life: Life
    track: Track
    policy: Policy
    usage: Usage
    verdict: Verdict | None = None
    due: Deadline | None = None
    presence: Presence = field(default_factory=Presence)
    task: asyncio.Task[None] | None = None  # the save or the shutdown under way


@dataclass(slots=True)
class State:
    """All that the last round left, for everything that shows it."""

    sample: Sample
    attribution: Attribution = field(default_factory=lambda: Attribution({}))
    watched: dict[str, Watched] = field(default_factory=dict)
    terminals: tuple[Terminal, ...] = ()
    hold: Reason | None = None
    rounds: int = 0


class Guard:
    """Runs the rounds and holds the lives of all kernels. `on_change`, `on_warning` and `on_round` are for those who
    show them; the app sets them."""

    def __init__(
        self,
        settings: Settings,
        observer: Observer,
        watch: KernelWatch,
        reclaimer: Reclaimer,
        recorder: Recorder,
        extensions: Extensions,
        labels: Labels,
        groups: tuple[str, ...],
        policy_file: PolicyFile | None,
        log: Logger,
        clock: Callable[[], Instant],
    ) -> None:
        self.settings = settings
        self.observer = observer
        self.watch = watch
        self.recorder = recorder
        self.extensions = extensions
        self.labels = labels
        self._groups = groups
        self.policy_file = policy_file
        self.clock = clock
        self.log = log
        self._reclaimer = reclaimer
        self._memory = AttributionMemory()
        self._policies = Worker("gpu-guard-policies")
        self._looping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_round = asyncio.Lock()
        self.on_change: Callable[[Watched], None] = lambda watched: None
        self.on_warning: Callable[[Watched, Warning_], None] = lambda watched, warning: None
        self.on_round: Callable[[], None] = lambda: None
        self.on_round_duration: Callable[[float], None] = lambda seconds: None
        self.state = State(observer.sample)

    # --- running ---

    async def start(self) -> None:
        """Close what a killed server left open, then begin the rounds. Never raises: nothing may stop a server."""
        try:
            closed = await self._reclaimer.close_open_entries()
            if closed:
                self.log.warning("gpu_guard: %d shutdowns were cut short when the server stopped", closed)
        except HistoryError:
            pass  # the recorder has said so, and holds the culling
        self._tell_of_vain_entries()
        self._reclaimer.look = self.look
        self.watch.changed = self._kernel_changed
        self._looping = asyncio.get_running_loop().create_task(self._loop())

    async def stop(self) -> None:
        """End the rounds; a save or a shutdown under way is left to the journal."""
        tasks = [task for task in (self._looping, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.extensions.close()
        await self.recorder.close()
        self.observer.stop()
        self._policies.stop()

    async def _loop(self) -> None:
        while True:
            interval = self.layers.sample_interval.total_seconds()
            began = time.monotonic()
            try:
                await self.round()
                self.on_round_duration(time.monotonic() - began)
            except (
                Exception
            ):  # one bad round must not end the guard; the hole in the samples is seen by judgement
                self.log.exception("gpu_guard: a round failed")
            await asyncio.sleep(max(0.0, interval - (time.monotonic() - began)))

    async def round(self) -> None:
        """One round. What can't be read is unknown; what can't be observed at all is a hole in the samples."""
        async with self._in_round:
            await self._refresh_policies()
            observation = await self.observer.observe(self._period())
            if observation is None:
                return
            attribution, self._memory = attribute(observation, self._memory)
            self._adopt(observation, attribution)
            for watched in list(self.state.watched.values()):
                self._judge_safely(watched, observation)
            self.state.rounds += 1
        await self.extensions.charge(self._kept(), observation.now)
        self.on_round()

    async def look(self) -> tuple[Sample, Attribution]:
        """A fresh reading outside the rounds, for the steps of a shutdown."""
        async with self._in_round:
            observation = await self.observer.observe(timedelta(0))
        if observation is None:
            return self.state.sample, Attribution({})
        attribution, _ = attribute(observation, self._memory)
        self.state.sample, self.state.attribution = observation.sample, attribution
        return observation.sample, attribution

    def _period(self) -> timedelta:
        """The shortest period of all policies in force: CPU and IO are measured that often, once a minute at most."""
        return min((w.policy.period() for w in self.state.watched.values()), default=timedelta(seconds=60))

    def _kept(self) -> list[Kept]:
        """Who lives on an extension now: kernels with one in force that are not active by themselves."""
        now = self.clock().at
        return [
            Kept(w.kernel.kernel_id, w.kernel.notebooks)
            for w in self.state.watched.values()
            if w.life.keep_until is not None
            and w.life.keep_until > now
            and (w.verdict is None or w.verdict.kind is not VerdictKind.ACTIVE)
        ]

    # --- judging and deciding ---

    def _adopt(self, observation: Observation, attribution: Attribution) -> None:
        """Take over what the round saw: new kernels are born, restarted ones begin again, gone ones are let go."""
        state = self.state
        state.sample, state.attribution = observation.sample, attribution
        state.terminals = observation.terminals
        state.hold = self.recorder.hold
        self.labels.look(path for kernel in observation.kernels for path in kernel.notebooks)
        seen = {kernel.kernel_id for kernel in observation.kernels}
        for kernel_id in [k for k in state.watched if k not in seen]:
            self._let_go(state.watched.pop(kernel_id))
        for kernel in observation.kernels:
            usage = attribution.usages.get(kernel.kernel_id, Usage(kernel.kernel_id))
            presence = observation.presence.get(kernel.kernel_id, Presence())
            policy = self.policy_for(kernel, usage, observation.now)
            old = state.watched.get(kernel.kernel_id)
            if old is None:
                life = lifecycle.born(kernel.kernel_id, kernel.started)
                track = fresh_track(kernel, observation.now)
                state.watched[kernel.kernel_id] = Watched(
                    kernel, life, track, policy, usage, presence=presence
                )
                continue
            restarted = kernel.incarnation != old.kernel.incarnation
            old.kernel, old.usage, old.presence, old.policy = kernel, usage, presence, policy
            if restarted:
                old.track = fresh_track(kernel, observation.now)
                self._advance(old, lifecycle.Restarted())

    def policy_for(self, kernel: Kernel, usage: Usage, now: Instant) -> Policy:
        """The effective policy of one kernel, from all layers."""
        models = tuple(g.name for g in self.state.sample.gpus if any(s.uuid == g.uuid for s in usage.shares))
        facts = KernelFacts(
            kernel_name=kernel.name,
            paths=kernel.notebooks,
            gpu_models=models,
            user=self.extensions.owner,
            groups=self._groups,
            label=self.labels.of(kernel.notebooks).label,
        )
        return resolve(self.layers, facts, now.at)

    @property
    def layers(self) -> PolicyLayers:
        """The policies in force: the configuration, with the last good policy file over it."""
        return self.settings.layers if self.policy_file is None else self.policy_file.layers()

    @property
    def general_policy(self) -> Policy:
        """The policy of a kernel of which nothing is known, so that no entry of a policy is for it."""
        return resolve(self.layers, ANY_KERNEL, self.clock().at)

    @property
    def mode(self) -> Mode:
        """The mode of a kernel for which no entry of a policy is."""
        return self.general_policy.mode

    async def _refresh_policies(self) -> None:
        file = self.policy_file
        if file is None:
            return
        try:
            changed = await self._policies.call(file.refresh, POLICY_DEADLINE)
        except Hung:
            return  # the last good policies stay in force
        if changed and file.error is not None:
            self.log.error("gpu_guard: %s", file.error)
        elif changed:
            self.log.info("gpu_guard: the policies of %s are in force", file.path)
            self._tell_of_vain_entries()

    def _tell_of_vain_entries(self) -> None:
        for line in self.layers.shadowed():
            self.log.warning("gpu_guard: %s", line)

    def _let_go(self, watched: Watched) -> None:
        task = watched.task
        if task is not None and not task.done():
            return  # its shutdown is being confirmed; that task ends by itself
        asyncio.get_running_loop().create_task(self._reclaimer.forget(watched.kernel.kernel_id, "gone"))

    def _judge_safely(self, watched: Watched, observation: Observation) -> None:
        """A fault in judging one kernel must not blind the guard to the others; that kernel is left alone."""
        try:
            self._judge(watched, observation)
        except Exception:
            self.log.exception("gpu_guard: kernel %s could not be judged", watched.kernel.kernel_id)

    def _judge(self, watched: Watched, observation: Observation) -> None:
        watched.track, verdict = judge(
            watched.kernel, watched.usage, watched.presence, observation, watched.policy, watched.track
        )
        watched.verdict = verdict
        if watched.life.phase is Phase.CULLED:
            return
        self._advance(watched, lifecycle.Judged(verdict, self.state.hold))

    def _advance(self, watched: Watched, event: lifecycle.Event) -> None:
        """The one place where a life moves; what it asks for is done here."""
        before = watched.life
        if before.phase is Phase.CULLED:
            return
        watched.life, actions = lifecycle.advance(before, event, watched.policy, self.clock())
        self._set_deadline(
            watched
        )  # first, so that whoever is told below is told the deadline that holds now
        for action in actions:
            if isinstance(action, lifecycle.Record):
                self._record(watched, before.phase, action)
            elif isinstance(action, lifecycle.Warn):
                self.on_warning(watched, action.warning)
            elif isinstance(action, lifecycle.AskToSave):
                watched.task = self._spawn(self._save(watched))
            else:
                watched.task = self._spawn(self._end(watched))
        under_way = (Phase.SAVING, Phase.CULLING, Phase.FAILED, Phase.CULLED)
        if before.phase in under_way and watched.life.phase not in under_way:
            self._spawn(self._reclaimer.forget(watched.kernel.kernel_id, "cancelled"))
        if watched.life.phase is not before.phase or actions:
            self.on_change(watched)

    def _set_deadline(self, watched: Watched) -> None:
        life = watched.life
        if watched.verdict is not None:
            watched.due = next_deadline(
                watched.verdict,
                watched.policy,
                life.started,
                life.warnings,
                life.keep_until,
                life.not_before,
                self.clock(),
                life.keep_owner,
            )

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _record(self, watched: Watched, before: Phase, action: lifecycle.Record) -> None:
        verdict = watched.verdict
        self.recorder.record(
            Happening(
                at=self.clock().at,
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
        )

    # --- acting ---

    def _case(self, watched: Watched) -> Case:
        life = watched.life
        reason = life.reason or because("asked_by_user", owner="")
        cause = life.cause or Cause.USER
        return Case(watched.kernel, watched.policy, cause, reason, life.warnings, life.owner)

    async def _save(self, watched: Watched) -> None:
        try:
            saved = await self._reclaimer.save(self._case(watched))
        except Exception as error:  # a save that breaks is a save that failed, never a reason to go on
            self.log.exception("gpu_guard: saving failed")
            saved = lifecycle.Saved("failed", because("save_failed", path="", error=str(error)))
        if watched.life.phase is Phase.SAVING:
            self._advance(watched, saved)

    async def _end(self, watched: Watched) -> None:
        try:
            culled = await self._reclaimer.end(self._case(watched))
        except Exception as error:
            self.log.exception("gpu_guard: the shutdown failed")
            culled = lifecycle.Culled(because("shutdown_failed", error=str(error) or type(error).__name__))
        self._advance(watched, culled)

    # --- between rounds: kernels, people, buttons ---

    def _kernel_changed(self, kernel_id: str) -> None:
        """Called by the watch, on the event loop."""
        watched = self.state.watched.get(kernel_id)
        if watched is not None:
            self._spawn(self._look_at(watched))

    async def _look_at(self, watched: Watched) -> None:
        """An execution began or ended: it is activity now, not at the next round."""
        kernels = {k.kernel_id: k for k in await self.watch.kernels()}
        kernel = kernels.get(watched.kernel.kernel_id)
        if kernel is None or kernel.incarnation != watched.kernel.incarnation:
            return
        before, watched.kernel = watched.kernel, kernel
        began = kernel.last_execution_start
        if began is not None and began != before.last_execution_start:
            self.touch(watched, because("executing", since=iso(began.at)))
        self.on_change(watched)

    def touch(self, watched: Watched, reason: Reason) -> None:
        """Activity between two rounds: it ends a warning and a save under way at once."""
        if watched.life.phase in (Phase.WARNED, Phase.SAVING, Phase.FAILED):
            self._advance(watched, lifecycle.Touched(reason))

    def keep(self, watched: Watched, until: datetime, owner: str, note: str) -> None:
        """Extend a kernel's time. The limits have been checked."""
        self._advance(watched, lifecycle.Kept(until, owner, note))

    def end_keep(self, watched: Watched) -> None:
        """Take an extension back."""
        self._advance(watched, lifecycle.KeepEnded())

    def ask(self, watched: Watched, owner: str, save: bool) -> None:
        """A person wants the kernel ended: the same road as by policy, in every mode."""
        self._advance(watched, lifecycle.Asked(owner, save))
