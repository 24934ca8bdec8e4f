"""Who owns what: by pid, ancestry, marker, namespace, and where that can't be told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_guard.core.attribution import AttributionMemory, attribute
from jupyter_gpu_guard.core.model import (
    Attribution,
    Gpu,
    Kernel,
    Link,
    Process,
    ProcessKey,
    ProcessScan,
    Reading,
    Sample,
    TelemetryState,
    Terminal,
    Unknown,
    Usage,
)
from jupyter_gpu_guard.core.reasons import because
from tests.core.world import (
    BASE,
    GIB,
    GPU,
    INIT,
    SERVER,
    SHELL,
    THEIRS,
    Look,
    gpu,
    kernel,
    key,
    measured,
    process,
    row,
    sample,
    scan,
    unknown,
)

KERNEL = process(200, SERVER, marker="k", opens_gpu=True)


def run(
    found: Sample,
    processes: ProcessScan,
    *kernels: Kernel,
    terminals: tuple[Terminal, ...] = (),
    rounds: int = 1,
    memory: AttributionMemory | None = None,
) -> tuple[Attribution, AttributionMemory]:
    """The same thing seen in so many rounds; the last attribution."""
    memory = memory or AttributionMemory()
    for number in range(rounds):
        look = Look(found, processes, kernels or (kernel(),), terminals)
        result, memory = attribute(look.observation(5.0 * number), memory)
    return result, memory


def usage(found: Sample, processes: ProcessScan, *kernels: Kernel, rounds: int = 1) -> Usage:
    return run(found, processes, *kernels, rounds=rounds)[0].usages["k"]


def reason_of(value: object) -> str:
    assert isinstance(value, Unknown), value
    return value.reason.code


# --- the ways of belonging ------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[tuple[Process, ...], int, Link]] = {
    "the kernel itself": ((KERNEL,), 200, Link.KERNEL),
    "its grandchild": (
        (KERNEL, process(210, 200), process(220, 210, opens_gpu=True)),
        220,
        Link.DESCENDANT,
    ),
    "a grandchild that became root": (
        (KERNEL, process(210, 200, uid=0, cgroup="")),
        210,
        Link.DESCENDANT,
    ),
    "re-parented, with the marker": (
        (KERNEL, process(300, INIT, marker="k", opens_gpu=True)),
        300,
        Link.DETACHED,
    ),
    "below a re-parented one that cleared its environment": (
        (KERNEL, process(300, INIT, marker="k"), process(310, 300, opens_gpu=True)),
        310,
        Link.DETACHED,
    ),
    "in another session and cgroup": (
        (KERNEL, process(300, INIT, marker="k", session=300, cgroup="/other", opens_gpu=True)),
        300,
        Link.DETACHED,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_belongs_to_the_kernel(way: str) -> None:
    processes, pid, link = WAYS[way]
    found = usage(sample(gpu(row(pid, 0.5, 3 * GIB))), scan(*processes))
    (share,) = found.shares
    assert (share.link, share.memory_bytes, share.sm_ratio, share.pids) == (
        link,
        3 * GIB,
        0.5,
        frozenset({pid}),
    )
    assert found.holds_gpu is True
    assert (key(pid), link) in found.tree
    assert found.gpu_unreadable is None


STRANGERS: dict[str, tuple[tuple[Process, ...], int, str]] = {
    "another user's": ((process(300, INIT, uid=THEIRS),), 300, "foreign"),
    "in a terminal": ((process(150, SERVER), process(300, 150, opens_gpu=True)), 300, "terminal"),
    "the server's helper": ((process(300, SERVER, opens_gpu=True),), 300, "server"),
    "the server": ((), SERVER, "server"),
    "left by a dead kernel": ((process(300, INIT, marker="dead", opens_gpu=True),), 300, "orphan"),
    "left by the process that this kernel had before its restart": (
        (process(190, INIT, marker="k", opens_gpu=True),),
        190,
        "orphan",
    ),
    "of a kernel of another server": (
        (process(300, SHELL), process(310, 300, marker="theirs", opens_gpu=True)),
        310,
        "unattributed",
    ),
    "the browser that the shell started": ((process(300, SHELL, opens_gpu=True),), 300, "unattributed"),
    "of another login, older than the server": (
        (process(60, INIT), process(300, 60, opens_gpu=True)),
        300,
        "unattributed",
    ),
    "a zombie": ((process(300, 200, state="Z", marker="k"),), 300, "unattributed"),
    "gone": ((), 999, "unattributed"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_belongs_to_no_kernel(who: str) -> None:
    processes, pid, owner = STRANGERS[who]
    quiet = replace(KERNEL, opens_gpu=False)
    result, _ = run(
        sample(gpu(row(pid, 0.4, 2 * GIB))), scan(quiet, *processes), terminals=(Terminal("1", 150, None),)
    )
    (other,) = result.others
    assert (other.owner, other.memory_bytes, other.sm_ratio) == (owner, 2 * GIB, 0.4)
    assert other.pid == (None if owner == "foreign" else pid)
    assert other.terminal == ("1" if owner == "terminal" else None)
    assert result.usages["k"].shares == ()
    # The check for open GPU files works here and says that the kernel has none: told apart.
    assert result.usages["k"].maybe_using == ()
    assert result.usages["k"].holds_gpu is False


def test_a_parent_younger_than_its_child_is_no_parent() -> None:
    child = process(300, 200, opens_gpu=True, key=ProcessKey(300, 1500))
    reused = replace(KERNEL, key=ProcessKey(200, 2000))
    result, _ = run(sample(gpu(row(300))), scan(reused, child))
    assert result.usages["k"].shares == ()


def test_a_kernel_pid_with_another_start_time_is_not_the_kernel() -> None:
    found = usage(sample(gpu(row(200))), scan(replace(KERNEL, marker=None, key=ProcessKey(200, 2500))))
    assert found.shares == ()
    assert found.tree == ()


def test_two_kernels_do_not_share() -> None:
    other = process(400, SERVER, marker="m", opens_gpu=True)
    found = sample(gpu(row(200, 0.3, GIB), row(400, 0.6, 2 * GIB)))
    result, _ = run(found, scan(KERNEL, other), kernel(), kernel("m", 400))
    assert {k: (u.shares[0].memory_bytes, u.shares[0].sm_ratio) for k, u in result.usages.items()} == {
        "k": (GIB, 0.3),
        "m": (2 * GIB, 0.6),
    }


def test_a_kernel_below_another_server_that_lost_its_parent_is_no_orphan() -> None:
    """Its server lives, although that was started with nohup: the topmost of the chain carries no marker."""
    theirs = (process(300, INIT), process(310, 300, marker="theirs", opens_gpu=True))
    result, _ = run(sample(gpu(row(310))), scan(KERNEL, *theirs))
    assert [other.owner for other in result.others] == ["unattributed"]


def test_the_marker_that_the_server_itself_has_says_nothing() -> None:
    """A server that was started from a kernel of another server hands that kernel's marker to everything."""
    base = (BASE[0], BASE[1], replace(BASE[2], marker="outer"))
    leftover = process(300, INIT, marker="outer", opens_gpu=True)
    result, _ = run(sample(gpu(row(300))), scan(KERNEL, leftover, base=base))
    assert [other.owner for other in result.others] == ["unattributed"]


