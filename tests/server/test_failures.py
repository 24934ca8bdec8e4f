"""Whatever the driver fails at, a kernel whose use can't be told is not ended; an identical one on a healthy card is,
and the spared one too once its use can be told again.

Every scene is a real server on a stand-in driver; the scenes are played side by side, because they mostly wait.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.edges.small_disk import fill, small_disk
from tests.server.gpu_server import GIB, GpuServer, is_alive, moment
from tests.standin.driver import StandInDriver, kernel_code

pytestmark = pytest.mark.timeout(300)

#: Idle after 1.5 s, warned 1.5 s ahead, rounds every half second.
OPTIONS = ("GpuGuard.mode=enforce", "GpuGuard.idle_timeout=3", "GpuGuard.warm_up=0")
#: Longer than it takes to end a kernel that can be judged: timeout, warning and three rounds.
LONG_ENOUGH = 3 + 1.5 + 3 * 0.5

LIST = "nvmlDeviceGetComputeRunningProcesses"
SAMPLES = "nvmlDeviceGetProcessUtilization"
#: No process here has such a number; Linux could give it out.
ELSEWHERE = 3_000_000


@dataclass
class Seen:
    """What status said of one kernel while it was watched, in order."""

    kernels: list[dict[str, Any]] = field(default_factory=list)
    tombstone: dict[str, Any] | None = None

    @property
    def verdicts(self) -> set[str]:
        return {kernel["verdict"] for kernel in self.kernels}

    @property
    def states(self) -> set[str]:
        return {kernel["state"] for kernel in self.kernels}

    @property
    def last(self) -> dict[str, Any]:
        return self.kernels[-1]

    def look(self, kernel_id: str, status: dict[str, Any]) -> None:
        """Take in a status; the kernel has to be in it."""
        (kernel,) = [kernel for kernel in status["kernels"] if kernel["kernel_id"] == kernel_id]
        self.kernels.append(kernel)


@pytest.fixture(scope="module")
def scenes(
    make_server: Callable[..., GpuServer], beside: Callable[..., Future[Any]], tmp_path_factory: Any
) -> dict[str, Future[Any]]:
    """All scenes, under way."""
    empty = tmp_path_factory.mktemp("library-folder")
    histories = tmp_path_factory.mktemp("histories")
    blocked, disk = histories / "file", histories / "disk"
    blocked.touch()

    def server(history: Path) -> GpuServer:
        return make_server(*OPTIONS, f"GpuGuard.history_path={history / 'history.sqlite'}")

    return {
        "cards": beside(play_cards, make_server(*OPTIONS, gpus=len(FAULTS) + 3)),
        "driver": beside(play_driver, make_server(*OPTIONS)),
        "library": beside(play_library, make_server(*OPTIONS, env={"LD_LIBRARY_PATH": str(empty)}), empty),
        "numbers": beside(play_numbers, make_server(*OPTIONS)),
        "asleep": beside(play_asleep, make_server(*OPTIONS)),
        "no_folder": beside(play_no_folder, server(blocked), blocked),
        "full_disk": beside(play_full_disk, server(disk), disk),
    }


# --- one card of many fails -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """How one card fails, and what has to be said of the kernel on it."""

    name: str
    begin: Callable[[StandInDriver, int, int], object]  # driver, card, pid of the kernel
    verdict: str
    code: str


def failing(call: str, code: int) -> Callable[[StandInDriver, int, int], object]:
    return lambda driver, gpu, pid: driver.fail(call, code, gpu=gpu)


FAULTS = (
    Fault("list_forbidden", failing(LIST, 4), "unknown", "no_permission"),
    Fault("list_unknown_error", failing(LIST, 999), "unknown", "driver_error"),
    Fault("list_race", failing(LIST, 7), "unknown", "driver_error"),
    Fault("lost", failing("nvmlDevice*", 15), "unknown", "gpu_lost"),
    Fault("samples_not_supported", failing(SAMPLES, 3), "unknown", "not_supported"),
    Fault("samples_forbidden", failing(SAMPLES, 4), "unknown", "no_permission"),
    Fault("samples_unknown_error", failing(SAMPLES, 999), "unknown", "driver_error"),
    Fault("samples_damaged", lambda d, gpu, pid: d.add_sample(pid, gpu, sm=3000), "unknown", "damaged_value"),
    Fault(  # HAMi-core#112
        "samples_of_another_namespace",
        lambda d, gpu, pid: d.add_sample(ELSEWHERE, gpu, sm=60),
        "active",
        "device_in_use_owner_unclear",
    ),
    Fault("mig", lambda d, gpu, pid: d.add_mig(gpu, 0, gi=1), "unknown", "mig_no_utilization"),
)


@dataclass
class Cards:
    spared: dict[str, Seen]
    healthy: dict[str, Any]
    untold_memory: Seen


def play_cards(server: GpuServer) -> Cards:
    """A kernel on each card; all rest at once while the cards fail, but for the first and the last."""
    driver = server.start().driver
    names = [fault.name for fault in FAULTS]
    kernels = server.start_kernels("healthy", *names, "untold_memory")
    last = len(kernels) - 1
    loads = {
        name: server.load(kernel, gpu=gpu, memory=None if gpu == last else GIB, instance=(1, 0))
        for gpu, (name, kernel) in enumerate(kernels.items())
    }
    for kernel in kernels.values():
        server.reaches(kernel, verdict="active", holds_gpu=True)
    untold = Seen([server.kernel(kernels["untold_memory"])])
    with driver.batch():
        for gpu, fault in enumerate(FAULTS, 1):
            fault.begin(driver, gpu, loads[fault.name].pid)
    for load in loads.values():
        load.rest()
    seen = {name: Seen() for name in names}

    def look(status: dict[str, Any]) -> None:
        for name in names:
            seen[name].look(kernels[name], status)

    server.watch(LONG_ENOUGH, look)
    healthy = server.culled(kernels["healthy"])
    untold.tombstone = server.culled(kernels["untold_memory"])
    server.watch(1, look)
    with driver.batch():
        mig = 1 + names.index("mig")
        driver.remove_mig(mig, 0)
        driver.set_gpu(mig, mig=0)
        driver.clear_samples()
        driver.clear_rules()
    for name in names:
        seen[name].tombstone = server.culled(kernels[name], 60)
    return Cards(seen, healthy, untold)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_kernel_on_a_card_that_fails_is_spared(scenes, fault):
    seen = scenes["cards"].result().spared[fault.name]
    assert seen.verdicts <= {"active", "unknown"}
    assert seen.states == {"active"}
    assert not any(kernel["warnings"] for kernel in seen.kernels)
    assert (seen.last["verdict"], seen.last["reason"]["code"]) == (fault.verdict, fault.code)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_ended_once_the_card_is_well_again(scenes, fault):
    cards = scenes["cards"].result()
    tombstone = cards.spared[fault.name].tombstone
    assert tombstone["reason"]["code"] == "idle_timeout"
    assert tombstone["memory_released_bytes"] == GIB
    assert moment(tombstone["ended_at"]) > moment(cards.healthy["ended_at"])


def test_the_same_kernel_on_a_healthy_card_is_ended_meanwhile(scenes):
    healthy = scenes["cards"].result().healthy
    assert healthy["reason"]["code"] == "idle_timeout"
    assert [warning["lead_seconds"] for warning in healthy["warnings"]] == [1.5]
    assert healthy["memory_released_bytes"] == GIB


def test_memory_that_is_not_told_is_null_and_hides_no_use(scenes):
    untold = scenes["cards"].result().untold_memory
    (share,) = untold.last["gpus"]
    assert (share["memory_bytes"], share["sm_ratio"]) == (None, 0.5)
    assert share["unreadable"]["memory_bytes"]["code"] == "not_available"
    assert untold.tombstone["reason"]["code"] == "idle_timeout"
    assert untold.tombstone["memory_released_bytes"] is None


# --- the whole driver fails -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outage:
    """What calls answer for a while: all of them, or those about cards, and init when it is tried again."""

    name: str
    rules: tuple[tuple[str, int], ...]
    code: str


OUTAGES = (
    Outage("reloaded", (("nvml*", 1),), "uninitialized"),
    Outage("not_loaded_at_init", (("nvmlDevice*", 1), ("nvmlInit*", 9)), "driver_not_loaded"),
    Outage("upgraded", (("nvml*", 18),), "version_mismatch"),
    Outage("forbidden_at_init", (("nvmlDevice*", 1), ("nvmlInit*", 4)), "no_permission"),
    Outage("cgroup_lost", (("nvml*", 999),), "driver_error"),  # nvidia-docker#1730
)


@dataclass
class Driver:
    before: dict[str, Any]
    telemetry: dict[str, list[dict[str, Any]]]
    spared: dict[str, Seen]
    after: dict[str, Any]


def play_driver(server: GpuServer) -> Driver:
    """One kernel is ended; then the driver fails five times while another one is idle, and is well in the end."""
    driver = server.start().driver
    kernels = server.start_kernels("before", "spared")
    for name in ("spared", "before"):
        load = server.load(kernels[name])
        server.reaches(kernels[name], holds_gpu=True)
        if name == "before":
            load.rest()
        else:
            spared = load
    played = Driver(server.culled(kernels["before"]), {}, {}, {})
    kernel = kernels["spared"]
    for outage in OUTAGES:
        server.run(kernel, "1")  # so that the time between two outages isn't idle time
        with driver.batch():
            for call, code in outage.rules:
                driver.fail(call, code)
        spared.rest()
        telemetry, seen = played.telemetry[outage.name], played.spared[outage.name] = [], Seen()

        def look(
            status: dict[str, Any], telemetry: list[dict[str, Any]] = telemetry, seen: Seen = seen
        ) -> None:
            telemetry.append(status["telemetry"])
            seen.look(kernel, status)

        server.watch(LONG_ENOUGH, look)
        driver.clear_rules()
        server.until(lambda: server.guard()["telemetry"]["state"] == "ok", 30, "the driver is not read again")
    played.after = server.culled(kernel)
    return played


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
def test_nobody_is_ended_while_the_driver_fails(scenes, outage):
    driver = scenes["driver"].result()
    telemetry, seen = driver.telemetry[outage.name][-1], driver.spared[outage.name]
    assert (telemetry["state"], telemetry["reason"]["code"]) == ("unavailable", outage.code)
    assert telemetry["last_success"] is not None
    assert (seen.last["verdict"], seen.last["reason"]["code"]) == ("unknown", outage.code)
    assert seen.verdicts <= {"active", "unknown"}
    assert seen.states == {"active"}
    assert seen.last["holds_gpu"] is None


def test_the_same_kernel_is_ended_before_and_after_the_outages(scenes):
    driver = scenes["driver"].result()
    assert driver.before["reason"]["code"] == driver.after["reason"]["code"] == "idle_timeout"
    assert moment(driver.after["ended_at"]) - moment(driver.before["ended_at"]) > len(OUTAGES) * LONG_ENOUGH
    # Every warning that counts was given after the last outage.
    assert moment(driver.after["warnings"][0]["at"]) > moment(
        driver.telemetry["cgroup_lost"][-1]["last_success"]
    )


# --- no library -----------------------------------------------------------------------------------------------------


@dataclass
class Library:
    telemetry: dict[str, Any]
    spared: Seen


def play_library(server: GpuServer, folder: Path) -> Library:
    """The server starts on a machine without the library, which is installed later."""
    kernel = server.start().start_kernel("idle")
    server.load(kernel).rest()
    seen = Seen()
    server.watch(2 * LONG_ENOUGH, lambda status: seen.look(kernel, status))
    telemetry = server.guard()["telemetry"]
    shutil.copy(server.driver.library, folder / "copied")
    (folder / "copied").rename(folder / server.driver.library.name)
    seen.tombstone = server.culled(kernel, 60)
    return Library(telemetry, seen)


def test_nobody_is_ended_without_the_library(scenes):
    library = scenes["library"].result()
    assert (library.telemetry["state"], library.telemetry["reason"]["code"]) == (
        "unavailable",
        "library_not_found",
    )
    assert library.telemetry["last_success"] is None
    assert (library.spared.last["verdict"], library.spared.last["reason"]["code"]) == (
        "unknown",
        "library_not_found",
    )
    assert library.spared.states == {"active"}


def test_a_library_that_is_installed_later_is_found(scenes):
    tombstone = scenes["library"].result().spared.tombstone
    assert (tombstone["cause"], tombstone["memory_released_bytes"]) == ("idle", GIB)


# --- numbers that mean other processes ------------------------------------------------------------------------------

#: Notes every signal that can be noted, and lives on.
INNOCENT = """
import signal, sys, time
def note(number, frame):
    with open({log!r}, "a") as file: file.write(f"{{number}}\\n")
