"""The verdict: rules one by one on timelines, then properties over random ones. No test sleeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard.core.judgement import Track, by_other_signals, fresh_track, judge
from jupyter_gpu_guard.core.model import (
    GpuShare,
    Instant,
    Kernel,
    Link,
    Presence,
    ProcessScan,
    Reading,
    Sample,
    TelemetryState,
    Unknown,
    Usage,
    Verdict,
    VerdictKind,
)
from jupyter_gpu_guard.core.policy import Policy, Scope, UnknownPolicy
from jupyter_gpu_guard.core.reasons import because
from tests.core.world import GIB, GPU, Look, at, gpu, kernel, policy, row, sample, scan, unknown

ACTIVE, IDLE, STALLED, UNKNOWN = (
    VerdictKind.ACTIVE,
    VerdictKind.IDLE,
    VerdictKind.STALLED,
    VerdictKind.UNKNOWN,
)
MINUTE, HOUR = 60.0, 3600.0
STEP = 5.0


@dataclass(frozen=True)
class Moment:
    """What one round sees of one kernel."""

    sm: Reading = 0.0
    codec: Reading = 0.0
    memory: int = GIB
    cpu: Reading = 0.01
    io: Reading = 100.0
    busy: bool = False
    waiting: bool = False
    watts: float = 60.0
    drift: float = 0.0
    state: TelemetryState = TelemetryState.OK
    values: dict[str, Any] = field(default_factory=dict)  # of the kernel
    last_input: Instant | None = None
    holds: bool = True


QUIET = Moment()
TELEMETRY_LOST = Moment(state=TelemetryState.UNAVAILABLE)


class Timeline:
    """One kernel, judged round after round. `now` is the time of the last round."""

    def __init__(self, rules: Policy | None = None, now: float = 0.0, **values: Any) -> None:
        self.policy = rules or policy()
        self.kernel: Kernel = kernel(**values)
        self.now = now
        self.track: Track = fresh_track(self.kernel, at(now))
        self.verdict: Verdict | None = None
        self._began: Instant | None = None

    def look(self, seen: Moment, now: float) -> Verdict:
        """One round at `now`."""
        self.now = now
        self._message(seen, now)
        usage, found = self._usage(seen), self._sample(seen)
        obs = Look(found, _SCAN, (self.kernel,), drift=seen.drift).observation(now)
        self.track, verdict = judge(
            self.kernel, usage, Presence(seen.last_input), obs, self.policy, self.track
        )
        self.verdict = verdict
        return verdict

    def run(self, seen: Moment, seconds: float, step: float = STEP) -> Verdict:
        """So many seconds of the same; the last verdict."""
        return list(self.each(seen, seconds, step))[-1]

    def each(self, seen: Moment, seconds: float, step: float = STEP) -> Iterator[Verdict]:
        for _ in range(round(seconds / step)):
            yield self.look(seen, self.now + step)

    def _message(self, seen: Moment, now: float) -> None:
        values: dict[str, Any] = {
            "executing": int(seen.busy),
            "waiting_for_input": seen.waiting,
            **seen.values,
        }
        if seen.busy and not self.kernel.executing:
            values |= {"executing_since": at(now), "last_execution_start": at(now)}
        if self.kernel.executing and not seen.busy:
            values |= {"executing_since": None, "last_execution_end": at(now)}
        self.kernel = replace(self.kernel, **values)

    def _usage(self, seen: Moment) -> Usage:
        measured = at(self.now - self.now % MINUTE) if self.now >= MINUTE else None
        cpu, io = (seen.cpu, seen.io) if measured is not None else (None, None)
        means = Usage("k", cpu_cores=cpu, io_bytes_per_second=io, measured=measured)
        if not seen.holds:
            return means
        if seen.state is not TelemetryState.OK:
            reason = because("gpu_lost", call="x")
            return replace(means, holds_gpu=Unknown(reason), gpu_unreadable=reason)
        share = GpuShare(GPU, seen.memory, seen.sm, seen.codec, Link.KERNEL, frozenset({200}))
        return replace(means, shares=(share,), holds_gpu=True)

    def _sample(self, seen: Moment) -> Sample:
        reason = None if seen.state is TelemetryState.OK else because("gpu_lost", call="x")
        return sample(gpu(row(200), power_watts=seen.watts), now=self.now, state=seen.state, reason=reason)


_SCAN: ProcessScan = scan()


def told(verdict: Verdict) -> tuple[VerdictKind, str]:
    return verdict.kind, verdict.reason.code


def seconds(span: timedelta) -> float:
    return span.total_seconds()


def since(verdict: Verdict) -> float:
    assert verdict.idle_since is not None
    return (verdict.idle_since - at(0).at).total_seconds()


# --- becoming idle --------------------------------------------------------------------------------------------------


def test_a_kernel_that_never_ran_is_idle_from_its_start() -> None:
    line = Timeline()
    assert told(line.look(QUIET, 3)) == (ACTIVE, "just_started")
    verdict = line.run(QUIET, 9 * MINUTE)
    assert told(verdict) == (ACTIVE, "just_started")
    verdict = line.run(QUIET, 2 * MINUTE)
    assert told(verdict) == (IDLE, "idle")
    assert since(verdict) == 0
    assert seconds(verdict.idle_for) == line.now - 3  # the time before the first look was not observed


def test_idleness_needs_the_whole_window() -> None:
    line = Timeline()
    line.run(Moment(busy=True, sm=0.9), 5 * MINUTE)
    last = line.now
    kinds = {}
    for verdict in line.each(QUIET, 15 * MINUTE):
        kinds[line.now - last - STEP] = told(verdict)
    assert kinds[MINUTE + 35] == (ACTIVE, "settling")
    assert kinds[10 * MINUTE - STEP] == (ACTIVE, "settling")
    assert kinds[10 * MINUTE] == (IDLE, "idle")


def test_settling_says_how_long_it_has_been_quiet_and_how_long_is_needed() -> None:
    line = Timeline()
    line.run(Moment(sm=0.9), 5 * MINUTE)
    verdict = line.run(QUIET, 4 * MINUTE)
    assert dict(verdict.reason.params) == {"seconds": 4 * MINUTE, "window_seconds": 600.0}
    assert verdict.idle_for == timedelta(minutes=4)
    assert since(verdict) == 5 * MINUTE


def test_after_busy_the_full_timeout_is_granted() -> None:
    line = Timeline()
    line.run(Moment(busy=True, cpu=1.0), 3 * HOUR)
    verdict = line.look(QUIET, line.now + STEP)
    assert verdict.kind is ACTIVE
    assert verdict.idle_for == timedelta(0)
    assert since(verdict) == line.now


def test_idle_since_is_the_end_of_the_last_active_interval() -> None:
    line = Timeline()
    line.run(QUIET, 10 * MINUTE)
    line.run(Moment(sm=0.02), 30)
    end = line.now
    verdict = line.run(QUIET, 20 * MINUTE)
    assert since(verdict) == end
    assert verdict.idle_for == timedelta(minutes=20)
    assert verdict.good_samples == 20 * 60 / STEP
    assert verdict.longest_hole == timedelta(seconds=STEP)


def test_the_reason_of_idleness_carries_the_peak_of_the_idle_time() -> None:
    line = Timeline()
    line.run(Moment(sm=0.9), MINUTE)
    line.run(QUIET, MINUTE)
    line.run(Moment(sm=0.01), STEP)
    verdict = line.run(QUIET, 10 * MINUTE)
    assert dict(verdict.reason.params) == {"seconds": 11 * MINUTE + STEP, "ratio": 0.01}


def test_an_hour_later_a_single_sample_of_use_starts_the_clock_again() -> None:
    line = Timeline()
    line.run(QUIET, HOUR)
    assert told(line.look(Moment(sm=0.5), line.now + STEP)) == (ACTIVE, "gpu_in_use")
    assert line.run(QUIET, MINUTE).idle_for == timedelta(minutes=1)


# --- what is use ----------------------------------------------------------------------------------------------------

USES: dict[str, tuple[Moment, str]] = {
    "GPU": (Moment(sm=0.02), "gpu_in_use"),
    "encoder": (Moment(codec=0.7), "codec_in_use"),
    "CPU, as while tokenising": (Moment(cpu=1.0), "cpu_in_use"),
    "disk, as while saving a checkpoint": (Moment(io=4e8), "io_in_use"),
    "a cell": (Moment(busy=True), "executing"),
}


@pytest.mark.parametrize("use", USES)
def test_goes_on_as_long_as_there_is(use: str) -> None:
    seen, code = USES[use]
    line = Timeline()
    line.run(QUIET, 2 * MINUTE)
    line.run(seen, 65)
    verdicts = [told(verdict) for verdict in line.each(seen, HOUR)]
    assert set(verdicts) == {(ACTIVE, code)}
    assert line.run(QUIET, 5 * MINUTE).kind is ACTIVE
    assert line.run(QUIET, 8 * MINUTE).kind is IDLE


def test_rare_bursts_shorter_than_the_window_apart_are_work() -> None:
    """A loader-starved training: one spike each nine minutes, nothing else."""
    line = Timeline()
    kinds = set()
    for _ in range(20):
        kinds |= {v.kind for v in line.each(QUIET, 9 * MINUTE)}
        kinds.add(line.look(Moment(sm=0.3), line.now + STEP).kind)
    assert kinds == {ACTIVE}


def test_a_thread_that_prints_is_work() -> None:
    line = Timeline()
    kinds = set()
    for _ in range(60):
        kinds |= {v.kind for v in line.each(QUIET, MINUTE)}
        line.look(replace(QUIET, values={"last_output": at(line.now + 4)}), line.now + STEP)
    assert kinds == {ACTIVE}
    assert line.verdict is not None
    assert line.verdict.reason.code == "printing"


def test_a_person_at_the_notebook_is_reported_late_but_counts_for_when_it_was() -> None:
    line = Timeline()
    line.run(QUIET, HOUR)
    moment = line.now - 40
    seen = replace(QUIET, last_input=at(moment))
    assert told(line.look(seen, line.now + STEP)) == (ACTIVE, "present")
    verdict = line.run(seen, 10 * MINUTE)
    assert since(verdict) == moment
    assert seconds(verdict.idle_for) == line.now - moment
    assert verdict.kind is IDLE


def test_connections_and_messages_that_are_no_executions_are_no_use() -> None:
    line = Timeline()
    verdict = line.run(replace(QUIET, values={"connections": 5, "execution_state": "busy"}), HOUR)
    assert verdict.kind is IDLE


def test_a_kernel_that_is_starting_for_ever_is_idle() -> None:
    line = Timeline(execution_state="starting")
    assert line.run(QUIET, HOUR).kind is IDLE


def test_waiting_for_input_is_judged_like_idleness() -> None:
    line = Timeline()
    line.run(Moment(busy=True, cpu=1.0), MINUTE)
    asked = line.now
    verdict = line.run(Moment(busy=True, waiting=True), 30 * MINUTE)
    assert told(verdict) == (IDLE, "waiting_for_input")
    assert since(verdict) == asked
    answered = line.look(Moment(busy=True), line.now + STEP)
    assert told(answered) == (ACTIVE, "executing")


# --- minutes --------------------------------------------------------------------------------------------------------


def test_a_minute_of_cpu_is_judged_once_and_never_dated_back() -> None:
    line = Timeline()
    line.run(QUIET, 10 * MINUTE)
    line.look(Moment(cpu=0.5), 11 * MINUTE)  # the minute that ends now was busy
    verdict = line.look(Moment(cpu=0.5), 11 * MINUTE + STEP)
    assert told(verdict) == (ACTIVE, "cpu_in_use")
    assert since(verdict) == 11 * MINUTE
    line.run(Moment(cpu=0.5), 50)  # the same mean, seen eleven more times
    verdict = line.run(QUIET, 5 * MINUTE)
    assert since(verdict) == 11 * MINUTE


def test_no_idleness_before_the_first_period_is_over() -> None:
    never = Moment(cpu=unknown("proc_unreadable", pid="200"))
    assert told(Timeline().run(never, HOUR)) == (UNKNOWN, "proc_unreadable")
    line = Timeline(policy(window=timedelta(seconds=10), max_gap=timedelta(minutes=3)))
    assert told(line.run(QUIET, 30)) == (UNKNOWN, "not_measured_yet")


# --- holes ----------------------------------------------------------------------------------------------------------


def test_a_hole_of_nine_and_a_half_minutes_is_no_idleness() -> None:
    line = Timeline()
    line.run(Moment(busy=True, sm=0.9, cpu=1.0), 10 * MINUTE)
    line.run(QUIET, 30)
    verdict = line.look(QUIET, line.now + 9.5 * MINUTE)
    assert told(verdict) == (UNKNOWN, "hole_in_samples")
    assert verdict.idle_for == timedelta(0)
    assert since(verdict) == line.now
    assert line.run(QUIET, 9 * MINUTE).kind is ACTIVE
    assert line.run(QUIET, 2 * MINUTE).kind is IDLE


@pytest.mark.parametrize("hole", [100.0, 180.0])
def test_a_short_hole_pauses_the_clock(hole: float) -> None:
    line = Timeline()
    line.run(QUIET, 20 * MINUTE)
    before = line.verdict
    assert before is not None
    verdict = line.look(QUIET, line.now + hole)
    assert told(verdict) == (IDLE, "idle")
    assert verdict.idle_for == before.idle_for
    assert verdict.idle_since == before.idle_since
    assert verdict.longest_hole == timedelta(seconds=hole)


def test_unknown_pauses_then_starts_afresh() -> None:
    line = Timeline()
    line.run(QUIET, 20 * MINUTE)
    before = line.verdict
    assert before is not None
    spans = []
    for verdict in line.each(TELEMETRY_LOST, 5 * MINUTE):
        assert told(verdict) == (UNKNOWN, "gpu_lost")
        spans.append(seconds(verdict.idle_for))
    assert set(spans[: int(180 / STEP)]) == {seconds(before.idle_for)}
    assert set(spans[int(180 / STEP) :]) == {0.0}
    back = line.look(QUIET, line.now + STEP)
    assert told(back) == (UNKNOWN, "hole_in_samples")
    assert since(back) == line.now
    assert line.run(QUIET, 9 * MINUTE).kind is ACTIVE


def test_a_short_loss_of_telemetry_is_not_counted() -> None:
    line = Timeline()
    line.run(QUIET, 20 * MINUTE)
    before = line.verdict
    line.run(TELEMETRY_LOST, 2 * MINUTE)
    verdict = line.run(QUIET, MINUTE)
    assert before is not None
    # The step from the last bad round to the first good one is not observed either.
    assert verdict.idle_for == before.idle_for + timedelta(seconds=MINUTE - STEP)
    assert verdict.kind is IDLE


@pytest.mark.parametrize("drift", [6 * HOUR, -6 * HOUR, 90.0])
def test_a_clock_that_jumped_and_a_suspend_start_afresh(drift: float) -> None:
    """Asleep, the monotonic clock stands still while the wall clock runs on: that looks like a jump."""
    line = Timeline()
    line.run(QUIET, HOUR)
    verdict = line.look(replace(QUIET, drift=drift), line.now + STEP)
    assert told(verdict) == (UNKNOWN, "clock_jumped")
    assert verdict.idle_for == timedelta(0)
    assert line.run(QUIET, 9 * MINUTE).kind is ACTIVE
    assert line.run(QUIET, 2 * MINUTE).kind is IDLE


def test_a_clock_that_is_corrected_a_little_changes_nothing() -> None:
    line = Timeline()
    line.run(QUIET, HOUR)
    verdict = line.look(replace(QUIET, drift=-2.0), line.now + STEP)
    assert (verdict.kind, seconds(verdict.idle_for)) == (IDLE, HOUR)


def test_after_a_restart_of_the_server_a_kernel_is_counted_from_the_first_look() -> None:
    line = Timeline(now=5 * HOUR)  # it has been running for five hours, nobody knows how
    first = line.look(QUIET, 5 * HOUR + 2)
    assert told(first) == (UNKNOWN, "hole_in_samples")
    assert since(first) == 5 * HOUR + 2
    assert line.run(QUIET, 5 * MINUTE).kind is ACTIVE


def test_a_restarted_kernel_begins_again() -> None:
    line = Timeline()
    line.run(QUIET, HOUR)
    again = {"incarnation": 1, "start_ticks": 9999, "started": at(line.now)}
    verdict = line.look(replace(QUIET, values=again), line.now + STEP)
    assert told(verdict) == (ACTIVE, "just_started")
    assert verdict.held_for == timedelta(0)


def test_one_reading_seen_in_many_rounds_is_one_sample() -> None:
    line = Timeline()
    line.run(QUIET, 20 * MINUTE)
    before = line.verdict
    obs = Look(sample(gpu(row(200))), _SCAN, (line.kernel,)).observation(line.now)
    track = line.track
    for number in range(1, 10):
        late = replace(obs, now=at(line.now + number))
        track, verdict = judge(line.kernel, line._usage(QUIET), Presence(), late, line.policy, track)
    assert before is not None
    assert verdict.good_samples == before.good_samples


# --- unknown --------------------------------------------------------------------------------------------------------

UNREADABLE: dict[str, tuple[Moment, dict[str, Any], str]] = {
    "the driver": (TELEMETRY_LOST, {}, "gpu_lost"),
    "use of its GPU": (Moment(sm=unknown("gpu_lost"), codec=unknown("gpu_lost")), {}, "gpu_lost"),
    "a MIG device": (Moment(sm=unknown("mig_no_utilization")), {}, "mig_no_utilization"),
    "its CPU": (Moment(cpu=unknown("proc_unreadable", pid="1")), {}, "proc_unreadable"),
    "its disk": (Moment(io=unknown("proc_unreadable", pid="1")), {}, "proc_unreadable"),
    "its messages": (QUIET, {"watched": False}, "watch_not_attached"),
    "its process": (QUIET, {"pid": None, "start_ticks": None}, "kernel_pid_unknown"),
    "another machine": (QUIET, {"remote": True}, "remote_kernel"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_is_unknown_and_never_idle(what: str) -> None:
    seen, values, code = UNREADABLE[what]
    line = Timeline(**values)
    line.run(Moment(sm=0.5), 2 * MINUTE)
    line.run(seen, 2 * MINUTE)
    assert {told(v) for v in line.each(seen, 5 * HOUR, 30)} == {(UNKNOWN, code)}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_shows_work_beats_what_cannot_be_read(what: str) -> None:
    seen, values, _ = UNREADABLE[what]
    line = Timeline(**values)
    shows = replace(seen, io=4e8) if not isinstance(seen.io, Unknown) else replace(seen, cpu=2.0)
    line.run(shows, 2 * MINUTE)
    assert {v.kind for v in line.each(shows, 5 * HOUR, 30)} == {ACTIVE}


def test_a_busy_kernel_that_cannot_be_read_is_active_for_a_while_then_unknown() -> None:
    """Busy stands for work for stalled_timeout; then it would have to be seen to move."""
    line = Timeline()
    busy = replace(TELEMETRY_LOST, busy=True)
    assert {v.kind for v in line.each(busy, 2 * HOUR - MINUTE, 30)} == {ACTIVE}
    line.run(busy, 2 * MINUTE)
    assert {told(v) for v in line.each(busy, 10 * HOUR, 30)} == {(UNKNOWN, "gpu_lost")}


def test_a_kernel_that_verifiably_holds_no_gpu_is_judged_without_the_driver() -> None:
    line = Timeline()
    seen = replace(TELEMETRY_LOST, holds=False)
    assert line.run(seen, 20 * MINUTE).kind is IDLE


# --- judging by the other signals -----------------------------------------------------------------------------------

OTHER = policy(unknown_policy=UnknownPolicy.OTHER_SIGNALS)


class Unmatched(Timeline):
    """A process on a GPU that nobody uses may be this kernel's."""

    def _usage(self, seen: Moment) -> Usage:
        none = super()._usage(replace(seen, holds=False))
        return replace(none, holds_gpu=unknown("unmatched_gpu_process"), maybe_using=((GPU, 0.0),))