def test_what_loses_its_parent_below_a_server_that_is_pid_1() -> None:
    server = process(1, 0, opens_gpu=True)
    mine = process(200, 1, marker="k", opens_gpu=True)
    detached = process(300, 1, marker="k", opens_gpu=True)
    orphan = process(301, 1, marker="dead", opens_gpu=True)
    helper = process(302, 1, opens_gpu=True)
    found = scan(mine, detached, orphan, helper, base=(server,), server_key=server.key)
    result, _ = run(sample(gpu(row(300), row(301), row(302))), found)
    assert result.usages["k"].shares[0].link is Link.DETACHED
    assert [other.owner for other in result.others] == ["orphan", "server"]


# --- sums -----------------------------------------------------------------------------------------------------------


def test_processes_of_one_kernel_are_summed_and_the_least_sure_link_is_named() -> None:
    child = process(210, 200, opens_gpu=True)
    (share,) = usage(sample(gpu(row(200, 0.7, GIB), row(210, 0.6, 2 * GIB))), scan(KERNEL, child)).shares
    assert (share.memory_bytes, share.sm_ratio, share.link) == (3 * GIB, 1.0, Link.DESCENDANT)
    assert share.pids == frozenset({200, 210})


def test_a_sum_with_an_unknown_part_is_unknown_but_its_known_part_still_shows_use() -> None:
    child = process(210, 200, opens_gpu=True)
    rows = (row(200, 0.7, GIB), row(210, unknown("not_supported"), unknown("not_available")))
    found = usage(sample(gpu(*rows)), scan(KERNEL, child))
    assert reason_of(found.shares[0].sm_ratio) == "not_supported"
    assert reason_of(found.shares[0].memory_bytes) == "not_available"
    assert found.maybe_using == ((GPU, 0.7),)