for number in set(signal.valid_signals()) - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}}:
    signal.signal(number, note)
open({log!r}, "a").close()
time.sleep(1000)
"""


@dataclass
class Numbers:
    innocent: subprocess.Popen[bytes]
    signals: str
    bystander: Seen
    culled: dict[str, Any]
    unattributed: list[dict[str, Any]]
    in_use: dict[str, Seen]
    at_rest: dict[str, Seen]
    buried: dict[str, dict[str, Any]]


def play_numbers(server: GpuServer) -> Numbers:
    """First the driver lists numbers that are those of innocent processes; then it lists all by the host's numbers."""
    log = server.folder / "signals"
    innocent = subprocess.Popen([sys.executable, "-c", INNOCENT.format(log=str(log))])
    try:
        return _play_numbers(server.start(), innocent, log)
    finally:
        innocent.kill()
        innocent.wait()


def _play_numbers(server: GpuServer, innocent: subprocess.Popen[bytes], log: Path) -> Numbers:
    driver = server.driver
    kernels = server.start_kernels("idle", "bystander", "one", "two")
    sleeper = int(
        server.run(
            kernels["bystander"],
            "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid)",
        )
    )
    server.until(log.exists, 20, "the innocent process does not start")
    load = server.load(kernels["idle"])
    # From here on it is known that on this platform an open GPU can be seen.
    server.reaches(kernels["idle"], holds_gpu=True)
    with driver.batch():
        driver.add_process(innocent.pid, gpu=1, memory=GIB, sm=90)
        driver.add_process(sleeper, gpu=1, memory=GIB, sm=90)
    load.rest()
    bystander = Seen()
    server.watch(LONG_ENOUGH, lambda status: bystander.look(kernels["bystander"], status))
    culled = server.culled(kernels["idle"])
    unattributed = server.guard()["unattributed"]
    assert is_alive(sleeper)
    with driver.batch():
        driver.remove_process(innocent.pid)
        driver.remove_process(sleeper)
        driver.shift_pids(ELSEWHERE, ELSEWHERE)
    loads = [server.load(kernels[name]) for name in ("one", "two")]
    in_use = {"one": Seen(), "two": Seen()}
    at_rest = {"one": Seen(), "two": Seen()}

    def look_at(seen: dict[str, Seen]) -> Callable[[dict[str, Any]], None]:
        return lambda status: [seen[name].look(kernels[name], status) for name in seen] and None

    loads[1].rest()
    server.watch(LONG_ENOUGH, look_at(in_use))
    loads[0].rest()
    server.watch(2 * LONG_ENOUGH, look_at(at_rest))
    driver.shift_pids()
    buried = {name: server.culled(kernels[name]) for name in ("one", "two")}
    assert innocent.poll() is None
    return Numbers(innocent, log.read_text(), bystander, culled, unattributed, in_use, at_rest, buried)


