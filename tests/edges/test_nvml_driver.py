"""Starting the driver, losing it or a card, and finding it again. What a reading says is in test_nvml.py."""

from __future__ import annotations

import shutil
import sys
import types

import pynvml
import pytest

from jupyter_gpu_guard.core.model import TelemetryState, Unknown
from tests.edges.nvml_machine import INIT, PID, reason_of, run, why
from tests.standin.driver import GIB, StandInDriver

pytest_plugins = ["tests.standin.fixtures", "tests.edges.nvml_fixtures"]


# --- starting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [(4, "no_permission"), (9, "driver_not_loaded"), (18, "version_mismatch"), (999, "driver_error")],
)
def test_an_init_that_fails_is_tried_again_ever_more_slowly(machine, code, reason):
    machine.driver.fail(INIT, code)
    tries = []
    for second in range(200):
        sample = machine.reader.read()
        assert (sample.state, sample.gpus, sample.last_success) == (TelemetryState.UNAVAILABLE, (), None)
        assert reason_of(sample.reason) == (reason, "nvmlInit")
        if machine.driver.calls(INIT):
            tries.append(second)
            machine.driver.reset_calls()
        machine.wait(1)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    machine.driver.clear_rules()
    machine.wait(60)
    assert [gpu.memory_total_bytes for gpu in machine.gpus()] == [80 * GIB] * 2


def test_a_good_reading_ends_the_waiting(machine):
    machine.driver.fail(INIT, 9, count=4)
    while machine.reader.read().state is not TelemetryState.OK:
        machine.wait(1)
    assert machine.seconds == 15
    machine.reader.release()
    machine.driver.fail(INIT, 9, count=1)
    assert machine.unavailable() == ("driver_not_loaded", "nvmlInit")
    machine.wait(1)
    assert machine.reader.read().state is TelemetryState.OK