def test_a_process_that_is_listed_twice_counts_once() -> None:
    twice = (row(200, 0.2, GIB), row(200, 0.5, unknown("not_available")), row(200, 0.1, 3 * GIB))
    (share,) = usage(sample(gpu(*twice)), scan(KERNEL)).shares
    assert (share.memory_bytes, share.sm_ratio) == (3 * GIB, 0.5)


def test_one_process_on_two_gpus_has_a_share_of_each() -> None:
    found = usage(sample(gpu(row(200, 0.9)), gpu(row(200, 0.0, 5), uuid="GPU-1", index=1)), scan(KERNEL))
    assert [(s.uuid, s.sm_ratio) for s in found.shares] == [(GPU, 0.9), ("GPU-1", 0.0)]


# --- numbers that mean other processes ------------------------------------------------------------------------------


def test_a_number_that_an_innocent_local_process_has_is_not_that_process() -> None:
    """Kernel k and its child have a GPU open, kernel m has not; the driver names m's pid: a number from elsewhere."""
    innocent = process(400, SERVER, marker="m")
    found = scan(KERNEL, process(210, 200, opens_gpu=True), innocent)
    result, memory = run(sample(gpu(row(400, 0.9))), found, kernel(), kernel("m", 400))
    assert result.usages["m"].shares == ()
    assert result.usages["m"].maybe_using == ()
    assert result.usages["k"].maybe_using == ((GPU, 0.9),)
    assert reason_of(result.usages["k"].holds_gpu) == "unmatched_gpu_process"
    assert memory.foreign_pids
    alone, _ = run(sample(gpu(row(400, 0.9))), scan(KERNEL, innocent), kernel(), kernel("m", 400))
    assert alone.usages["k"].shares[0].link is Link.INFERRED


def test_where_the_check_finds_nothing_on_this_platform_the_number_decides() -> None:
    """Device files may have other names; a "no" of every process, the server included, is no evidence."""
    base = (BASE[0], BASE[1], replace(BASE[2], opens_gpu=False))
    found = usage(sample(gpu(row(200, 0.9))), scan(replace(KERNEL, opens_gpu=False), base=base))
    assert found.shares[0].link is Link.KERNEL


def test_a_process_that_cannot_be_asked_is_believed_until_the_numbers_are_seen_to_be_foreign() -> None:
    closed = replace(KERNEL, opens_gpu=unknown("proc_unreadable"))
    assert usage(sample(gpu(row(200, 0.9))), scan(closed)).shares[0].sm_ratio == 0.9
    found = usage(sample(gpu(row(200, 0.9), row(70000, 0.1))), scan(closed), rounds=3)
    assert found.shares == ()
    assert found.maybe_using == ((GPU, 0.9),)


def test_a_reused_pid_is_nobodys_until_it_opens_a_gpu() -> None:
    base = (BASE[0], BASE[1], replace(BASE[2], opens_gpu=False))
    old = process(300, 200)
    _, memory = run(sample(gpu(row(300))), scan(replace(KERNEL, opens_gpu=False), old, base=base))
    heir = replace(old, key=ProcessKey(300, 9000))
    after = scan(replace(KERNEL, opens_gpu=False), heir, base=base)
    result, _ = run(sample(gpu(row(300))), after, memory=memory, rounds=2)
    assert result.usages["k"].shares == ()
    assert [other.owner for other in result.others] == ["unattributed"]
    opened = scan(replace(KERNEL, opens_gpu=False), replace(heir, opens_gpu=True), base=base)
    result, _ = run(sample(gpu(row(300))), opened, memory=memory)
    assert result.usages["k"].shares[0].link is Link.DESCENDANT


