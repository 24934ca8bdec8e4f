"""The round: observe, attribute, judge, decide, act, record.

One `Guard` runs for each server, on its event loop. Whatever may hang (driver, /proc, history) is asked in a daemon
thread of its own with a deadline. What happens between rounds (an execution, a person, a button) comes in through the
methods at the end and is decided at once.

Not here: what a life asks for (steps), how a save is collected and a kernel ended (reclaim), how any of it is shown
(wire, stream, events, metrics).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from logging import Logger

from .config import Settings
from .core import lifecycle
from .core.attribution import AttributionMemory, attribute
from .core.judgement import fresh_track, judge
from .core.lifecycle import Phase
from .core.model import (
    Attribution,
    Instant,
    Kernel,
    Observation,
    Presence,
    Process,
    Sample,
    Terminal,
    Usage,
    VerdictKind,
)
from .core.policy import KernelFacts, Policy, PolicyLayers, resolve
from .core.policy_vain import find_vain
from .core.reasons import Reason, because
from .extensions import Extensions, Kept
from .history import HistoryError
from .kernels import KernelWatch
from .labels import Labels
from .observer import Observer
from .policies import PolicyFile
from .processes import marked_processes
from .reclaim import Reclaimer
from .record import Recorder, iso
from .resolved import Resolved
from .steps import Steps
from .watched import Watched
from .worker import Hung, Worker

#: A kernel that was shut down and is still listed after this is a kernel again.
LINGER = timedelta(seconds=30)
#: A policy file on a file system that hangs keeps the last good policies in force.
POLICY_DEADLINE = 10.0
#: A kernel of which nothing is known.
ANY_KERNEL = KernelFacts(kernel_name="", paths=(), gpu_models=(), user=None, groups=(), label=None)


def instant() -> Instant:
    """Now, by both clocks."""
    return Instant(time.monotonic(), datetime.now(timezone.utc))


@dataclass(slots=True)
class State:
    """All that the last round left, for everything that shows it."""

    sample: Sample
    attribution: Attribution = field(default_factory=lambda: Attribution({}))
    watched: dict[str, Watched] = field(default_factory=dict)
    terminals: tuple[Terminal, ...] = ()
    orphans: tuple[Process, ...] = ()  # what kernels of an earlier server left behind, by the last full scan
    rounds: int = 0


class Guard:
    """Runs the rounds. `on_round` and `on_round_duration` are for those who show it; the app sets them."""

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
        self.steps = Steps(reclaimer, recorder, log, clock)
        self.steps.look = self.look
        self.steps.hold = lambda: self.recorder.hold
        self._memory = AttributionMemory()
        self._resolved = Resolved()
        self._policies = Worker("gpu-guard-policies")
        self._looping: asyncio.Task[None] | None = None
        self._in_round = asyncio.Lock()
        self.on_round: Callable[[], None] = lambda: None
        self.on_round_duration: Callable[[float], None] = lambda seconds: None
        self.state = State(observer.sample)
        reclaimer.look = self.look
        reclaimer.seen = lambda: (self.state.sample, self.state.attribution)

    # --- running ---

    async def start(self) -> None:
        """Close what a killed server left open, then begin the rounds. Never raises: nothing may stop a server."""
        try:
            closed = await self._reclaimer.close_open_entries()
            if closed:
                self.log.warning("gpu_guard: %d shutdowns were cut short when the server stopped", closed)
        except HistoryError:
            pass  # the recorder has said so, and holds the culling
        general = self.general_policy
        timeout = general.idle_timeout.total_seconds()
        source = general.sources["mode"]
        self.log.info("gpu_guard: mode %s (%s), idle_timeout %.0f s", general.mode.value, source, timeout)
        self._tell_of_vain_entries()
        self.watch.changed = self._kernel_changed
        self._looping = asyncio.get_running_loop().create_task(self._loop())

    async def stop(self) -> None:
        """End the rounds; a save or a shutdown under way is left to the journal."""
        if self._looping is not None:
            self._looping.cancel()
            await asyncio.gather(self._looping, return_exceptions=True)
        await self.steps.stop()
        await self.extensions.close()
        await self.recorder.close()
        self.observer.stop()
        self._policies.stop()

    async def _loop(self) -> None:
        while True:
            interval = self.layers.sample_interval.total_seconds()
            began = time.monotonic()
            try:
                await self._refresh_policies()
                await self.round(self._period())
                self.on_round_duration(time.monotonic() - began)
            except Exception:  # one bad round must not end the guard; judgement sees the hole in the samples
                self.log.exception("gpu_guard: a round failed")
            await asyncio.sleep(max(0.0, interval - (time.monotonic() - began)))

    async def round(self, period: timedelta) -> bool:
        """One round. What can't be read is unknown. False when nothing could be observed: a hole in the samples.
        `period`: how old the last full scan of the processes may be."""
        async with self._in_round:
            observation = await self.observer.observe(period)
            if observation is not None:
                attribution, self._memory = attribute(observation, self._memory)
                self._adopt(observation, attribution)
                for watched in list(self.state.watched.values()):
                    self._judge_safely(watched, observation)
                self.state.rounds += 1
            else:
                self.state.sample = self.observer.sample
        await self.extensions.charge(self._kept(), self.clock())
        self.on_round()
        return observation is not None

    async def look(self) -> bool:
        """A round of its own, with a full scan: the last look before a shutdown. It is a round for all kernels, since a
        reading of the driver uses up the samples that it gives."""
        return await self.round(timedelta(0))

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

    # --- taking over what a round saw ---

    def _adopt(self, observation: Observation, attribution: Attribution) -> None:
        """New kernels are born, restarted ones begin again, gone ones are let go."""
        state = self.state
        state.sample, state.attribution = observation.sample, attribution
        state.terminals = observation.terminals
        if observation.scan.full:
            state.orphans = marked_processes(observation.scan, {k.kernel_id for k in observation.kernels})
        self.labels.look(path for kernel in observation.kernels for path in kernel.notebooks)
        seen = {kernel.kernel_id for kernel in observation.kernels}
        for kernel_id in [k for k in state.watched if k not in seen]:
            self.steps.let_go(state.watched.pop(kernel_id))
        for kernel in observation.kernels:
            usage = attribution.usages.get(kernel.kernel_id, Usage(kernel.kernel_id))
            presence = observation.presence.get(kernel.kernel_id, Presence())
            watched = state.watched.get(kernel.kernel_id)
            if watched is None or self._outlived(watched, kernel):
                state.watched[kernel.kernel_id] = self._born(kernel, usage, presence, observation.now)
            else:
                self._meet(watched, kernel, usage, presence, observation.now)

    def _born(self, kernel: Kernel, usage: Usage, presence: Presence, now: Instant) -> Watched:
        models = self._models(usage)
        policy = self.policy_for(kernel, models, now)
        life, track = lifecycle.born(kernel.kernel_id, kernel.started), fresh_track(kernel, now)
        kept = Kept(kernel.kernel_id, kernel.notebooks)
        self.steps.spawn(self.extensions.read(kept, policy, now))
        return Watched(kernel, life, track, policy, usage, presence=presence, models=models)

    def _outlived(self, watched: Watched, kernel: Kernel) -> bool:
        """A kernel that was shut down and is there all the same, as another process or after a while, is a new one."""
        if watched.life.phase is not Phase.CULLED:
            return False
        late = self.clock().since(watched.life.since) > LINGER
        return late or kernel.incarnation != watched.kernel.incarnation

    def _meet(self, watched: Watched, kernel: Kernel, usage: Usage, presence: Presence, now: Instant) -> None:
        if _newer(watched.kernel, kernel):
            return  # a cell began while this round was under way: the older picture says nothing any more
        restarted = kernel.incarnation != watched.kernel.incarnation
        watched.kernel, watched.usage, watched.presence = kernel, usage, presence
        if usage.shares or usage.holds_gpu is False:
            watched.models = self._models(usage)
        watched.policy = self.policy_for(kernel, watched.models, now)
        if restarted:
            watched.track = fresh_track(kernel, now)
            self.steps.advance(watched, lifecycle.Restarted())

    def _models(self, usage: Usage) -> tuple[str, ...]:
        held = {share.uuid for share in usage.shares}
        return tuple(gpu.name for gpu in self.state.sample.gpus if gpu.uuid in held)

    # --- policies ---

    def policy_for(self, kernel: Kernel, models: tuple[str, ...], now: Instant) -> Policy:
        """The effective policy of one kernel, from all layers."""
        facts = KernelFacts(
            kernel_name=kernel.name,
            paths=kernel.notebooks,
            gpu_models=models,
            user=self.extensions.owner,
            groups=self._groups,
            label=self.labels.of(kernel.notebooks).label,
        )
        return self._resolved.policy(self.layers, facts, now)

    @property
    def layers(self) -> PolicyLayers:
        """The policies in force: the configuration, with the last good policy file over it."""
        return self.settings.layers if self.policy_file is None else self.policy_file.layers()

    @property
    def general_policy(self) -> Policy:
        """The policy of a kernel of which nothing is known, so that no entry of a policy is for it."""
        return resolve(self.layers, ANY_KERNEL, self.clock().at)

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
        for vain in find_vain(self.layers, self.clock().at):
            self.log.warning("gpu_guard: %s", vain)

    # --- judging ---

    def _judge_safely(self, watched: Watched, observation: Observation) -> None:
        """A fault in judging one kernel must not blind the guard to the others; that kernel is left alone."""
        try:
            self._judge(watched, observation)
        except Exception:
            self.log.exception("gpu_guard: kernel %s could not be judged", watched.kernel.kernel_id)

    def _judge(self, watched: Watched, observation: Observation) -> None:
        seen = next((k for k in observation.kernels if k.kernel_id == watched.kernel.kernel_id), None)
        if seen is None or _newer(watched.kernel, seen):
            return
        watched.track, verdict = judge(
            watched.kernel, watched.usage, watched.presence, observation, watched.policy, watched.track
        )
        watched.verdict, watched.judged = verdict, observation.now
        self.steps.advance(watched, lifecycle.Judged(verdict, self.recorder.hold))

    # --- between rounds: kernels, people, buttons ---

    def _kernel_changed(self, kernel_id: str) -> None:
        """Called by the watch, on the event loop."""
        watched = self.state.watched.get(kernel_id)
        if watched is not None:
            self.steps.spawn(self._look_at(watched))

    async def _look_at(self, watched: Watched) -> None:
        """An execution began or ended, or the kernel was restarted: that counts now, not at the next round."""
        kernels = {k.kernel_id: k for k in await self.watch.kernels()}
        kernel = kernels.get(watched.kernel.kernel_id)
        if kernel is None:
            return
        before, watched.kernel = watched.kernel, kernel
        began = kernel.last_execution_start
        if kernel.incarnation != before.incarnation:
            watched.track = fresh_track(kernel, self.clock())
            self.steps.advance(watched, lifecycle.Restarted())
        elif began is not None and began != before.last_execution_start:
            self.touch(watched, because("executing", since=iso(began.at)))
        self.steps.on_change(watched)

    def touch(self, watched: Watched, reason: Reason) -> None:
        """Activity between two rounds: it ends a warning, a save under way, and a shutdown that has not begun."""
        if watched.life.phase in (Phase.WARNED, Phase.SAVING, Phase.CULLING, Phase.FAILED):
            self.steps.advance(watched, lifecycle.Touched(reason))

    def keep(self, watched: Watched, until: datetime, owner: str, note: str) -> bool:
        """Extend a kernel's time; the limits have been checked. False when it is too late, or of no use."""
        if watched.life.phase is Phase.CULLED:
            return False
        self.steps.advance(watched, lifecycle.Kept(until, owner, note))
        return watched.life.keep_until is not None and watched.life.keep_until >= until

    def end_keep(self, watched: Watched) -> None:
        """Take an extension back."""
        self.steps.advance(watched, lifecycle.KeepEnded())

    def ask(self, watched: Watched, owner: str, save: bool) -> None:
        """A person wants the kernel ended: the same road as by policy, in every mode."""
        self.steps.advance(watched, lifecycle.Asked(owner, save))


def _newer(ours: Kernel, seen: Kernel) -> bool:
    """Whether what we hold was seen after `seen`: a cell or a process that `seen` doesn't know yet."""
    if ours.incarnation != seen.incarnation:
        return ours.incarnation > seen.incarnation
    began, known = ours.last_execution_start, seen.last_execution_start
    return began is not None and (known is None or began > known)
