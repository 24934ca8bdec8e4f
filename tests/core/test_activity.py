"""Each signal by itself: what counts as use, what doesn't, and what can't be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpu_guard.core.activity import Memory, Signal, held_memory, is_busy, is_spinning, read_signals
from jupyter_gpu_guard.core.model import (
    GpuShare,
    Instant,
    Kernel,
    Link,
    Presence,
    Reading,
    TelemetryState,
    Unknown,
    Usage,
)
from jupyter_gpu_guard.core.reasons import because
from tests.core.world import GIB, GPU, Look, at, gpu, kernel, policy, row, sample, scan, unknown

NOW = 1000.0
QUIET = Usage("k", cpu_cores=0.01, io_bytes_per_second=10.0, measured=at(990))


def share(sm: Reading = 0.0, codec: Reading = 0.0, memory: int | Unknown = GIB, uuid: str = GPU) -> GpuShare:
    return GpuShare(uuid, memory, sm, codec, Link.KERNEL, frozenset({200}))


def holding(*shares: GpuShare, **values: object) -> Usage:
    return replace(QUIET, shares=shares, holds_gpu=True, **values)  # type: ignore[arg-type]


def signals(
    usage: Usage = QUIET,
    who: Kernel | None = None,
    presence: Presence | None = None,
    memory: Memory | None = None,
    look: Look | None = None,
    now: float = NOW,
) -> dict[str, Signal]:
    obs = (look or Look(sample(gpu(row(200))), scan())).observation(now)
    found = read_signals(who or kernel(), usage, presence or Presence(), obs, policy(), memory)
    return {signal.name: signal for signal in found}


def code(signal: Signal) -> str | None:
    return None if signal.why is None else signal.why.code


def test_every_signal_is_always_there() -> None:
    found = signals()
    assert set(found) == {"execution", "gpu", "codec", "gpu_memory", "io", "cpu", "output", "presence"}
    assert [name for name, signal in found.items() if signal.active is not None] == []
    assert [name for name, signal in found.items() if signal.unreadable is not None] == []


@pytest.mark.parametrize(("sm", "active"), [(0.0, False), (0.0199, False), (0.02, True), (1.0, True)])
def test_gpu_use_counts_from_its_threshold_on(sm: float, active: bool) -> None:
    found = signals(holding(share(sm)))["gpu"]
    assert (found.value, found.threshold, found.active) == (sm, 0.02, at(NOW) if active else None)
    assert code(found) == ("gpu_in_use" if active else None)


@pytest.mark.parametrize(("codec", "active"), [(0.0, False), (0.01, False), (0.02, True)])
def test_video_coding_counts_like_gpu_use(codec: float, active: bool) -> None:
    """An encoder can be busy while the rest of the GPU does nothing."""
    found = signals(holding(share(0.0, codec)))
    assert (found["codec"].active is not None, found["gpu"].active) == (active, None)


def test_one_busy_gpu_of_several_is_use() -> None:
    found = signals(holding(share(0.0), share(0.8, uuid="GPU-1")))["gpu"]
    assert (found.value, code(found)) == (0.8, "gpu_in_use")


def test_use_whose_owner_is_unclear_counts() -> None:
    found = signals(replace(QUIET, holds_gpu=unknown("pid_namespace"), maybe_using=((GPU, 0.6),)))["gpu"]
    assert (found.value, code(found), found.unreadable) == (0.6, "device_in_use_owner_unclear", None)


HIDDEN = {
    "its share": holding(share(unknown("not_supported"))),
    "a list": holding(share(0.0), gpu_unreadable=because("not_supported")),
    "what it may hold": replace(QUIET, holds_gpu=unknown("not_supported")),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_gpu_use_is_unreadable_for(what: str) -> None:
    found = signals(HIDDEN[what])["gpu"]
    assert found.unreadable == because("not_supported")
    assert found.active is None


def test_nothing_used_by_anybody_is_readable_even_if_who_holds_what_is_not() -> None:
    found = signals(replace(QUIET, holds_gpu=unknown("pid_namespace"), maybe_using=((GPU, 0.0),)))["gpu"]
    assert (found.value, found.unreadable, found.active) == (0.0, None, None)


def test_an_unreadable_share_beside_a_busy_one_is_both() -> None:
    found = signals(holding(share(unknown("gpu_lost")), share(0.9, uuid="GPU-1")))["gpu"]
    assert (found.value, code(found)) == (0.9, "gpu_in_use")
    assert found.unreadable == because("gpu_lost")


def test_no_gpu_to_read_is_a_note_and_no_obstacle() -> None:
    nothing = Look(sample(state=TelemetryState.NONE, reason=because("no_gpu")), scan())
    found = signals(look=nothing)["gpu"]
    assert (found.value, found.unreadable, found.note) == (None, None, because("no_gpu"))


def test_an_old_sample_says_nothing_of_now() -> None:
    obs = Look(sample(gpu(row(200))), scan()).observation(NOW)
    obs = replace(obs, sample=replace(obs.sample, taken=at(NOW - 181)))
    found = read_signals(kernel(), QUIET, Presence(), obs, policy(), None)
    gpu_signal = next(signal for signal in found if signal.name == "gpu")
    assert gpu_signal.unreadable == because("hole_in_samples", seconds=181.0)


MEMORY = [
    (None, (share(),), False),  # the first look compares with nothing
    (((GPU, GIB),), (share(),), False),
    (((GPU, GIB),), (share(memory=GIB + 1),), True),
    (((GPU, GIB),), (share(memory=unknown("not_available")),), False),
    ((), (share(),), True),
    (((GPU, GIB),), (), True),
    (((GPU, GIB),), (share(), share(uuid="GPU-1")), True),
]


@pytest.mark.parametrize(("before", "shares", "changed"), MEMORY)
def test_memory_counts_by_its_change(
    before: Memory | None, shares: tuple[GpuShare, ...], changed: bool
) -> None:
    found = signals(replace(QUIET, shares=shares, holds_gpu=bool(shares)), memory=before)["gpu_memory"]
    assert (found.active is not None) is changed


def test_memory_that_was_unreadable_for_a_while_is_compared_with_what_was_last_seen() -> None:
    lost = Look(sample(state=TelemetryState.UNAVAILABLE, reason=because("gpu_lost")), scan()).observation(NOW)
    kept = held_memory(replace(QUIET, holds_gpu=unknown("gpu_lost")), lost, ((GPU, GIB),))
    assert kept == ((GPU, GIB),)
    assert signals(holding(share(memory=2 * GIB)), memory=kept)["gpu_memory"].active == at(NOW)
    assert signals(holding(share()), memory=kept)["gpu_memory"].active is None


@pytest.mark.parametrize(("cores", "active"), [(0.0, False), (0.0999, False), (0.1, True), (8.0, True)])
def test_cpu_counts_for_the_end_of_its_minute(cores: float, active: bool) -> None:
    found = signals(replace(QUIET, cpu_cores=cores))["cpu"]
    assert (found.value, found.threshold, found.active) == (cores, 0.1, at(990) if active else None)


@pytest.mark.parametrize(("rate", "active"), [(262143.0, False), (262144.0, True)])
def test_io_counts_for_the_end_of_its_minute(rate: float, active: bool) -> None:
    found = signals(replace(QUIET, io_bytes_per_second=rate))["io"]
    assert (found.threshold, found.active) == (262144.0, at(990) if active else None)
    assert code(found) == ("io_in_use" if active else None)


def test_means_that_are_not_there_yet_unreadable_or_old() -> None:
    young = signals(replace(QUIET, cpu_cores=None, io_bytes_per_second=None, measured=None))
    assert (young["cpu"].unreadable, young["cpu"].note) == (None, because("not_measured_yet"))
    broken = signals(replace(QUIET, cpu_cores=unknown("proc_unreadable", pid="7")))
    assert broken["cpu"].unreadable == because("proc_unreadable", pid="7")
    old = signals(replace(QUIET, measured=at(NOW - 181)))
    assert old["cpu"].unreadable == because("hole_in_samples", seconds=181.0)
    assert old["io"].unreadable == because("hole_in_samples", seconds=181.0)


EXECUTIONS: list[tuple[dict[str, object], Instant | None, bool]] = [
    ({"executing": 1, "executing_since": at(10)}, at(NOW), True),
    ({"executing": 1, "executing_since": at(10), "waiting_for_input": True}, at(10), False),
    ({"executing": 1, "executing_since": at(10), "execution_state": "dead"}, at(10), False),
    ({"last_execution_end": at(40)}, at(40), False),
    ({}, None, False),
    ({"execution_state": "starting"}, None, False),
    ({"execution_state": "busy"}, None, False),  # busy with completion, comm traffic or debugging
]


@pytest.mark.parametrize(("values", "active", "busy"), EXECUTIONS)
def test_executions(values: dict[str, object], active: Instant | None, busy: bool) -> None:
    start = values.get("executing_since", at(20) if "last_execution_end" in values else None)
    who = replace(kernel(), last_execution_start=start, **values)  # type: ignore[arg-type]
    assert is_busy(who) is busy
    assert signals(who=who)["execution"].active == active


def test_messages_that_are_not_watched_hide_executions() -> None:
    assert signals(who=kernel(watched=False))["execution"].unreadable == because("watch_not_attached")


def test_output_of_a_thread_and_people_count_for_their_moment() -> None:
    found = signals(who=kernel(last_output=at(800)), presence=Presence(at(700)))
    assert (found["output"].active, found["output"].value, code(found["output"])) == (
        at(800),
        200.0,
        "printing",
    )
    assert (found["presence"].active, found["presence"].value, code(found["presence"])) == (
        at(700),
        300.0,
        "present",
    )


def test_a_moment_in_the_future_counts_for_now() -> None:
    assert signals(presence=Presence(at(NOW + 50)))["presence"].active == at(NOW)


SPINS = [
    ((share(1.0),), 60.0, 400.0, True),
    ((share(0.9),), 119.0, 400.0, True),
    ((share(0.89),), 60.0, 400.0, False),
    ((share(1.0),), 120.0, 400.0, False),
    ((share(1.0),), unknown("not_supported"), 400.0, False),
    ((share(1.0),), 60.0, unknown("not_supported"), False),
    ((share(0.0),), 60.0, 400.0, False),
    ((share(unknown("gpu_lost")),), 60.0, 400.0, False),
    ((share(1.0), share(0.0, uuid="GPU-1")), 60.0, 400.0, True),  # the partner that it waits for
    ((share(1.0), share(0.5, uuid="GPU-1")), 60.0, 400.0, False),
]


@pytest.mark.parametrize(("shares", "power", "limit", "expected"), SPINS)
def test_spinning(shares: tuple[GpuShare, ...], power: Reading, limit: Reading, expected: bool) -> None:
    cards = [gpu(power_watts=power, power_limit_watts=limit, uuid=s.uuid) for s in shares]
    assert is_spinning(holding(*shares), cards, policy()) is expected