def test_the_only_local_opener_is_inferred_once_the_numbers_are_seen_to_be_foreign() -> None:
    found = sample(gpu(row(70000, 0.6, 7 * GIB)))
    first = usage(found, scan(KERNEL), rounds=1)
    assert first.shares == ()
    assert first.maybe_using == ((GPU, 0.6),)
    (share,) = usage(found, scan(KERNEL), rounds=2).shares
    assert (share.link, share.sm_ratio, share.memory_bytes) == (Link.INFERRED, 0.6, 7 * GIB)


NOT_INFERRED = {
    "two local openers": (scan(KERNEL, process(400, SERVER, opens_gpu=True)), sample(gpu(row(70000, 0.6)))),
    "two processes on the GPU": (scan(KERNEL), sample(gpu(row(70000, 0.6), row(70001, 0.0)))),
    "one that could not be asked": (
        scan(KERNEL, process(300, INIT, opens_gpu=unknown("proc_unreadable"))),
        sample(gpu(row(70000, 0.6))),
    ),
    "numbers that match": (
        scan(KERNEL),
        sample(gpu(row(70000, 0.6)), gpu(row(200, 0.0), uuid="GPU-1", index=1)),
    ),
}


@pytest.mark.parametrize("case", NOT_INFERRED)
def test_nothing_is_inferred_with(case: str) -> None:
    processes, found = NOT_INFERRED[case]
    shares = usage(found, processes, rounds=3).shares
    assert all(share.link is not Link.INFERRED for share in shares)


def test_samples_of_another_namespace_make_use_unknown_never_zero() -> None:
    """HAMi-core#112: the list says 324, the samples say 645400."""
    found = usage(
        sample(gpu(row(200, 0.0), stray_samples=((645400, 0.8),), utilization_ratio=0.7)), scan(KERNEL)
    )
    assert reason_of(found.shares[0].sm_ratio) == "pid_namespace"
    assert reason_of(found.shares[0].codec_ratio) == "pid_namespace"
    assert found.maybe_using == ((GPU, 0.8),)
    assert found.shares[0].memory_bytes == GIB


def test_once_samples_were_foreign_a_zero_is_believed_only_where_the_gpu_says_zero_too() -> None:
    _, memory = run(sample(gpu(row(200), stray_samples=((645400, 0.8),))), scan(KERNEL))
    for ratio, believed in ((0.3, False), (unknown("gpu_lost"), False), (0.0, True)):
        result, _ = run(sample(gpu(row(200), utilization_ratio=ratio)), scan(KERNEL), memory=memory)
        assert (result.usages["k"].shares[0].sm_ratio == 0.0) is believed, ratio


def test_a_stray_sample_beside_matching_ones_is_somebody_elses() -> None:
    other = process(400, SERVER, marker="m", opens_gpu=True)
    found = sample(gpu(row(200, 0.0), row(400, 0.4), stray_samples=((99, 0.8),)))
    result, _ = run(found, scan(KERNEL, other), kernel(), kernel("m", 400))
    assert result.usages["k"].shares[0].sm_ratio == 0.0


def test_a_busy_gpu_without_a_list_counts_for_every_kernel_that_may_own_it() -> None:
    plain = process(400, SERVER, marker="m")
    found = sample(gpu(utilization_ratio=0.9))
    result, _ = run(found, scan(KERNEL, plain), kernel(), kernel("m", 400))
    assert result.usages["k"].maybe_using == ((GPU, 0.9),)
    assert result.usages["m"].maybe_using == ()
    assert result.usages["m"].holds_gpu is False


def test_foreign_processes_whose_use_is_known_to_be_nothing_leave_no_doubt_of_use() -> None:
    found = usage(sample(gpu(row(70000, 0.0), row(70001, 0.0))), scan(KERNEL), rounds=2)
    assert found.maybe_using == ((GPU, 0.0),)
    assert found.gpu_unreadable is None
    assert reason_of(found.holds_gpu) == "unmatched_gpu_process"