def test_a_process_that_only_shares_its_number_is_left_alone(scenes):
    numbers = scenes["numbers"].result()
    assert numbers.signals == ""
    assert sorted(other["pid"] is not None for other in numbers.unattributed) == [True, True]
    assert {other["owner"] for other in numbers.unattributed} == {"unattributed"}


def test_nobody_is_blamed_for_it(scenes):
    bystander = scenes["numbers"].result().bystander
    assert {kernel["holds_gpu"] for kernel in bystander.kernels} == {False}
    assert not any(kernel["gpus"] for kernel in bystander.kernels)
    assert "device_in_use_owner_unclear" not in {kernel["reason"]["code"] for kernel in bystander.kernels}
    assert bystander.states <= {"active", "idle"}


def test_the_kernel_beside_it_is_ended(scenes):
    culled = scenes["numbers"].result().culled
    assert (culled["cause"], culled["survivors"], culled["memory_released_bytes"]) == ("idle", 0, GIB)


def test_under_host_numbers_use_counts_for_all_whose_it_may_be(scenes):
    for seen in scenes["numbers"].result().in_use.values():
        assert (seen.last["verdict"], seen.last["reason"]["code"]) == (
            "active",
            "device_in_use_owner_unclear",
        )
        assert seen.last["holds_gpu"] is None
        assert seen.states <= {"active", "idle"}


