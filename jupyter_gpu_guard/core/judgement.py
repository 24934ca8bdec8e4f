"""The verdict on one kernel, with its evidence.

Two clocks run for each kernel: how long it has been unused, and how long a busy one has not moved. Both count observed,
awake time: a short hole in what can be read pauses them, a long one, a jump of the wall clock or a suspend starts them
afresh. Not here: what the policy does about a verdict (deadline, lifecycle).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter

from .activity import Memory, Signal, held_memory, is_busy, is_spinning, iso, read_signals, recent
from .model import (
    Evidence,
    Instant,
    Kernel,
    Observation,
    Presence,
    TelemetryState,
    Unknown,
    Usage,
    Verdict,
    VerdictKind,
)
from .policy import Policy, Scope, UnknownPolicy
from .reasons import Reason, because

_NONE = timedelta(0)
_MONOTONIC = attrgetter("monotonic")

#: The wall clock may run this far from the monotonic one in a round: time servers correct by less.
CLOCK_TOLERANCE = timedelta(seconds=5)

#: Use that no reading of this platform tells, ever; after an error it might be told again.
BY_NATURE = frozenset({"mig_no_utilization", "not_supported"})

#: Signals that show that a busy kernel gets on. People don't move it.
_MOVES = frozenset({"gpu", "codec", "gpu_memory", "io", "cpu", "output"})
#: The same for one that keeps a GPU in use: waiting in a loop takes a core as well.
_MOVES_SPINNING = _MOVES - {"gpu", "cpu"}


@dataclass(frozen=True, slots=True)
class Clock:
    """Time since `since` that was observed and awake. `since` is None while nothing can be told."""

    since: Instant | None = None
    span: timedelta = _NONE
    samples: int = 0  # good ones since then
    hole: timedelta = _NONE  # the longest between them

    def run(self, step: Step) -> Clock:
        """One round on."""
        if step.void or self.since is None:
            return Clock(step.now, samples=int(step.fresh)) if step.good else Clock()
        span = min(self.span + step.counted, step.now.since(self.since))
        if not step.good:
            return Clock(self.since, span, self.samples, self.hole)
        return Clock(self.since, span, self.samples + int(step.fresh), max(self.hole, step.hole))

    def reset(self, at: Instant | None, now: Instant) -> Clock:
        """Start again at `at`, unless it started later. What was observed since then stays observed. A clock that
        doesn't run waits for a good reading."""
        if at is None or self.since is None or at <= self.since:
            return self
        return Clock(at, min(self.span, now.since(at)))