def test_another_users_process_is_told_apart_unless_a_kernel_may_be_meant() -> None:
    theirs = process(300, INIT, uid=THEIRS)
    found = sample(gpu(row(300, 0.9)))
    assert usage(found, scan(KERNEL, theirs)).maybe_using == ((GPU, 0.9),)
    assert usage(found, scan(KERNEL, theirs, host_pids=True)).maybe_using == ()
    listed = sample(gpu(row(300, 0.9), row(200, 0.0)))
    assert usage(listed, scan(KERNEL, theirs)).maybe_using == ()


def test_gpu_use_of_a_loose_process_may_be_any_kernels() -> None:
    """tmux started by hand: re-parented, no marker, our user and cgroup, younger than the server."""
    result, _ = run(sample(gpu(row(300, 0.9))), scan(KERNEL, process(300, INIT, opens_gpu=True)))
    assert result.usages["k"].maybe_using == ((GPU, 0.9),)
    assert result.usages["k"].holds_gpu is False
    assert result.others[0].owner == "unattributed"


# --- what can't be read ---------------------------------------------------------------------------------------------


BROKEN: dict[str, tuple[Unknown, Reading]] = {
    "lost": (unknown("gpu_lost"), unknown("gpu_lost")),
    "forbidden": (unknown("no_permission", call="nvmlDeviceGetComputeRunningProcesses"), 0.0),
    "without a handle": (
        unknown("driver_error", call="nvmlDeviceGetHandleByIndex", nvml_error="Unknown (999)"),
        unknown("driver_error", call="nvmlDeviceGetHandleByIndex", nvml_error="Unknown (999)"),
    ),
}


def broken(how: str) -> Gpu:
    processes, use = BROKEN[how]
    return gpu(uuid="GPU-1", index=1, processes=processes, utilization_ratio=use)


@pytest.mark.parametrize("how", BROKEN)
def test_a_card_that_fails_hides_nothing_of_kernels_that_are_on_others(how: str) -> None:
    found, processes = sample(gpu(row(200, 0.0)), broken(how)), scan(KERNEL, process(400, SERVER, marker="m"))
    result, _ = run(found, processes, kernel(), kernel("m", 400), rounds=3)
    mine, plain = result.usages["k"], result.usages["m"]
    assert (mine.holds_gpu, mine.gpu_unreadable, mine.maybe_using) == (True, None, ())
    assert (plain.holds_gpu, plain.gpu_unreadable, plain.maybe_using) == (False, None, ())


@pytest.mark.parametrize("how", BROKEN)
def test_who_was_on_a_card_when_it_failed_is_unknown_until_it_can_be_read(how: str) -> None:
    """Also where it holds another card too, of which everything can be read."""
    there = gpu(row(200, 0.0), uuid="GPU-1", index=1)
    for other in (gpu(), gpu(row(200, 0.0))):
        _, memory = run(sample(other, there), scan(KERNEL))
        result, memory = run(sample(other, broken(how)), scan(KERNEL), rounds=3, memory=memory)
        unread = result.usages["k"].gpu_unreadable
        assert unread is not None
        assert unread == BROKEN[how][0].reason
        result, _ = run(sample(other, there), scan(KERNEL), memory=memory)
        assert result.usages["k"].gpu_unreadable is None


@pytest.mark.parametrize(
    ("how", "hidden"), [("lost", False), ("forbidden", True), ("without a handle", True)]
)
def test_who_has_a_gpu_open_and_is_on_no_list_may_be_on_the_card_that_fails(how: str, hidden: bool) -> None:
    """Nobody can be on one that is off the bus."""
    mine = usage(sample(gpu(), broken(how)), scan(KERNEL, host_pids=True))
    assert (mine.gpu_unreadable is not None) is hidden
    assert isinstance(mine.holds_gpu, Unknown) is hidden


def test_use_of_a_card_without_a_list_counts_for_all_that_have_a_gpu_open() -> None:
    busy = replace(broken("forbidden"), utilization_ratio=0.4)
    mine = usage(sample(gpu(row(200, 0.0)), busy), scan(KERNEL))
    assert mine.maybe_using == (("GPU-1", 0.4),)
    assert mine.gpu_unreadable is None