def test_under_host_numbers_nobody_is_ended_for_what_may_be_another_s(scenes):
    for seen in scenes["numbers"].result().at_rest.values():
        assert (seen.last["verdict"], seen.last["reason"]["code"]) == ("unknown", "unmatched_gpu_process")
        assert seen.last["holds_gpu"] is None
        assert seen.states <= {"active", "idle"}


def test_once_the_numbers_fit_the_spared_are_ended(scenes):
    for tombstone in scenes["numbers"].result().buried.values():
        assert (tombstone["cause"], tombstone["memory_released_bytes"]) == ("idle", GIB)


# --- nobody looks ---------------------------------------------------------------------------------------------------


@dataclass
class Asleep:
    """The driver's own counters: calls in a while, and inits that are held."""

    before: tuple[int, int]
    in_use: int
    after: tuple[int, int]
    telemetry: dict[str, Any]


def play_asleep(server: GpuServer) -> Asleep:
    """The driver is left alone until a kernel opens a GPU, and again once it is closed. Nobody asks the server
    anything meanwhile, for whoever does wakes the driver."""
    driver = server.start().driver
    kernel = server.start_kernel()
    server.run(kernel, "1")

    def quiet() -> tuple[int, int]:
        driver.reset_calls()
        time.sleep(3)
        return driver.calls(), driver.held_inits

    before = quiet()
    server.run(kernel, kernel_code("gpu = Context(memory=1 << 30, sm=50)"))
    server.until(lambda: driver.calls(SAMPLES) > 6, 20, "the driver is not read")
    in_use = driver.held_inits
    server.run(kernel, "gpu.close()")
    server.until(lambda: driver.held_inits == 0, 20, "the driver is not let go")
    after = quiet()
    asleep = server.guard()["telemetry"]
    server.until(lambda: server.guard()["telemetry"]["state"] == "ok", 20, "a look does not wake the driver")
    return Asleep(before, in_use, after, asleep)