@dataclass(frozen=True, slots=True)
class Step:
    """How this round follows the last one."""

    now: Instant
    good: bool  # everything that idleness needs could be read
    fresh: bool  # and it is a reading that no earlier round had
    counted: timedelta  # the observed time between the two rounds
    hole: timedelta  # since the last good round
    void: bool  # the hole is too long, or the clock jumped: what was counted before says nothing
    why: Reason | None = None  # why it is void


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of one kernel between rounds."""

    incarnation: int
    start_ticks: int | None
    idle: Clock
    last_good: Instant
    stall: Clock = Clock()
    spin: Clock = Clock()
    last: Instant | None = None
    last_was_good: bool = False
    sample: Instant | None = None
    moved: Instant | None = None  # when the busy kernel last moved, observed or not
    peak: float = 0.0  # of the GPU, since the idle clock started
    holding: bool = False
    held_for: timedelta = _NONE
    memory: Memory | None = None
    #: Of each signal: its side of the threshold (None: unreadable), and since when.
    sides: tuple[tuple[str, bool | None, datetime], ...] = field(default=())


def fresh_track(kernel: Kernel, now: Instant) -> Track:
    """The track of a kernel that is seen for the first time: it is idle from its start. (If that was long before the
    first look, `judge` finds a hole there and counts from the look on.)"""
    started = min(kernel.started, now)
    return Track(kernel.incarnation, kernel.start_ticks, Clock(started), started)


def judge(
    kernel: Kernel, usage: Usage, presence: Presence, obs: Observation, policy: Policy, track: Track
) -> tuple[Track, Verdict]:
    """The verdict of this round, and what to remember for the next."""
    if (kernel.incarnation, kernel.start_ticks) != (track.incarnation, track.start_ticks):
        track = fresh_track(kernel, obs.now)
    signals = read_signals(kernel, usage, presence, obs, policy, track.memory)
    unreadable = _unreadable(kernel, usage, signals, policy)
    fresh = recent(policy.period())
    used = [signal for signal in signals if _shows_use(signal, fresh, obs.now)]
    step = _step(obs, policy, track, unreadable is None)
    after = _tracked(kernel, usage, obs, policy, track, signals, used, step)
    kind, reason, clock = _decide(kernel, obs, policy, after, signals, used, step, unreadable)
    return after, _verdict(kernel, usage, kind, reason, clock, after, signals)


def by_other_signals(verdict: Verdict) -> bool:
    """Whether the kernel's GPU use can't be read by nature. If the policy lets the other signals decide, all timeouts
    are longer then."""
    reasons = [e.reason for e in verdict.evidence if e.signal in ("gpu", "codec") and e.reason is not None]
    return any(reason.code in BY_NATURE for reason in reasons)


# --- what can be read -----------------------------------------------------------------------------------------------


def _unreadable(kernel: Kernel, usage: Usage, signals: Sequence[Signal], policy: Policy) -> Reason | None:
    """The first thing that idleness needs and that can't be read. Where the policy is for kernels that hold a GPU, that
    is among it, even if nobody uses that GPU."""
    if kernel.remote:
        return because("remote_kernel")
    reasons = [signal.unreadable for signal in signals if signal.unreadable is not None]
    if policy.scope is Scope.GPU and isinstance(usage.holds_gpu, Unknown):
        reasons.append(usage.holds_gpu.reason)
    if policy.unknown_policy is UnknownPolicy.OTHER_SIGNALS:
        reasons = [reason for reason in reasons if reason.code not in BY_NATURE]
    if not reasons and kernel.pid is None:
        return because("kernel_pid_unknown")
    return reasons[0] if reasons else None


def _step(obs: Observation, policy: Policy, track: Track, good: bool) -> Step:
    now = obs.now
    hole = now.since(track.last_good)
    jumped = abs(obs.clock_drift) > CLOCK_TOLERANCE
    elapsed = _NONE if track.last is None else now.since(track.last)
    # Rounds follow each other in seconds. Where they didn't, the machine or the server stood still in between.
    watched = good and track.last_was_good and not jumped and elapsed <= recent(policy.period())
    why = None
    if jumped:
        why = because("clock_jumped", seconds=abs(obs.clock_drift).total_seconds())
    elif hole > policy.max_gap:
        why = because("hole_in_samples", seconds=hole.total_seconds())
    # Where there is nothing to read from a GPU, each round is a reading of its own.
    fresh = good and (obs.sample.state is TelemetryState.NONE or obs.sample.taken != track.sample)
    return Step(now, good, fresh, elapsed if watched else _NONE, hole, why is not None, why)


# --- the clocks -----------------------------------------------------------------------------------------------------


def _tracked(
    kernel: Kernel,
    usage: Usage,
    obs: Observation,
    policy: Policy,
    track: Track,
    signals: Sequence[Signal],
    used: Sequence[Signal],
    step: Step,
) -> Track:
    now = obs.now
    idle = track.idle.run(step).reset(_last_active(signals), now)
    moved = _latest_of(signals, _MOVES, kernel.last_execution_start, track.moved)
    busy = is_busy(kernel)
    spinning = busy and is_spinning(usage, obs.sample.gpus, policy)
    other_moves = _latest_of(signals, _MOVES_SPINNING, kernel.last_execution_start)
    elapsed = _NONE if track.last is None else now.since(track.last)
    holds = usage.holds_gpu
    holding = holds is True or (isinstance(holds, Unknown) and track.holding)
    return Track(  # not `replace`, which takes three times as long
        incarnation=track.incarnation,
        start_ticks=track.start_ticks,
        idle=idle,
        peak=_peak(track, idle, signals, now),
        stall=track.stall.run(step).reset(moved, now) if busy else Clock(now),
        spin=track.spin.run(step).reset(other_moves, now) if spinning else Clock(now),
        moved=moved if busy else now,
        last=now,
        last_was_good=step.good,
        last_good=now if step.good else track.last_good,
        sample=obs.sample.taken if step.good else track.sample,
        holding=holding,
        held_for=track.held_for + elapsed if holding and track.holding else _NONE,
        memory=held_memory(usage, obs, track.memory),
        sides=_sides(signals, used, track, now),
    )


def _peak(track: Track, idle: Clock, signals: Sequence[Signal], now: Instant) -> float:
    """The largest use of a GPU seen since the idle clock started; use that started it lies before."""
    if idle.since == now:
        return 0.0
    gpu = next(signal.value for signal in signals if signal.name == "gpu") or 0.0
    return max(track.peak, gpu) if idle.since == track.idle.since else gpu


def _last_active(signals: Sequence[Signal]) -> Instant | None:
    moments = [signal.active for signal in signals if signal.active is not None]
    return max(moments, key=_MONOTONIC, default=None)


def _latest_of(signals: Sequence[Signal], names: frozenset[str], *others: Instant | None) -> Instant | None:
    moments = [s.active for s in signals if s.active is not None and s.name in names]
    moments += [moment for moment in others if moment is not None]
    return max(moments, key=_MONOTONIC, default=None)


def _sides(
    signals: Sequence[Signal], used: Sequence[Signal], track: Track, now: Instant
) -> tuple[tuple[str, bool | None, datetime], ...]:
    """In the order of the signals, which is always the same."""
    found = []
    using = {signal.name for signal in used}
    for signal, last in zip(signals, track.sides or (None,) * len(signals), strict=True):
        side = _side(signal, signal.name in using)
        if last is not None and last[1] is side:
            found.append(last)
            continue
        begun = signal.active.at if side and signal.active is not None else now.at
        found.append((signal.name, side, begun))
    return tuple(found)


def _side(signal: Signal, shows_use: bool) -> bool | None:
    if shows_use:
        return True
    absent = signal.value is None and signal.note is not None
    return None if absent or signal.unreadable is not None else False


def _shows_use(signal: Signal, fresh: timedelta, now: Instant) -> bool:
    return signal.active is not None and now.since(signal.active) <= fresh


# --- the verdict ----------------------------------------------------------------------------------------------------

_Decision = tuple[VerdictKind, Reason, Clock]


def _decide(
    kernel: Kernel,
    obs: Observation,
    policy: Policy,
    track: Track,
    signals: Sequence[Signal],
    used: Sequence[Signal],
    step: Step,
    unreadable: Reason | None,
) -> _Decision:
    now, idle = obs.now, track.idle
    stuck = None if unreadable else _stuck(kernel, policy, track)
    present = next(signal for signal in signals if signal.name == "presence")
    if stuck is not None and (present.active is None or now.since(present.active) > policy.window):
        return stuck
    if stuck is not None:
        used = [present]  # whoever sits there decides
    elif _busy_proves_nothing(kernel, policy, track, unreadable):
        used = [signal for signal in used if signal.name != "execution"]
    why = max(used, key=lambda signal: signal.active or now, default=None)
    if why is not None and why.why is not None:
        return VerdictKind.ACTIVE, why.why, idle
    if unreadable is not None:
        return VerdictKind.UNKNOWN, unreadable, idle
    if step.why is not None:
        return VerdictKind.UNKNOWN, step.why, idle
    return _quiet(kernel, policy, track, signals)


def _stuck(kernel: Kernel, policy: Policy, track: Track) -> _Decision | None:
    """A busy kernel that has been watched without moving, or spinning, for `stalled_timeout`."""
    limit = policy.stalled_timeout
    if limit <= _NONE or not is_busy(kernel):
        return None
    if track.spin.span >= limit and track.spin.since is not None:
        return VerdictKind.STALLED, because("spinning", since=iso(track.spin.since.at)), track.spin
    if track.stall.span < limit:
        return None
    since = kernel.executing_since or kernel.last_execution_start or track.stall.since
    reason = because(
        "busy_nothing_moves",
        since="?" if since is None else iso(since.at),
        seconds=track.stall.span.total_seconds(),
    )
    return VerdictKind.STALLED, reason, track.stall


def _busy_proves_nothing(kernel: Kernel, policy: Policy, track: Track, unreadable: Reason | None) -> bool:
    """Being busy stands for work until `stalled_timeout` after the last movement. Where movement can't be read, that
    is not yet stuck, but no longer proof either."""
    if not unreadable or policy.stalled_timeout <= _NONE or not is_busy(kernel):
        return False
    if track.moved is None or track.last is None:
        return False
    return track.last.since(track.moved) >= policy.stalled_timeout


def _quiet(kernel: Kernel, policy: Policy, track: Track, signals: Sequence[Signal]) -> _Decision:
    """Nothing shows use now, and everything could be read."""
    idle = track.idle
    seconds = idle.span.total_seconds()
    if idle.span < policy.window:
        if idle.since == kernel.started:
            return VerdictKind.ACTIVE, because("just_started", at=iso(kernel.started.at)), idle
        window = policy.window.total_seconds()
        return VerdictKind.ACTIVE, because("settling", seconds=seconds, window_seconds=window), idle
    if any(signal.name in ("cpu", "io") and signal.value is None for signal in signals):
        return VerdictKind.UNKNOWN, because("not_measured_yet"), idle
    if any(signal.unreadable is not None for signal in signals):
        return VerdictKind.IDLE, because("idle_by_other_signals", seconds=seconds), idle
    if kernel.waiting_for_input:
        return VerdictKind.IDLE, because("waiting_for_input", seconds=seconds), idle
    return VerdictKind.IDLE, because("idle", seconds=seconds, ratio=track.peak), idle


def _verdict(
    kernel: Kernel,
    usage: Usage,
    kind: VerdictKind,
    reason: Reason,
    clock: Clock,
    track: Track,
    signals: Sequence[Signal],
) -> Verdict:
    stuck = kind is VerdictKind.STALLED
    seconds = kernel.last_execution_seconds
    return Verdict(
        kind=kind,
        reason=reason,
        evidence=_evidence(signals, track),
        idle_since=None if clock.since is None else clock.since.at,
        idle_for=_NONE if stuck else clock.span,
        stalled_for=clock.span if stuck else _NONE,
        good_samples=clock.samples,
        longest_hole=clock.hole,
        holds_gpu=usage.holds_gpu,
        held_for=track.held_for,
        last_run=None if seconds is None else timedelta(seconds=seconds),
    )


def _evidence(signals: Sequence[Signal], track: Track) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(s.name, s.value, s.threshold, since, s.unreadable or s.note)
        for s, (_, _, since) in zip(signals, track.sides, strict=True)
    )