def test_a_library_that_cannot_be_loaded(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    code = (
        "from jupyter_gpu_guard.nvml import NvmlReader\n"
        "sample = NvmlReader().read()\n"
        "print(sample.state.value, sample.source, sample.reason.code)"
    )
    assert run(code, LD_LIBRARY_PATH=str(tmp_path)) == "unavailable nvml library_not_found"


def test_another_package_in_the_place_of_nvidia_ml_py(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    sample = machine.read()
    assert (sample.state, reason_of(sample.reason)[0]) == (TelemetryState.UNAVAILABLE, "pynvml_unusable")
    assert "without NVMLError" in sample.reason.text
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine.unavailable() == ("pynvml_unusable", None)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    assert machine.gpus()[0].memory_total_bytes == 80 * GIB


@pytest.mark.parametrize("code", [3, 4, 10, 15])
def test_cards_that_cannot_be_counted_make_a_reading_fail_but_not_the_next(machine, code):
    machine.gpus()
    machine.driver.fail("nvmlDeviceGetCount", code, count=1)
    machine.wait(55)  # they are counted once a minute
    assert machine.unavailable()[1] == "nvmlDeviceGetCount"
    assert len(machine.gpus()) == 2
    assert machine.driver.calls(INIT) == 1


def test_a_driver_without_cards(machine):
    for index in (1, 0):
        machine.driver.remove_gpu(index)
    assert machine.unavailable() == ("no_gpu", None)


# --- losing the driver, or a card -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "code", "reason"),
    [
        ("nvmlDevice*", 1, "uninitialized"),
        ("nvmlDevice*", 9, "driver_not_loaded"),
        ("nvmlDevice*", 18, "version_mismatch"),
        ("nvmlDevice*", 999, "driver_error"),
        ("nvmlDeviceGet[!C]*", 999, "uninitialized"),
    ],
)
def test_a_driver_that_went_away_is_started_again(machine, calls, code, reason):
    machine.driver.add_process(PID, memory=GIB)
    good = machine.read()
    rules = [machine.driver.fail(calls, code)]
    if calls == "nvmlDeviceGet[!C]*":  # the cards are still counted, as when a container has lost its devices
        rules.append(machine.driver.fail("nvmlDeviceGetComputeRunningProcesses", code))
    machine.driver.reset_calls()
    lost = machine.read()
    assert (lost.state, reason_of(lost.reason)[0]) == (TelemetryState.UNAVAILABLE, reason)
    assert (lost.gpus, lost.last_success, lost.driver_version) == (good.gpus, good.taken, "570.86.15")
    assert machine.driver.held_inits == 0
    machine.driver.reset_calls()
    assert reason_of(machine.reader.read().reason)[0] == reason
    assert machine.driver.calls() == 0  # too early to try again
    assert machine.unavailable()[0] == reason
    assert machine.driver.calls(INIT) == 1
    for rule in rules:
        machine.driver.remove_rule(rule)
    machine.read()
    assert machine.processes()[PID].memory_bytes == GIB
    assert machine.driver.held_inits == 1


def test_another_version_of_the_driver_is_loaded_from_where_the_old_one_was(standin_library, tmp_path):
    """In a process of its own: a library that is loaded stays so."""
    driver = StandInDriver(tmp_path / "driver", standin_library)
    old, new = tmp_path / "libnvidia-ml.so.570.86.15", tmp_path / "libnvidia-ml.so.595.45.04"
    shutil.copy(standin_library, old)
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(old)
    driver.fail(INIT, 18)
    code = f"""
import os, shutil
from datetime import datetime, timezone
from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.nvml import NvmlReader
seconds = 0
def clock():
    global seconds
    seconds += 100
    return Instant(float(seconds), datetime.now(timezone.utc))
def loaded():
    lines = open("/proc/self/maps").read().splitlines()
    return len({{line.split(maxsplit=5)[5] for line in lines if "libnvidia-ml" in line}})
reader = NvmlReader(clock)
print(reader.read().reason.code, loaded())
print(reader.read().reason.code, loaded())
shutil.copy({str(standin_library)!r}, {str(new)!r})
os.unlink({str(old)!r})
os.unlink({str(link)!r})
os.symlink({str(new)!r}, {str(link)!r})
print(reader.read().reason.code, loaded())
with open({str(driver.state_file)!r}, "r+") as state:
    healthy = [line for line in state if not line.startswith("fail")]
    state.seek(0)
    state.truncate()
    state.writelines(healthy)
sample = reader.read()
print(sample.state.value, len(sample.gpus))
"""
    env = {**driver.env(), "LD_LIBRARY_PATH": str(tmp_path)}
    assert run(code, **env).splitlines() == [
        "version_mismatch 1",
        "version_mismatch 1",
        "version_mismatch 2",
        "ok 2",
    ]
    # One try with each of the first two readings, two when the new library is found, one more when all is well.
    assert driver.calls(INIT) == 5


def test_a_card_that_falls_off_the_bus_and_comes_back(machine):
    machine.driver.add_process(PID, memory=GIB)
    first, second = machine.gpus()
    machine.driver.remove_gpu(0)
    for _ in range(2):
        gpu, other = machine.gpus()
        assert (gpu.uuid, gpu.name, why(gpu.processes)[0]) == (first.uuid, first.name, "gpu_lost")
        assert other == second
    machine.driver.add_gpu(0)
    machine.read()
    assert machine.gpus() == (first, second)


@pytest.mark.parametrize(("code", "lookups"), [(1, 1), (2, 1), (15, 1), (3, 0), (4, 0), (16, 0), (999, 0)])
def test_a_handle_is_kept_unless_it_is_dead(machine, code, lookups):
    machine.gpus()
    machine.driver.fail("nvmlDeviceGetPowerUsage", code, gpu=1, count=1)
    machine.driver.reset_calls()
    assert why(machine.gpus()[1].power_watts)[1] == "nvmlDeviceGetPowerUsage"
    assert machine.driver.calls("nvmlDeviceGetHandleByIndex") == 0
    assert [machine.gpus()[1].power_watts for _ in range(2)] == [90.0, 90.0]
    assert machine.driver.calls("nvmlDeviceGetHandleByIndex") == lookups


def test_a_card_that_is_no_longer_counted_stays_unknown_until_a_release(machine):
    first, second = machine.gpus()
    machine.driver.remove_gpu(1)
    gpu, lost = machine.gpus()
    assert (gpu, lost.uuid, why(lost.processes)[0]) == (first, second.uuid, "gpu_lost")
    for _ in range(2):
        gpu, gone = machine.gpus()
        assert gpu == first
        assert (gone.uuid, gone.index, why(gone.processes)) == (
            second.uuid,
            1,
            ("gpu_lost", "nvmlDeviceGetCount"),
        )
    machine.reader.release()
    assert machine.gpus() == (first,)


def test_a_card_that_moves_to_another_index_keeps_its_name(machine):
    """The first of two goes, and the driver numbers anew."""
    first, second = machine.gpus()
    with machine.driver.batch():
        machine.driver.remove_gpu(1)
        machine.driver.set_gpu(0, uuid=second.uuid)
    machine.read()  # one of them is not well, so they are counted again
    moved, gone = machine.gpus()
    assert (moved.uuid, moved.index, moved.memory_total_bytes) == (second.uuid, 0, 80 * GIB)
    assert (gone.uuid, why(gone.memory_used_bytes)[0]) == (first.uuid, "gpu_lost")


def test_a_card_that_comes_is_found_within_a_minute(machine):
    first, second = machine.gpus()
    machine.driver.add_gpu(2)
    counts = [len(machine.gpus()) for _ in range(12)]
    assert counts == [2] * 11 + [3]
    assert machine.gpus()[:2] == (first, second)


@pytest.mark.parametrize("code", [*range(1, 31), 77, 999])
def test_no_answer_of_the_driver_makes_a_reading_raise(machine, code):
    machine.driver.add_mig(0, 0, gi=1)
    machine.driver.add_process(PID, gpu=1, memory=GIB)
    machine.gpus()
    calls = sorted(machine.driver.counters().by_function)
    machine.reader.release()
    for call in calls:
        rule = machine.driver.fail(call, code)
        machine.wait(100)
        sample = machine.reader.read()
        assert sample.state is TelemetryState.OK or sample.reason is not None
        for gpu in sample.gpus:
            assert isinstance(gpu.processes, Unknown) or len(gpu.processes) <= 1
        machine.reader.release()
        machine.driver.remove_rule(rule)
    machine.wait(100)
    assert len(machine.gpus()) == 2