def test_a_card_of_which_nothing_can_be_read_but_its_name_is_unknown_for_all_that_have_a_gpu_open() -> None:
    dark = replace(broken("forbidden"), utilization_ratio=unknown("not_supported"))
    unread = usage(sample(gpu(row(200, 0.0)), dark), scan(KERNEL)).gpu_unreadable
    assert unread is not None
    assert unread.code == "no_permission"


STATES = [
    (TelemetryState.UNAVAILABLE, "driver_not_loaded", True, "driver_not_loaded"),
    (TelemetryState.STALE, "driver_timeout", True, "driver_timeout"),
    (TelemetryState.UNAVAILABLE, "library_not_found", False, None),
    (TelemetryState.NONE, "gpu_disabled", True, "gpu_disabled"),
    (TelemetryState.NONE, "gpu_disabled", False, None),
    (TelemetryState.NONE, "no_gpu", False, None),
    (TelemetryState.NONE, "asleep", False, None),
]


@pytest.mark.parametrize(("state", "code", "opens", "expected"), STATES)
def test_without_a_sample(state: TelemetryState, code: str, opens: bool, expected: str | None) -> None:
    """Where the check works, what a kernel has open decides; the last good list is for display only."""
    found = sample(gpu(row(200, 0.9)), state=state, reason=because(code))
    mine = usage(found, scan(replace(KERNEL, opens_gpu=opens)))
    assert mine.shares == ()
    assert (None if mine.gpu_unreadable is None else mine.gpu_unreadable.code) == expected
    assert (None if mine.holds_gpu is False else reason_of(mine.holds_gpu)) == expected


def test_without_a_sample_and_without_a_check_that_works_every_kernel_may_have_a_gpu() -> None:
    base = (BASE[0], BASE[1], replace(BASE[2], opens_gpu=False))
    found = sample(state=TelemetryState.UNAVAILABLE, reason=because("library_not_found"))
    mine = usage(found, scan(replace(KERNEL, opens_gpu=False), base=base))
    assert reason_of(mine.holds_gpu) == "library_not_found"


@pytest.mark.parametrize(("remote", "code"), [(True, "remote_kernel"), (False, "kernel_pid_unknown")])
def test_a_kernel_out_of_sight_is_unknown(remote: bool, code: str) -> None:
    found = measured(scan(), {})
    mine = usage(sample(gpu()), found, kernel(pid=None, remote=remote))
    assert reason_of(mine.holds_gpu) == code
    assert reason_of(mine.cpu_cores) == code


def test_a_kernel_whose_process_is_gone_has_unknown_cpu() -> None:
    assert reason_of(usage(sample(gpu()), measured(scan(), {})).cpu_cores) == "proc_unreadable"


# --- CPU and IO -----------------------------------------------------------------------------------------------------


def test_cpu_is_that_of_the_tree_the_marker_and_the_loose() -> None:
    found = scan(
        KERNEL,
        process(210, 200),  # child: counts
        process(300, INIT, marker="k"),  # detached: counts
        process(310, INIT),  # loose: counts
        process(320, 310),  # below a loose one: counts
        process(150, SERVER),  # a terminal
        process(330, 150),
        process(340, SERVER),  # the server's helper
        process(350, SHELL),  # a browser that the shell started
        process(360, INIT, uid=THEIRS),  # another user's
        process(370, INIT, cgroup="/elsewhere"),  # of another service
        process(90, INIT),  # older than the server
        process(380, INIT, marker="dead"),  # an orphan
        process(390, 200, state="Z"),  # a zombie
    )
    cpu = {200: 0.01, 210: 0.02, 300: 0.04, 310: 0.08, 320: 0.16}
    others = dict.fromkeys((SERVER, SHELL, INIT, 150, 330, 340, 350, 360, 370, 90, 380, 390), 1.0)
    result, _ = run(sample(gpu()), measured(found, cpu | others), terminals=(Terminal("1", 150, None),))
    assert result.usages["k"].cpu_cores == pytest.approx(0.31)


def test_cpu_is_none_before_a_period_is_over() -> None:
    mine = usage(sample(gpu()), scan(KERNEL))
    assert mine.cpu_cores is None
    assert mine.io_bytes_per_second is None
    assert mine.measured is None


