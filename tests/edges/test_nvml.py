"""What one reading of the cards says: numbers where the driver gives one, a reason where it doesn't.

How much processes use a card is in test_nvml_use.py; starting and losing the driver in test_nvml_driver.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_gpu_guard.core.model import Unknown
from jupyter_gpu_guard.nvml_calls import SIZE_RETRIES
from tests.edges.nvml_machine import COMPUTE, GRAPHICS, MPS, PID, REASON_OF_CODE, SAMPLES, why
from tests.standin.driver import GIB, kernel_code

pytest_plugins = ["tests.standin.fixtures", "tests.edges.nvml_fixtures"]


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


def test_a_minute_of_readings_makes_6_calls_for_a_card_and_no_slow_one(machine):
    machine.driver.add_process(PID, memory=GIB, sm=40)
    machine.gpus()
    machine.driver.reset_calls()
    for _ in range(12):
        machine.gpus()
    assert machine.driver.counters().by_function == {
        "nvmlDeviceGetCount_v2": 1,
        "nvmlDeviceGetMigMode": 2,
        "nvmlDeviceGetMemoryInfo_v2": 12,
        "nvmlDeviceGetUtilizationRates": 24,
        "nvmlDeviceGetPowerUsage": 24,
        "nvmlDeviceGetEnforcedPowerLimit": 2,
        "nvmlDeviceGetTemperature": 2,
        f"{COMPUTE}_v3": 24,  # their size is known from the reading before
        f"{GRAPHICS}_v3": 24,
        SAMPLES: 24,
    }
    assert machine.driver.calls() <= 6 * 2 * 12


def test_what_is_told_again_is_not_old(machine):
    machine.gpus()
    machine.driver.set_gpu(0, temperature=70, power=500_000)
    machine.driver.add_process(PID, memory=3 * GIB)
    seen = [machine.gpus()[0] for _ in range(12)]
    assert [gpu.power_watts for gpu in seen] == [500.0] * 12
    assert [gpu.memory_used_bytes for gpu in seen] == [0] + [3 * GIB] * 11
    assert [gpu.temperature_celsius for gpu in seen] == [34.0] * 11 + [70.0]


def test_readings_a_minute_apart_read_everything(machine):
    machine.gpus()
    machine.driver.set_gpu(0, temperature=70)
    machine.driver.add_process(PID, memory=3 * GIB)
    machine.wait(55)
    gpu = machine.gpus()[0]
    assert (gpu.temperature_celsius, gpu.memory_used_bytes) == (70.0, 3 * GIB)


@pytest.mark.parametrize(
    "call", [COMPUTE, SAMPLES, "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"]
)
def test_a_card_that_is_not_well_is_read_as_a_whole(machine, call):
    """What it said before may be of before a reset."""
    machine.gpus()
    machine.driver.set_gpu(0, temperature=70)
    rule = machine.driver.fail(call, 16, gpu=0)
    assert machine.gpus()[0].temperature_celsius == 70.0
    machine.driver.set_gpu(0, temperature=80)
    machine.driver.remove_rule(rule)
    assert machine.gpus()[0].temperature_celsius == 80.0


def test_everything_is_read_after_a_release(machine):
    machine.gpus()
    machine.driver.set_gpu(0, temperature=70)
    machine.reader.release()
    assert machine.gpus()[0].temperature_celsius == 70.0


def test_a_call_that_a_card_lacks_is_not_made_each_time(machine):
    machine.driver.fail("nvmlDeviceGetTemperature", 3, gpu=0)
    machine.driver.fail("nvmlDeviceGetEnforcedPowerLimit", 4, gpu=0)
    machine.gpus()
    machine.driver.reset_calls()
    gpu = machine.gpus()[0]
    assert why(gpu.temperature_celsius) == ("not_supported", "nvmlDeviceGetTemperature")
    assert why(gpu.power_limit_watts) == ("no_permission", "nvmlDeviceGetEnforcedPowerLimit")
    assert machine.driver.calls("nvmlDeviceGetTemperature") == 0
    assert machine.driver.calls("nvmlDeviceGetEnforcedPowerLimit") == 1


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
    machine.wait(55)  # each value is asked for once a minute at least
    gpu, other_now = machine.gpus()
    for field in fields:
        assert why(getattr(gpu, field)) == (REASON_OF_CODE[code], call)
    for field in (
        "memory_total_bytes",
        "utilization_ratio",
        "power_watts",
        "temperature_celsius",
        "processes",
    ):
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
    machine.driver.add_process(PID + 2, memory=4 * GIB)
    machine.driver.add_process(PID + 2, kind="G", memory=0)
    first, second = machine.processes()[PID], machine.processes()[PID + 1]
    assert machine.processes()[PID + 2].memory_bytes == 4 * GIB
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
    machine.driver.fail(f"{COMPUTE}_v3", 7, gpu=0, after=1, count=SIZE_RETRIES - 1)
    assert machine.processes()[PID].memory_bytes == GIB


def test_a_list_may_outgrow_what_it_was_at_the_last_reading(machine):
    machine.driver.add_process(PID, memory=GIB)
    assert machine.processes().keys() == {PID}
    with machine.driver.batch():
        for pid in range(PID, PID + 150):
            machine.driver.add_process(pid, memory=GIB, sm=1)
    found = machine.processes()
    assert found.keys() == set(range(PID, PID + 150))
    assert {process.sm_ratio for process in found.values()} == {0.01}


def test_a_list_that_never_fits_is_given_up(machine):
    machine.driver.fail(f"{COMPUTE}_v3", 7, gpu=0)
    machine.gpus()
    machine.driver.reset_calls()
    processes = machine.gpus()[0].processes
    assert processes.reason.text == f"the driver answered InsufficientSize (7) ({COMPUTE})"
    assert machine.driver.calls(COMPUTE) == 1 + SIZE_RETRIES + 1


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
        machine.driver.add_process(PID + 1, memory=GIB)
        kinds = {pid: found.kinds for pid, found in machine.processes().items()}
        assert kinds == {process.pid: {"compute"}, PID: {"mps"}, PID + 1: {"compute"}}
        process.kill()


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


def test_a_card_that_is_split_under_way_never_seems_unused(machine):
    machine.driver.add_process(PID, gi=1, ci=0, memory=GIB)
    assert machine.gpus()[0].mig is False
    machine.driver.add_mig(0, 0, gi=1)
    first, then = machine.gpus()[0], machine.gpus()[0]
    assert isinstance(first.utilization_ratio, Unknown)
    assert isinstance(first.processes, Unknown) or isinstance(first.processes[0].sm_ratio, Unknown)
    assert (then.mig, why(then.utilization_ratio)[0]) == (True, "mig_no_utilization")
    assert [process.pid for process in then.processes] == [PID]


def test_a_card_that_is_made_whole_again_is_read_so_at_once(machine):
    machine.driver.add_mig(0, 0, gi=1)
    assert machine.gpus()[0].mig is True
    machine.gpus()
    machine.driver.remove_mig(0, 0)
    machine.driver.set_gpu(0, mig=0)
    machine.driver.add_process(PID, memory=GIB, sm=40)
    gpu = machine.gpus()[0]
    assert (gpu.mig, [process.sm_ratio for process in gpu.processes]) == (False, [0.4])


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
    assert gpu.memory_used_bytes == GIB + (
        512 << 20
    )  # the first form counts what the driver keeps for itself
    found = {process.pid: (process.memory_bytes, process.sm_ratio) for process in gpu.processes}
    assert found.keys() == {PID, PID + 1}
    assert found[PID] == (GIB, 0.4)
    assert old_machine.driver.calls(f"{COMPUTE}_v2") == 3


def test_a_driver_older_than_450(old_machine):
    old_machine.driver.add_process(PID, memory=GIB, sm=40)
    old_machine.driver.add_process(PID + 1, memory=None)
    old_machine.driver.fail("nvmlDeviceGet*RunningProcesses_v2", 13)
    old_machine.driver.fail("nvmlDeviceGetMigMode", 13)
    processes = old_machine.processes()
    assert processes[PID].memory_bytes == GIB
    assert why(processes[PID + 1].memory_bytes) == ("not_available", COMPUTE)
    assert old_machine.gpus()[0].mig is False
    old_machine.driver.fail(COMPUTE, 4)
    assert why(old_machine.gpus()[0].processes) == ("no_permission", COMPUTE)


def test_a_driver_that_dropped_the_first_temperature_call(machine):
    machine.driver.fail("nvmlDeviceGetTemperature", 13)
    assert machine.gpus()[0].temperature_celsius == 34.0


def test_a_driver_without_any_list(machine):
    machine.driver.fail("nvmlDeviceGet*RunningProcesses*", 13)
    assert why(machine.gpus()[0].processes) == ("function_not_found", COMPUTE)


def test_lists_that_fail_with_an_unknown_error_are_an_error(machine):
    machine.driver.fail("nvmlDeviceGet*RunningProcesses*", 999)
    for _ in range(3):
        gpu = machine.gpus()[0]
        assert why(gpu.processes) == ("driver_error", COMPUTE)
        assert gpu.memory_total_bytes == 80 * GIB


@pytest.fixture
def of_windows(machine, tmp_path):
    """The cards belong to Windows, as under WSL."""
    (tmp_path / "dxg").touch()
    return machine


@pytest.mark.parametrize("code", [None, 3, 999])
def test_a_card_of_windows_tells_of_no_process_by_its_nature(of_windows, code):
    """Whatever its lists answer: drivers before 512 fail, later ones list processes that are not to be found here."""
    of_windows.driver.add_process(PID, memory=GIB, sm=0)
    if code is not None:
        of_windows.driver.fail("nvmlDeviceGet*RunningProcesses*", code)
    of_windows.driver.fail(SAMPLES, 6)
    for _ in range(3):
        gpu = of_windows.gpus()[0]
        assert (why(gpu.processes), gpu.stray_samples) == (("not_supported", COMPUTE), ())
        assert (gpu.memory_total_bytes, gpu.power_watts) == (80 * GIB, 90.0)
    assert of_windows.driver.calls(SAMPLES) == of_windows.driver.calls(COMPUTE) == 0


def test_a_card_of_windows_that_fails_is_an_error(of_windows):
    of_windows.driver.fail("nvmlDevice*", 15, gpu=1)
    sound, lost = of_windows.gpus()
    assert (why(sound.processes)[0], why(lost.processes)[0]) == ("not_supported", "gpu_lost")
    of_windows.driver.fail("nvmlDevice*", 999)
    assert of_windows.unavailable()[0] in ("driver_error", "uninitialized")
