"""What one reading of the cards says: numbers where the driver gives one, a reason where it doesn't.

Starting, losing and finding the driver again are in test_nvml_driver.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_gpu_guard import nvml_card
from jupyter_gpu_guard.core.model import TelemetryState, Unknown
from jupyter_gpu_guard.nvml_calls import SIZE_RETRIES
from tests.edges.nvml_machine import PID, Machine, reason_of, why
from tests.standin.driver import GIB, kernel_code

pytest_plugins = ["tests.standin.fixtures"]

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
SAMPLES = "nvmlDeviceGetProcessUtilization"

#: Each return code that a call can answer, with the reason that it has to become.
REASON_OF_CODE = {
    1: "uninitialized",
    2: "driver_error",
    3: "not_supported",
    4: "no_permission",
    10: "driver_error",
    15: "gpu_lost",
    16: "reset_required",
    17: "driver_error",
    18: "version_mismatch",
    20: "driver_error",
    23: "driver_error",
    28: "driver_error",
    77: "driver_error",
    999: "driver_error",
}


@pytest.fixture
def no_mps(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(nvml_card, "MPS_PIPES", tmp_path / "nvidia-mps")


@pytest.fixture
def machine(standin, no_mps, tmp_path):
    return Machine(standin, tmp_path)


@pytest.fixture
def old_machine(old_standin, no_mps, tmp_path):
    return Machine(old_standin, tmp_path)


def test_a_healthy_machine(machine):
    machine.driver.add_process(PID, memory=5 * GIB, sm=40, enc=7, dec=12)
    first, second = machine.gpus()
    assert first.uuid == "GPU-5aaad100-0000-4000-8000-000000000000"
    assert (first.index, first.name, first.mig) == (0, "NVIDIA H100 80GB HBM3", False)
    assert (first.memory_total_bytes, first.memory_used_bytes) == (80 * GIB, 5 * GIB)
    assert (first.utilization_ratio, first.power_watts, first.power_limit_watts) == (0.4, 90.0, 700.0)
    assert first.temperature_celsius == 34.0
    (process,) = first.processes
    assert (process.pid, process.kinds, process.memory_bytes) == (PID, {"compute"}, 5 * GIB)
    assert (process.sm_ratio, process.codec_ratio, process.mig_uuid) == (0.4, 0.12, None)
    assert first.stray_samples == ()
    assert (second.index, second.processes, second.utilization_ratio) == (1, (), 0.0)


def test_a_reading_of_two_cards_makes_22_calls_and_no_slow_one(machine):
    machine.driver.add_process(PID, memory=GIB, sm=40)
    machine.gpus()
    machine.driver.reset_calls()
    machine.gpus()
    assert machine.driver.counters().by_function == {
        "nvmlDeviceGetCount_v2": 1,
        "nvmlDeviceGetMigMode": 2,
        "nvmlDeviceGetMemoryInfo_v2": 2,
        "nvmlDeviceGetUtilizationRates": 2,
        "nvmlDeviceGetPowerUsage": 2,
        "nvmlDeviceGetEnforcedPowerLimit": 2,
        "nvmlDeviceGetTemperature": 2,
        f"{COMPUTE}_v3": 3,  # one call for no process, two for any
        f"{GRAPHICS}_v3": 2,
        SAMPLES: 4,
    }


@pytest.mark.parametrize("code", REASON_OF_CODE)
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetMemoryInfo", ["memory_total_bytes", "memory_used_bytes"]),
        ("nvmlDeviceGetUtilizationRates", ["utilization_ratio"]),
        ("nvmlDeviceGetPowerUsage", ["power_watts"]),
        ("nvmlDeviceGetEnforcedPowerLimit", ["power_limit_watts"]),
        ("nvmlDeviceGetTemperature", ["temperature_celsius"]),
        (COMPUTE, ["processes"]),
    ],
)
def test_a_failing_call_takes_its_own_values_and_no_others(machine, call, fields, code):
    machine.driver.add_process(PID, memory=GIB, sm=40)
    healthy, other = machine.gpus()
    machine.driver.fail(call, code, gpu=0)
    gpu, other_now = machine.gpus()
    for field in fields:
        assert why(getattr(gpu, field)) == (REASON_OF_CODE[code], call)
    for field in ("memory_total_bytes", "utilization_ratio", "power_watts", "temperature_celsius", "processes"):
        if field not in fields:
            assert getattr(gpu, field) == getattr(healthy, field)
    assert other_now == other


@pytest.mark.parametrize("code", [*REASON_OF_CODE, 6, 7, 9, 13])
def test_a_card_of_which_every_call_fails_leaves_the_other_alone(machine, code):
    machine.driver.add_process(PID, gpu=1, memory=GIB, sm=40)
    before, other = machine.gpus()
    machine.driver.fail("*", code, gpu=0)
    for _ in range(3):
        gpu, other_now = machine.gpus()
        assert (gpu.uuid, gpu.name, gpu.index, gpu.mig) == (before.uuid, before.name, 0, False)
        assert isinstance(gpu.processes, Unknown)
        assert isinstance(gpu.memory_used_bytes, Unknown)
        assert isinstance(gpu.utilization_ratio, Unknown)
        assert other_now == other
    machine.driver.clear_rules()
    machine.read()
    assert machine.gpus() == (before, other)


@pytest.mark.parametrize(("code", "reason"), [(3, "not_supported"), (4, "no_permission"), (15, "gpu_lost")])
def test_a_card_that_never_gave_a_handle_is_a_placeholder(machine, code, reason):
    machine.driver.fail("nvmlDeviceGetHandleByIndex", code, gpu=0)
    gpu, other = machine.gpus()
    assert (gpu.uuid, gpu.name) == ("index-0", "GPU 0")
    for value in (gpu.memory_total_bytes, gpu.utilization_ratio, gpu.power_watts, gpu.processes):
        assert why(value) == (reason, "nvmlDeviceGetHandleByIndex")
    assert other.memory_total_bytes == 80 * GIB
    machine.driver.clear_rules()
    assert [gpu.uuid[:10] for gpu in machine.gpus()] == ["GPU-5aaad1", "GPU-5aaad1"]


# --- who is on the card ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 4, 7, 15, 16, 999])
@pytest.mark.parametrize("call", [COMPUTE, GRAPHICS])
def test_a_list_that_cannot_be_read_is_not_an_empty_one(machine, call, code):
    machine.driver.add_process(PID, memory=GIB)
    machine.driver.fail(call, code, gpu=0)
    code_of_reason = {1: "uninitialized", 4: "no_permission", 15: "gpu_lost", 16: "reset_required"}
    assert why(machine.gpus()[0].processes) == (code_of_reason.get(code, "driver_error"), call)


def test_a_card_for_computing_only_has_no_graphics_list(machine):
    machine.driver.add_process(PID, memory=GIB)
    machine.driver.fail(GRAPHICS, 3)
    assert machine.processes()[PID].memory_bytes == GIB
    machine.driver.fail(COMPUTE, 3)
    assert why(machine.gpus()[0].processes) == ("not_supported", COMPUTE)


def test_memory_that_is_not_told_is_not_zero(machine):
    machine.driver.add_process(PID, memory=None)
    machine.driver.add_process(PID + 1, memory=0)
    processes = machine.processes()
    assert why(processes[PID].memory_bytes) == ("not_available", COMPUTE)
    assert processes[PID + 1].memory_bytes == 0


def test_a_process_in_both_lists_is_one_with_the_larger_memory(machine):
    machine.driver.add_process(PID, memory=2 * GIB, sm=30)
    machine.driver.add_process(PID, kind="G", memory=3 * GIB)
    machine.driver.add_process(PID + 1, kind="G", memory=None)
    machine.driver.add_process(PID + 1, memory=GIB)
    first, second = machine.processes()[PID], machine.processes()[PID + 1]
    assert (first.kinds, first.memory_bytes) == ({"compute", "graphics"}, 3 * GIB)
    assert (second.kinds, second.memory_bytes) == ({"compute", "graphics"}, GIB)


def test_a_process_that_a_list_has_twice_is_one(machine):
    code = kernel_code(
        f"a, b = Context(memory={GIB}, sm=20), Context(memory={2 * GIB}, sm=60)\nprint('ready', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        process = machine.processes()[child.pid]
        child.communicate("\n")
    assert (process.memory_bytes, process.sm_ratio) == (2 * GIB, 0.6)
    assert machine.processes() == {}


@pytest.mark.parametrize("pids", [[PID, 0, 4294967295], [PID, 0], [PID, 1 << 22], [4294967295]])
def test_a_damaged_list_is_rejected_as_a_whole(machine, pids):
    machine.driver.set_versions(version="535.54.03")
    for pid in pids:
        machine.driver.add_process(pid, memory=GIB)
    processes = machine.gpus()[0].processes
    assert why(processes) == ("corrupt_process_list", None)
    assert processes.reason.text == "driver 535.54.03 returned a damaged process list"


def test_a_list_that_grows_between_two_calls_is_asked_again(machine):
    machine.driver.add_process(PID, memory=GIB)
    machine.driver.fail(f"{COMPUTE}_v3", 7, gpu=0, after=1, count=2 * SIZE_RETRIES)
    assert machine.processes()[PID].memory_bytes == GIB


def test_a_list_that_never_fits_is_given_up(machine):
    machine.driver.fail(f"{COMPUTE}_v3", 7, gpu=0)
    machine.gpus()
    machine.driver.reset_calls()
    processes = machine.gpus()[0].processes
    assert processes.reason.text == f"the driver answered InsufficientSize (7) ({COMPUTE})"
    assert machine.driver.calls(COMPUTE) == 2 * (1 + SIZE_RETRIES) + 1


def test_the_list_of_mps_is_asked_for_only_where_its_server_seems_to_run(machine, monkeypatch, tmp_path):
    machine.driver.add_process(PID, kind="M", memory=GIB)
    assert (machine.processes(), machine.driver.calls(MPS)) == ({}, 0)
    (tmp_path / "nvidia-mps").mkdir()
    assert machine.processes()[PID].kinds == {"mps"}
    (tmp_path / "nvidia-mps").rmdir()
    assert machine.processes() == {}
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    assert machine.processes()[PID].kinds == {"mps"}
    machine.driver.fail(MPS, 4)
    assert why(machine.gpus()[0].processes) == ("no_permission", MPS)


def test_an_mps_server_is_known_by_its_name_among_the_processes(machine, tmp_path):
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to("/bin/sleep")
    machine.driver.add_process(PID, kind="M", memory=GIB)
    with subprocess.Popen([server, "60"]) as process:
        machine.driver.add_process(process.pid, memory=GIB)
        kinds = {pid: found.kinds for pid, found in machine.processes().items()}
        assert kinds == {process.pid: {"compute"}, PID: {"mps"}}
        process.kill()


# --- how much they use it -------------------------------------------------------------------------------------------


def test_no_sample_is_no_use(machine):
    machine.driver.add_process(PID, memory=GIB)
    assert (machine.processes()[PID].sm_ratio, machine.processes()[PID].codec_ratio) == (0.0, 0.0)


def test_success_where_the_number_of_samples_is_asked_is_no_use(machine):
    machine.driver.add_process(PID, memory=GIB, sm=50)
    machine.driver.fail(SAMPLES, 0, gpu=0, count=1)
    assert machine.processes()[PID].sm_ratio == 0.5  # the rule with code 0 lets the real answer through
    machine.driver.add_process(PID + 1, gpu=1, memory=GIB)
    assert machine.processes(1)[PID + 1].sm_ratio == 0.0


@pytest.mark.parametrize("code", REASON_OF_CODE)
def test_samples_that_cannot_be_read_are_not_no_use(machine, code):
    machine.driver.add_process(PID, memory=GIB, sm=95)
    machine.driver.add_process(PID + 1, memory=2 * GIB)
    machine.driver.fail(SAMPLES, code, gpu=0)
    for process in machine.processes().values():
        assert why(process.sm_ratio) == why(process.codec_ratio) == (REASON_OF_CODE[code], SAMPLES)
        assert process.memory_bytes in (GIB, 2 * GIB)


def test_each_sample_counts_once(machine):
    machine.driver.add_process(PID, memory=GIB, sm="0@0,80@7,0@8")
    machine.driver.add_process(PID + 1, gpu=1, memory=GIB, sm="0@0,30@13,0@14")
    seen = []
    for _ in range(4):  # at 5, 10, 15 and 20 s
        one, two = machine.gpus()
        seen.append((one.processes[0].sm_ratio, two.processes[0].sm_ratio))
    assert seen == [(0.0, 0.0), (0.8, 0.0), (0.0, 0.3), (0.0, 0.0)]


def test_use_before_a_release_does_not_count_after_it(machine):
    machine.driver.add_process(PID, memory=GIB, sm="80@0,0@4")
    assert machine.processes()[PID].sm_ratio == 0.8
    machine.reader.release()
    assert machine.processes()[PID].sm_ratio == 0.0


def test_use_shows_after_the_clock_was_set_back(machine):
    machine.driver.add_process(PID, memory=GIB, sm=60)
    assert machine.processes()[PID].sm_ratio == 0.6
    machine.set_clock_by(-3600)
    assert [machine.processes()[PID].sm_ratio for _ in range(2)] == [0.6, 0.6]


def test_the_largest_of_several_samples_of_a_process_counts(machine):
    machine.driver.add_process(PID, memory=GIB)
    for sm, enc in ((20, 3), (90, 1), (40, 9)):
        machine.driver.add_sample(PID, sm=sm, enc=enc)
    process = machine.processes()[PID]
    assert (process.sm_ratio, process.codec_ratio) == (0.9, 0.09)


def test_stale_samples_are_dropped(machine):
    machine.driver.add_process(PID, memory=GIB, sm="50@0,0@6")
    assert machine.processes()[PID].sm_ratio == 0.5  # seen up to 5 s
    machine.driver.add_sample(PID, sm=70, at=2)
    machine.driver.add_sample(PID, sm=10, at=8)
    assert machine.processes()[PID].sm_ratio == 0.5  # it ran on until 6 s
    machine.driver.clear_samples()
    machine.driver.add_sample(PID, sm=70, at=4)
    assert machine.processes()[PID].sm_ratio == 0.0


def test_a_damaged_sample_hides_neither_use_nor_rest(machine):
    machine.driver.add_process(PID, memory=GIB)
    machine.driver.add_process(PID + 1, memory=GIB)
    machine.driver.add_process(PID + 2, memory=GIB)
    machine.driver.add_sample(PID, sm=3456789012)
    machine.driver.add_sample(PID + 1, sm=30, dec=2147483632)
    machine.driver.add_sample(PID + 1, sm=3456789012, dec=5)
    machine.driver.add_sample(9999, sm=101)
    processes = machine.processes()
    assert why(processes[PID].sm_ratio) == ("damaged_value", SAMPLES)
    assert processes[PID].codec_ratio == 0.0
    assert (processes[PID + 1].sm_ratio, processes[PID + 1].codec_ratio) == (0.3, 0.05)
    assert (processes[PID + 2].sm_ratio, processes[PID + 2].codec_ratio) == (0.0, 0.0)
    assert machine.gpus()[0].stray_samples == ()


def test_a_time_stamp_from_the_future_does_not_hide_later_use(machine):
    machine.driver.add_process(PID, memory=GIB, sm="0@0,40@12")
    machine.driver.add_sample(PID, sm=1, at=10**9)
    assert machine.processes()[PID].sm_ratio == 0.01
    machine.driver.clear_samples()
    assert [machine.processes()[PID].sm_ratio for _ in range(3)] == [0.0, 0.4, 0.4]


def test_samples_of_pids_in_no_list_are_kept_apart(machine):
    machine.driver.add_process(324, memory=0, sm=35, sample_pid=645400)
    machine.driver.add_sample(645401, sm=0, mem=3)
    gpu = machine.gpus()[0]
    assert [(process.pid, process.sm_ratio) for process in gpu.processes] == [(324, 0.0)]
    assert gpu.stray_samples == ((645400, 0.35),)
    assert gpu.utilization_ratio == 0.35


def test_an_impossible_utilization_of_a_card_is_no_value(machine):
    machine.driver.set_gpu(0, utilization=101)
    assert why(machine.gpus()[0].utilization_ratio) == ("damaged_value", "nvmlDeviceGetUtilizationRates")


@pytest.mark.parametrize("settings", [{"memory_total": 0}, {"memory_total": 0, "memory_used": 5}])
def test_a_card_without_memory_of_its_own(machine, settings):
    machine.driver.set_gpu(0, **settings)
    gpu = machine.gpus()[0]
    assert why(gpu.memory_total_bytes) == why(gpu.memory_used_bytes) == ("not_available", "nvmlDeviceGetMemoryInfo")


# --- MIG ------------------------------------------------------------------------------------------------------------


def test_mig_devices_have_processes_but_no_use(machine):
    uuids = [machine.driver.add_mig(0, 0, gi=1), machine.driver.add_mig(0, 3, gi=5)]
    machine.driver.add_process(PID, gi=1, ci=0, memory=GIB, sm=90)
    machine.driver.add_process(PID + 1, gi=5, ci=0, memory=2 * GIB, sm=10)
    gpu, other = machine.gpus()
    assert (gpu.mig, other.mig) == (True, False)
    assert why(gpu.utilization_ratio) == ("mig_no_utilization", None)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (80 * GIB, 3 * GIB)
    found = [(process.pid, process.mig_uuid, process.memory_bytes) for process in gpu.processes]
    assert found == [(PID, uuids[0], GIB), (PID + 1, uuids[1], 2 * GIB)]
    for process in gpu.processes:
        assert why(process.sm_ratio) == why(process.codec_ratio) == ("mig_no_utilization", None)
    assert machine.driver.calls(SAMPLES) == 2  # of the other card


def test_a_process_on_two_mig_devices_is_on_both(machine):
    uuids = {machine.driver.add_mig(0, index, gi=index + 1) for index in (0, 1)}
    machine.driver.add_process(PID, gi=1, ci=0, memory=GIB)
    machine.driver.add_process(PID, kind="G", gi=2, ci=0, memory=GIB)
    assert {process.mig_uuid for process in machine.gpus()[0].processes} == uuids


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        ("nvmlDeviceGetMaxMigDeviceCount", 4, "no_permission"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", 4, "no_permission"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", 999, "driver_error"),
        (COMPUTE, 4, "no_permission"),
    ],
)
def test_mig_devices_that_cannot_be_read_are_not_empty(machine, call, code, reason):
    machine.driver.add_mig(0, 0, gi=1)
    machine.gpus()
    machine.driver.fail(call, code, gpu=0)
    assert why(machine.gpus()[0].processes) == (reason, call)


def test_a_mig_device_that_goes_takes_only_its_own_processes(machine):
    machine.driver.add_mig(0, 0, gi=1)
    uuid = machine.driver.add_mig(0, 1, gi=2)
    machine.driver.add_process(PID, gi=2, ci=0, memory=GIB)
    machine.gpus()
    machine.driver.remove_mig(0, 0)
    assert [process.mig_uuid for process in machine.gpus()[0].processes] == [uuid]


# --- old and odd drivers --------------------------------------------------------------------------------------------


def test_a_driver_older_than_510(old_machine):
    old_machine.driver.add_process(PID, memory=GIB, sm=40)
    old_machine.driver.add_process(PID + 1, kind="G", memory=None)
    gpu = old_machine.gpus()[0]
    assert gpu.memory_used_bytes == GIB + (512 << 20)  # the first form counts what the driver keeps for itself
    found = {process.pid: (process.memory_bytes, process.sm_ratio) for process in gpu.processes}
    assert found.keys() == {PID, PID + 1}
    assert found[PID] == (GIB, 0.4)
    assert old_machine.driver.calls(f"{COMPUTE}_v2") == 3


def test_a_driver_older_than_450(old_machine):
    old_machine.driver.add_process(PID, memory=GIB, sm=40)
    old_machine.driver.add_process(PID + 1, memory=None)
    old_machine.driver.fail("*_v2", 13)
    old_machine.driver.fail("nvmlDeviceGetCount", 0)
    sample = old_machine.read()
    assert (sample.state, reason_of(sample.reason)) == (
        TelemetryState.UNAVAILABLE,
        ("function_not_found", "nvmlDeviceGetCount"),
    )
    old_machine.driver.clear_rules()
    for call in (COMPUTE, GRAPHICS):
        old_machine.driver.fail(f"{call}_v2", 13)
    processes = old_machine.processes()
    assert processes[PID].memory_bytes == GIB
    assert why(processes[PID + 1].memory_bytes) == ("not_available", COMPUTE)
    assert processes[PID].kinds == {"compute"}


def test_a_driver_without_any_list(machine):
    machine.driver.fail("nvmlDeviceGet*RunningProcesses*", 13)
    assert why(machine.gpus()[0].processes) == ("function_not_found", COMPUTE)


def test_wsl_which_answers_unknown_error_to_the_lists(machine):
    machine.driver.fail("nvmlDeviceGet*RunningProcesses*", 999)
    for _ in range(3):
        gpu = machine.gpus()[0]
        assert why(gpu.processes) == ("driver_error", COMPUTE)
        assert gpu.memory_total_bytes == 80 * GIB