@pytest.mark.parametrize(
    ("scope", "told_is"), [(Scope.GPU, (UNKNOWN, "unmatched_gpu_process")), (Scope.ALL, (IDLE, "idle"))]
)
def test_where_only_kernels_with_a_gpu_are_meant_one_that_may_have_none_is_unknown(
    scope: Scope, told_is: tuple[VerdictKind, str]
) -> None:
    assert told(Unmatched(policy(scope=scope)).run(QUIET, HOUR)) == told_is


@pytest.mark.parametrize("code", ["mig_no_utilization", "not_supported"])
def test_other_signals_decide_where_use_is_unreadable_by_nature(code: str) -> None:
    line = Timeline(OTHER)
    verdict = line.run(Moment(sm=unknown(code), codec=unknown(code)), 20 * MINUTE)
    assert told(verdict) == (IDLE, "idle_by_other_signals")
    assert by_other_signals(verdict)
    # So do they, already, while a deadline is shown for a kernel that is still in use.
    assert by_other_signals(line.run(Moment(sm=unknown(code), cpu=1.0), 2 * MINUTE))


@pytest.mark.parametrize("code", ["gpu_lost", "driver_timeout", "no_permission", "pid_namespace"])
def test_other_signals_never_decide_after_an_error(code: str) -> None:
    verdict = Timeline(OTHER).run(Moment(sm=unknown(code)), 20 * MINUTE)
    assert told(verdict) == (UNKNOWN, code)
    assert not by_other_signals(verdict)