def test_io_that_cannot_be_read_is_unknown() -> None:
    found = measured(scan(KERNEL, process(210, 200)), {}, {200: 5.0, 210: unknown("proc_unreadable")})
    assert reason_of(usage(sample(gpu()), found).io_bytes_per_second) == "proc_unreadable"


def test_means_stand_until_the_next_period_even_if_processes_end() -> None:
    full = measured(scan(KERNEL, process(210, 200)), {210: 0.5})
    _, memory = run(sample(gpu()), full)
    ended = replace(full, processes=scan(KERNEL).processes)
    look = Look(sample(gpu()), ended, (kernel(),)).observation(10)
    look = replace(look, scan=replace(look.scan, measured_at=full.measured_at))
    result, _ = attribute(look, memory)
    assert result.usages["k"].cpu_cores == 0.5


def test_rounds_without_a_full_scan_find_new_kernels_by_their_own_process() -> None:
    _, memory = run(sample(gpu()), measured(scan(KERNEL), {200: 0.2}))
    new = process(400, SERVER, marker="m", opens_gpu=True)
    partial = replace(scan(KERNEL, new), full=False)
    found = sample(gpu(row(400, 0.5)))
    result, _ = run(found, partial, kernel(), kernel("m", 400), memory=memory)
    assert result.usages["m"].shares[0].link is Link.KERNEL
    assert result.usages["m"].tree == ((key(400), Link.KERNEL),)
    assert result.usages["m"].cpu_cores is None
    assert result.usages["k"].cpu_cores == 0.2


def test_rounds_without_a_full_scan_do_not_walk_all_processes() -> None:
    class Counting(dict[int, Process]):
        walks = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counting.walks += 1
            return super().__iter__()

        def values(self):  # type: ignore[no-untyped-def]
            Counting.walks += 1
            return super().values()

        def items(self):  # type: ignore[no-untyped-def]
            Counting.walks += 1
            return super().items()

    _, memory = run(sample(gpu(row(200))), scan(KERNEL))
    partial = replace(scan(KERNEL), full=False)
    partial = replace(partial, processes=Counting(partial.processes))
    result, _ = run(sample(gpu(row(200, 0.3))), partial, memory=memory, rounds=3)
    assert result.usages["k"].shares[0].sm_ratio == 0.3
    assert Counting.walks == 0


# --- properties -----------------------------------------------------------------------------------------------------

PIDS = st.sampled_from([200, 210, 300, 310, 400, 999])
ROWS = st.lists(
    st.builds(row, PIDS, sm=st.sampled_from([0.0, 0.3, 1.0]), memory=st.integers(0, 10)), max_size=6
)
OTHERS = (
    KERNEL,
    process(210, 200, opens_gpu=True),
    process(300, INIT, marker="k", opens_gpu=True),
    process(310, INIT, uid=THEIRS),
    process(400, SERVER, marker="m", opens_gpu=True),
)


@given(rows=ROWS, order=st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[object], order: object) -> None:
    shuffled = list(rows)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    processes = list(OTHERS)
    order.shuffle(processes)  # type: ignore[attr-defined]
    kernels = (kernel(), kernel("m", 400))
    one, _ = run(sample(gpu(*rows)), scan(*OTHERS), *kernels)  # type: ignore[arg-type]
    two, _ = run(sample(gpu(*shuffled)), scan(*processes), *kernels)  # type: ignore[arg-type]
    assert one.usages == two.usages
    assert set(one.others) == set(two.others)


@given(rows=ROWS)
def test_every_row_is_somebodys_once(rows: list[object]) -> None:
    card: Gpu = gpu(*rows)  # type: ignore[arg-type]
    result, _ = run(sample(card), scan(*OTHERS), kernel(), kernel("m", 400))
    assert not isinstance(card.processes, Unknown)
    pids = {r.pid for r in card.processes}
    owned = [s.pids for u in result.usages.values() for s in u.shares]
    foreign = sum(1 for other in result.others if other.pid is None)
    named = {other.pid for other in result.others if other.pid is not None}
    assert sum(len(p) for p in owned) + len(result.others) == len(pids)
    assert frozenset().union(*owned) | named == pids - ({310} if foreign else set())
