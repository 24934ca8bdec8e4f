"""The stand-in driver's failures, delays, hangs and call counters."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pynvml
import pytest

from tests.standin.test_standin import code_of

pytest_plugins = ["tests.standin.fixtures"]

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def gpus(standin):
    """The handles of both GPUs, in an initialised library."""
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]


def in_thread(fn, *arguments) -> tuple[threading.Thread, list[int]]:
    """Calls fn in a daemon thread; its code is in the list once it has returned."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(code_of(fn, *arguments)), daemon=True)
    thread.start()
    return thread, codes


def until_called(standin, name: str) -> None:
    """Waits until some thread has entered the function."""
    while not standin.calls(name):
        pass


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 7, 10, 15, 16, 20, 25, 999])
def test_a_failing_call_raises_the_class_of_its_code(standin, gpus, code):
    standin.fail("nvmlDeviceGetProcessUtilization", code)
    with pytest.raises(pynvml.NVMLError) as raised:
        pynvml.nvmlDeviceGetProcessUtilization(gpus[0], 0)
    assert (raised.value.value, type(raised.value)) == (code, type(pynvml.NVMLError(code)))


def test_a_rule_is_for_one_gpu_also_when_its_handle_is_looked_up(standin, gpus):
    standin.fail("*", LOST, gpu=1)
    assert [code_of(pynvml.nvmlDeviceGetPowerUsage, gpu) for gpu in gpus] == [0, LOST]
    assert [code_of(pynvml.nvmlDeviceGetHandleByIndex, index) for index in (0, 1)] == [0, LOST]
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-5aaad101-0000-4000-8000-000000000001") == LOST
    assert pynvml.nvmlDeviceGetCount() == 2


def test_names_match_with_and_without_their_version(standin, gpus):
    rule = standin.fail("nvmlDeviceGetComputeRunningProcesses", LOST)
    assert code_of(pynvml.nvmlDeviceGetComputeRunningProcesses, gpus[0]) == LOST
    standin.remove_rule(rule)
    standin.fail("nvmlDeviceGetComputeRunningProcesses_v2", LOST)
    assert code_of(pynvml.nvmlDeviceGetComputeRunningProcesses, gpus[0]) == 0
    assert code_of(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, gpus[0]) == LOST


def test_after_and_count_bound_a_rule_and_survive_other_changes(standin, gpus):
    standin.fail("nvmlDeviceGetPowerUsage", LOST, after=1, count=2)
    codes = []
    for power in range(1, 6):
        standin.set_gpu(0, power=power)
        codes.append(code_of(pynvml.nvmlDeviceGetPowerUsage, gpus[0]))
    assert codes == [0, LOST, LOST, 0, 0]
    standin.fail("nvmlDeviceGetPowerUsage", LOST, after=1, count=2)
    assert [code_of(pynvml.nvmlDeviceGetPowerUsage, gpus[0]) for _ in range(3)] == [0, LOST, LOST]


def test_a_gpu_that_is_removed_is_lost(standin, gpus):
    standin.remove_gpu(0)
    assert [code_of(pynvml.nvmlDeviceGetPowerUsage, gpu) for gpu in gpus] == [LOST, 0]
    assert pynvml.nvmlDeviceGetCount() == 2
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 0) == LOST
    standin.add_gpu(0, power=5)
    assert pynvml.nvmlDeviceGetPowerUsage(gpus[0]) == 5


def test_a_hung_gpu_does_not_hold_up_the_other_and_can_be_released(standin, gpus):
    standin.hang("nvmlDeviceGetPowerUsage", gpu=0)
    thread, codes = in_thread(pynvml.nvmlDeviceGetPowerUsage, gpus[0])
    until_called(standin, "nvmlDeviceGetPowerUsage")
    other, other_codes = in_thread(pynvml.nvmlDeviceGetPowerUsage, gpus[1])
    other.join(timeout=30)
    assert (other_codes, codes, thread.is_alive()) == ([0], [], True)
    standin.set_gpu(1, power=7)
    assert pynvml.nvmlDeviceGetPowerUsage(gpus[1]) == 7
    assert thread.is_alive()
    standin.clear_rules()
    thread.join(timeout=30)
    assert codes == [0]


def test_a_delay_ends_by_itself(standin, gpus):
    standin.delay("nvmlDeviceGetPowerUsage", 0.05)
    began = time.monotonic()
    assert pynvml.nvmlDeviceGetPowerUsage(gpus[0]) == 90_000
    assert time.monotonic() - began >= 0.05


def test_a_delayed_call_answers_from_the_state_at_its_end(standin, gpus):
    rule = standin.hang("nvmlDeviceGetPowerUsage")
    thread, codes = in_thread(pynvml.nvmlDeviceGetPowerUsage, gpus[0])
    until_called(standin, "nvmlDeviceGetPowerUsage")
    standin.fail("nvmlDeviceGetPowerUsage", LOST)
    standin.remove_rule(rule)
    thread.join(timeout=30)
    assert codes == [LOST]


def test_shutting_down_while_a_call_is_inside_is_noticed(standin, gpus):
    standin.hang("nvmlDeviceGetPowerUsage")
    thread, codes = in_thread(pynvml.nvmlDeviceGetPowerUsage, gpus[0])
    until_called(standin, "nvmlDeviceGetPowerUsage")
    assert standin.counters().shutdowns_while_inside == 0
    pynvml.nvmlShutdown()
    assert standin.counters().shutdowns_while_inside == 1
    standin.clear_rules()
    thread.join(timeout=30)
    assert codes == [pynvml.NVML_ERROR_UNINITIALIZED]


def test_calls_are_counted_over_all_processes(standin, gpus):
    standin.reset_calls()
    assert (standin.calls(), standin.held_inits) == (0, 1)
    pynvml.nvmlDeviceGetPowerUsage(gpus[0])
    script = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1))"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert standin.counters().by_function == {
        "nvmlInitWithFlags": 1,
        "nvmlDeviceGetHandleByIndex_v2": 1,
        "nvmlDeviceGetPowerUsage": 2,
    }
    assert standin.calls("nvmlDeviceGetHandleByIndex") == 1
    assert standin.calls("nvmlDevice*") == 3
    assert standin.calls() == 4
    assert standin.held_inits == 2, "the child ended without shutting down"


def test_eight_threads_get_whole_answers_while_the_state_is_rewritten(standin, gpus):
    """Two states that are each consistent: no reading may mix them."""
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                rows = [
                    (p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpus[0])
                ]
            except pynvml.NVMLError_InsufficientSize:
                continue  # the list grew between the two calls, as on a real driver
            if rows not in ([], [(pid, pid) for pid in range(1, 41)]):
                wrong.append(rows)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with standin.batch():
            for pid in range(1, 41):
                standin.add_process(pid, memory=pid)
        with standin.batch():
            for pid in range(1, 41):
                standin.remove_process(pid)
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
    assert wrong == []
    assert standin.calls("nvmlDeviceGetComputeRunningProcesses") > 50