def test_where_everything_can_be_read_nothing_is_left_out() -> None:
    verdict = Timeline(OTHER).run(QUIET, 20 * MINUTE)
    assert told(verdict) == (IDLE, "idle")
    assert not by_other_signals(verdict)


# --- stalled --------------------------------------------------------------------------------------------------------

STUCK = Moment(busy=True)


def test_busy_counts_until_nothing_has_moved_for_stalled_timeout() -> None:
    line = Timeline()
    line.run(Moment(busy=True, sm=0.9, cpu=1.0), HOUR)
    last = line.now
    line.run(STUCK, 2 * HOUR - MINUTE)
    assert line.verdict is not None
    assert told(line.verdict) == (ACTIVE, "executing")
    verdict = line.run(STUCK, 2 * MINUTE)
    assert told(verdict) == (STALLED, "busy_nothing_moves")
    assert since(verdict) == last
    assert seconds(verdict.stalled_for) == line.now - last
    assert verdict.good_samples == (line.now - last) / STEP
    assert verdict.idle_for == timedelta(0)


MOVES = {
    "GPU": Moment(busy=True, sm=0.02),
    "decoder": Moment(busy=True, codec=0.1),
    "memory": Moment(busy=True, memory=GIB + 4096),
    "CPU": Moment(busy=True, cpu=0.2),
    "disk": Moment(busy=True, io=1e6),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_stuck_kernel_gets_on_when_it_moves_its(what: str) -> None:
    line = Timeline()
    line.run(STUCK, 2 * HOUR + MINUTE)
    line.run(MOVES[what], MINUTE)
    verdict = line.run(STUCK, MINUTE)
    assert told(verdict) == (ACTIVE, "executing")
    assert line.run(STUCK, 2 * HOUR).kind is STALLED


def test_output_and_a_new_cell_move_a_stuck_kernel() -> None:
    for value in ({"last_output": at(7300)}, {"last_execution_start": at(7300), "executing_since": at(7300)}):
        line = Timeline()
        assert line.run(STUCK, 7300 - STEP).kind is STALLED
        assert line.run(replace(STUCK, values=value), MINUTE).kind is ACTIVE


def test_a_stuck_kernel_with_a_person_there_is_left_alone() -> None:
    line = Timeline()
    line.run(STUCK, 3 * HOUR)
    seen = replace(STUCK, last_input=at(line.now))
    assert told(line.run(seen, 9 * MINUTE)) == (ACTIVE, "present")
    verdict = line.run(seen, 2 * MINUTE)
    assert verdict.kind is STALLED
    assert seconds(verdict.stalled_for) > 3 * HOUR


def test_a_stuck_kernel_that_ends_its_cell_is_granted_the_full_timeout() -> None:
    line = Timeline()
    line.run(STUCK, 3 * HOUR)
    verdict = line.look(QUIET, line.now + STEP)
    assert (verdict.kind, verdict.idle_for, verdict.stalled_for) == (ACTIVE, timedelta(0), timedelta(0))
    assert since(verdict) == line.now


def test_a_long_hole_starts_the_stalled_clock_afresh() -> None:
    line = Timeline()
    line.run(STUCK, 2 * HOUR - 10 * MINUTE)
    line.look(STUCK, line.now + HOUR)
    assert line.run(STUCK, HOUR).kind is ACTIVE
    assert line.run(STUCK, HOUR).kind is STALLED


def test_a_stuck_kernel_that_cannot_be_read_any_more_is_unknown() -> None:
    line = Timeline()
    assert line.run(STUCK, 3 * HOUR).kind is STALLED
    assert told(line.look(replace(TELEMETRY_LOST, busy=True), line.now + STEP)) == (UNKNOWN, "gpu_lost")
    assert line.look(STUCK, line.now + STEP).kind is STALLED


def test_stalled_timeout_0_means_never() -> None:
    line = Timeline(policy(stalled_timeout=timedelta(0)))
    assert told(line.run(STUCK, 10 * HOUR, 30)) == (ACTIVE, "executing")


def test_a_kernel_that_spins_is_stalled() -> None:
    """Fully in use, at the power of an idle card, a core busy with waiting."""
    spin = Moment(busy=True, sm=1.0, cpu=1.0, watts=80)
    line = Timeline()
    line.run(replace(spin, watts=300), HOUR)
    last = line.now
    assert told(line.run(spin, 2 * HOUR - MINUTE)) == (ACTIVE, "executing")
    verdict = line.run(spin, 2 * MINUTE)
    assert told(verdict) == (STALLED, "spinning")
    assert since(verdict) == last
    assert line.look(replace(spin, watts=300), line.now + STEP).kind is ACTIVE


@pytest.mark.parametrize("change", [{"io": 1e6}, {"codec": 0.5}, {"sm": 0.5}])
def test_what_does_more_than_spin_is_not_stalled(change: dict[str, float]) -> None:
    spin = Moment(busy=True, sm=1.0, cpu=1.0, watts=80)
    line = Timeline()
    for _ in range(4):
        line.run(spin, HOUR)
        verdict = line.run(replace(spin, **change), 2 * MINUTE)  # type: ignore[arg-type]
        assert verdict.kind is ACTIVE


# --- holding, runs, evidence ----------------------------------------------------------------------------------------


def test_held_for_runs_on_through_unknown_and_ends_when_nothing_is_held() -> None:
    line = Timeline()
    line.run(QUIET, HOUR)
    verdict = line.run(TELEMETRY_LOST, HOUR)
    assert seconds(verdict.held_for) == 2 * HOUR - STEP
    line.look(QUIET, line.now + HOUR)  # nobody looked for an hour
    assert line.verdict is not None
    assert seconds(line.verdict.held_for) == 3 * HOUR - STEP
    assert line.run(replace(QUIET, holds=False), MINUTE).held_for == timedelta(0)
    assert seconds(line.run(QUIET, MINUTE).held_for) == MINUTE - STEP


def test_what_may_be_held_is_not_held() -> None:
    assert Timeline().run(TELEMETRY_LOST, HOUR).held_for == timedelta(0)


def test_the_length_of_the_last_run_is_passed_on() -> None:
    assert Timeline().run(QUIET, MINUTE).last_run is None
    assert Timeline(last_execution_seconds=90.5).run(QUIET, MINUTE).last_run == timedelta(seconds=90.5)


def test_evidence_names_every_signal_with_value_threshold_and_since() -> None:
    line = Timeline()
    line.run(Moment(sm=0.5, cpu=1.0), 10 * MINUTE)
    last = line.now
    verdict = line.run(QUIET, 20 * MINUTE)
    found = {e.signal: e for e in verdict.evidence}
    assert set(found) == {"execution", "gpu", "codec", "gpu_memory", "io", "cpu", "output", "presence"}
    assert (found["gpu"].value, found["gpu"].threshold) == (0.0, 0.02)
    assert (found["cpu"].value, found["cpu"].threshold) == (0.01, 0.1)
    assert (found["io"].value, found["io"].threshold) == (100.0, 262144.0)
    assert found["gpu_memory"].value == GIB
    assert found["gpu"].since == at(last + STEP).at
    assert found["codec"].since == at(STEP).at
    lost = {e.signal: e for e in line.run(TELEMETRY_LOST, MINUTE).evidence}
    assert (lost["gpu"].value, lost["gpu"].reason) == (None, because("gpu_lost", call="x"))
    assert lost["gpu"].since == at(last + 20 * MINUTE + STEP).at


# --- properties -----------------------------------------------------------------------------------------------------

USE = st.sampled_from([moment for moment, _ in USES.values()])
BAD = st.sampled_from(
    [TELEMETRY_LOST, Moment(sm=unknown("gpu_lost")), Moment(cpu=unknown("proc_unreadable"))]
)
ANY = st.one_of(st.just(QUIET), USE, BAD)
SHORT = policy(
    window=timedelta(minutes=1), max_gap=timedelta(seconds=40), stalled_timeout=timedelta(minutes=3)
)
STEPS = st.sampled_from([5.0, 5.0, 5.0, 30.0, 39.0, 100.0])
LINES = st.lists(st.tuples(ANY, STEPS), min_size=1, max_size=30)


def play(line: Iterable[tuple[Moment, float]]) -> list[Verdict]:
    timeline = Timeline(SHORT)
    return [timeline.look(seen, timeline.now + step) for seen, step in line]


def _larger(one: Reading, two: Reading) -> Reading:
    return one if isinstance(one, Unknown) or isinstance(two, Unknown) else max(one, two)


@given(line=LINES, index=st.integers(0, 29), use=USE)
def test_more_activity_never_makes_idle_for_longer(
    line: list[tuple[Moment, float]], index: int, use: Moment
) -> None:
    where = index % len(line)
    seen, step = line[where]
    busier = replace(
        seen,
        sm=_larger(seen.sm, use.sm),
        codec=_larger(seen.codec, use.codec),
        io=_larger(seen.io, use.io),
        busy=use.busy or seen.busy,
    )
    changed = [*line[:where], (busier, step), *line[where + 1 :]]
    for before, after in zip(play(line), play(changed), strict=True):
        assert after.idle_for <= before.idle_for


@given(line=LINES, index=st.integers(0, 29), bad=BAD)
def test_unknown_instead_of_quiet_never_makes_idle_for_longer(
    line: list[tuple[Moment, float]], index: int, bad: Moment
) -> None:
    where = index % len(line)
    if line[where][0] != QUIET:
        return
    changed = [*line[:where], (bad, line[where][1]), *line[where + 1 :]]
    for before, after in zip(play(line), play(changed), strict=True):
        assert after.idle_for <= before.idle_for


@given(line=LINES)
def test_what_can_never_be(line: list[tuple[Moment, float]]) -> None:
    """Unknown is never idle and never counts; idle_for is never longer than what was observed."""
    now, last_bad, before = 0.0, 0.0, timedelta(0)
    for (seen, step), verdict in zip(line, play(line), strict=True):
        now += step
        bad = (
            isinstance(seen.sm, Unknown)
            or isinstance(seen.cpu, Unknown)
            or seen.state is not TelemetryState.OK
        )
        if bad and not isinstance(seen.cpu, Unknown):
            assert verdict.kind not in (IDLE, STALLED)
            assert verdict.idle_for <= before
        if step > 40:
            assert verdict.kind not in (IDLE, STALLED)
            last_bad = now
        if verdict.kind is IDLE:
            assert verdict.idle_for >= timedelta(minutes=1)
            assert seconds(verdict.idle_for) <= now - last_bad
            assert verdict.longest_hole <= timedelta(seconds=40)
        before = verdict.idle_for


@given(hole=st.floats(41, 1e6), quiet=st.integers(1, 100))
def test_a_hole_never_makes_a_kernel_idle(hole: float, quiet: int) -> None:
    line = Timeline(SHORT)
    line.run(Moment(sm=0.5), 30)
    line.run(QUIET, quiet * STEP)
    assert line.look(QUIET, line.now + hole).kind is UNKNOWN
    assert line.run(QUIET, 55).kind is not IDLE
