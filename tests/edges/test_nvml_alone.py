"""Leaving the driver alone: before the first reading, after a release, after a fork, asleep, and when it hangs."""

from __future__ import annotations

import os

import pytest

from jupyter_gpu_guard.core.model import TelemetryState
from jupyter_gpu_guard.nvml import NvmlReader, all_suspended, gpu_present
from jupyter_gpu_guard.worker import Hung, Worker
from tests.edges.nvml_machine import INIT, PID, run
from tests.standin.driver import GIB

pytest_plugins = ["tests.standin.fixtures", "tests.edges.nvml_fixtures"]


def test_nothing_is_held_nor_called_before_the_first_reading_and_after_a_release(machine):
    NvmlReader()
    assert (machine.driver.calls(), machine.driver.held_inits) == (0, 0)
    before = machine.gpus()
    assert machine.driver.held_inits == 1
    machine.reader.release()
    assert machine.driver.held_inits == 0
    machine.driver.reset_calls()
    machine.reader.release()
    machine.reader.close()
    assert machine.driver.calls() == 0
    assert machine.gpus() == before
    assert machine.driver.calls(INIT) == 1


def test_a_failing_shutdown_is_no_failure(machine):
    machine.gpus()
    rule = machine.driver.fail("nvmlShutdown", 999)
    machine.reader.release()
    machine.driver.remove_rule(rule)
    assert len(machine.gpus()) == 2


def test_a_forked_child_starts_the_driver_for_itself(machine):
    machine.driver.add_process(PID, memory=GIB)
    before = machine.gpus()
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        sample = machine.read()
        os.write(sender, f"{sample.state.value} {sample.gpus == before}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiver, 100) == b"ok True"
    assert machine.driver.calls(INIT) == 2
    assert machine.gpus() == before
    assert machine.driver.calls(INIT) == 2


def test_a_forked_child_does_not_release_what_its_parent_holds(machine):
    machine.gpus()
    child = os.fork()
    if child == 0:
        machine.reader.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert machine.driver.calls("nvmlShutdown") == 0
    assert machine.driver.held_inits == 1


def test_sleeping_cards_are_not_woken(machine):
    status = machine.sysfs / "bus/pci/drivers/nvidia/0000:01:00.0/power/runtime_status"
    status.parent.mkdir(parents=True)
    status.write_text("suspended\n")
    assert machine.unavailable() == ("suspended", None)
    assert machine.driver.calls() == 0
    status.write_text("active\n")
    assert len(machine.gpus()) == 2
    status.write_text("suspended\n")  # can't be, as long as a handle is held: the driver is asked
    assert len(machine.gpus()) == 2


@pytest.mark.parametrize(
    ("states", "suspended"),
    [
        ([], False),
        (["active"], False),
        (["suspended"], True),
        (["suspended", "suspended"], True),
        (["suspended", "active"], False),
        (["unsupported"], False),
    ],
)
def test_cards_sleep_only_when_all_of_them_do(tmp_path, states, suspended):
    for number, state in enumerate(states):
        folder = tmp_path / f"bus/pci/drivers/nvidia/0000:{number:02}:00.0/power"
        folder.mkdir(parents=True)
        (folder / "runtime_status").write_text(state + "\n")
    assert all_suspended(tmp_path) is suspended


@pytest.mark.parametrize(
    ("place", "present"),
    [
        ("dev/null", False),
        ("proc/driver/rtc", False),
        ("dev/nvidiactl", True),
        ("dev/nvidia0", True),
        ("proc/driver/nvidia/version", True),
        ("usr/lib/wsl/lib/libnvidia-ml.so.1", True),
    ],
)
def test_what_tells_that_there_is_a_driver(tmp_path, place, present):
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()
    assert gpu_present(tmp_path) is present


# --- a driver that does not answer ----------------------------------------------------------------------------------


async def test_a_hung_driver_holds_up_its_own_thread_alone(machine):
    machine.driver.add_process(PID, memory=GIB)
    before = machine.gpus()
    driver, other = Worker("driver"), Worker("other")
    machine.driver.hang("nvmlDeviceGetUtilizationRates", gpu=1)
    for _ in range(2):
        with pytest.raises(Hung):
            await driver.call(machine.read, 0.2)
    assert await other.call(lambda: 42, 30) == 42
    assert machine.driver.calls("nvmlDeviceGetUtilizationRates") == 4  # two before, two of one reading since
    machine.driver.clear_rules()
    while driver.hung_for:
        await other.call(lambda: None, 30)
    sample = await driver.call(machine.read, 30)
    assert (sample.state, sample.gpus) == (TelemetryState.OK, before)
    driver.stop()
    other.stop()


def test_a_process_ends_although_the_driver_hangs(standin):
    standin.hang("nvmlDeviceGetMemoryInfo")
    code = """
import asyncio
from jupyter_gpu_guard.nvml import NvmlReader
from jupyter_gpu_guard.worker import Hung, Worker
async def main():
    try:
        await Worker("driver").call(NvmlReader().read, 0.3)
    except Hung as hung:
        print("hung")
asyncio.run(main())
print("ended")
"""
    assert run(code).splitlines() == ["hung", "ended"]  # and the process is gone: the hang is one of a day
    assert standin.counters().shutdowns_while_inside == 0