def test_while_nobody_has_a_gpu_open_the_driver_is_left_alone(scenes):
    asleep = scenes["asleep"].result()
    assert asleep.before == (0, 0)
    assert asleep.after == (0, 0)


def test_reading_resumes_when_a_kernel_opens_a_gpu_or_somebody_looks(scenes):
    asleep = scenes["asleep"].result()
    assert asleep.in_use == 1
    assert (asleep.telemetry["state"], asleep.telemetry["reason"]["code"]) == ("none", "asleep")


# --- nothing can be written -----------------------------------------------------------------------------------------


@dataclass
class Unwritten:
    seen: Seen
    holds: list[str | None]
    hold_after: Any


def play_unwritten(server: GpuServer, free: Callable[[], object]) -> Unwritten:
    """An idle kernel while the history can't be written, until `free` helps."""
    kernel = server.start_kernel("idle")
    server.load(kernel).rest()
    played = Unwritten(Seen(), [], None)

    def look(status: dict[str, Any]) -> None:
        played.seen.look(kernel, status)
        played.holds.append(status["hold"] and status["hold"]["code"])

    server.watch(2 * LONG_ENOUGH, look)
    free()
    played.seen.tombstone = server.culled(kernel)
    played.hold_after = server.guard()["hold"]
    return played


def play_no_folder(server: GpuServer, folder: Path) -> Unwritten:
    """Where the history's folder should be is a file, from the start."""
    server.start()
    return play_unwritten(server, folder.unlink)


def play_full_disk(server: GpuServer, disk: Path) -> Unwritten:
    """The disk of the history is full."""
    with small_disk(disk, 256):
        filler = fill(disk)
        server.start()
        return play_unwritten(server, filler.unlink)


@pytest.mark.parametrize("scene", ["no_folder", "full_disk"])
def test_nobody_is_ended_while_nothing_can_be_written(scenes, scene):
    unwritten = scenes[scene].result()
    assert unwritten.holds[-1] == "cannot_record"
    assert unwritten.seen.states <= {"active", "idle", "warned"}
    assert "idle" in unwritten.seen.verdicts


@pytest.mark.parametrize("scene", ["no_folder", "full_disk"])
def test_it_is_ended_once_it_can_be_written_down(scenes, scene):
    unwritten = scenes[scene].result()
    assert unwritten.hold_after is None
    assert (unwritten.seen.tombstone["cause"], unwritten.seen.tombstone["memory_released_bytes"]) == (
        "idle",
        GIB,
    )
