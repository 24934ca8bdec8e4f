"""The stand-in driver answers nvidia-ml-py as NVIDIA's library would: layouts, codes, protocols, rules, counters.

Real processes are in test_context.py, nvitop and gpustat in test_peers.py.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import pynvml
import pytest

from tests.standin.driver import GIB, SOURCES, build

pytest_plugins = ["tests.standin.fixtures"]

C_TYPES = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlProcessDetail_v1_t": pynvml.c_nvmlProcessDetail_v1_t,
    "nvmlProcessDetailList_t": pynvml.c_nvmlProcessDetailList_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlProcessUtilizationInfo_v1_t": pynvml.c_nvmlProcessUtilizationInfo_v1_t,
    "nvmlProcessesUtilizationInfo_t": pynvml.c_nvmlProcessesUtilizationInfo_v1_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlConfComputeMemSizeInfo_t": pynvml.c_nvmlConfComputeMemSizeInfo_t,
}


class ProcessInfoV1(ctypes.Structure):
    """The struct of the unversioned process lists; nvidia-ml-py no longer has it."""

    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


def code_of(fn, *arguments) -> int:
    """The code a call fails with; 0 if it succeeds."""
    try:
        fn(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    return 0


@pytest.fixture
def gpu(standin):
    """The handle of GPU 0, in an initialised library."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def test_layouts_are_those_of_nvidia_ml_py(tmp_path):
    """A C program prints what the compiler makes of abi.h; ctypes says what nvidia-ml-py makes of it."""
    expected, lines = [], []
    for name, layout in {**C_TYPES, "nvmlProcessInfo_v1_t": ProcessInfoV1}.items():
        expected.append(f"{name} {ctypes.sizeof(layout)}")
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in layout._fields_:
            expected.append(f"{name}.{field} {getattr(layout, field).offset}")
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    program = tmp_path / "layouts.c"
    program.write_text(f'#include "abi.h"\n#include <stdio.h>\nint main(void) {{ {" ".join(lines)} }}\n')
    subprocess.run(["gcc", f"-I{SOURCES}", "-o", str(tmp_path / "layouts"), str(program)], check=True)
    printed = subprocess.run([str(tmp_path / "layouts")], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected
    assert len(re.findall(r"^CHECK_SIZE", (SOURCES / "abi.h").read_text(), re.MULTILINE)) == len(C_TYPES) + 1


def test_a_second_build_of_the_same_sources_compiles_nothing(tmp_path):
    library = build(tmp_path)
    built = library.stat()
    assert build(tmp_path) == library
    assert library.stat().st_mtime_ns == built.st_mtime_ns
    assert build(tmp_path, old=True) != library


def test_versions_and_identity(standin, gpu):
    standin.set_versions(version="560.35.03", cuda=12060)
    assert pynvml.nvmlSystemGetDriverVersion() == "560.35.03"
    assert pynvml.nvmlSystemGetNVMLVersion() == "12.570.86.15"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12060
    assert pynvml.nvmlDeviceGetCount() == 2
    second = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetName(gpu) == "NVIDIA H100 80GB HBM3"
    uuid = pynvml.nvmlDeviceGetUUID(second)
    assert uuid == "GPU-5aaad101-0000-4000-8000-000000000001"
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 1
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId("00000000:19:00.0")) == 1
    serial = pynvml.nvmlDeviceGetSerial(second)
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleBySerial(serial)) == 1
    pci = pynvml.nvmlDeviceGetPciInfo(second)
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:19:00.0", "0000:19:00.0", 0x19)
    assert pynvml.nvmlDeviceGetMinorNumber(second) == 1
    assert pynvml.nvmlSystemGetProcessName(os.getpid()) == sys.orig_argv[0]
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-nobody") == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 2) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetName, ctypes.c_void_p(4096)) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_memory_v1_counts_the_reserved_part_as_used_and_v2_does_not(standin, gpu):
    standin.set_gpu(0, memory_base=GIB)
    standin.add_process(4242, memory=2 * GIB)
    newer = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    assert (newer.total, newer.reserved, newer.used) == (80 * GIB, GIB // 2, 3 * GIB)
    assert newer.free == 80 * GIB - 3 * GIB - GIB // 2
    older = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    assert (older.total, older.used) == (80 * GIB, 3 * GIB + GIB // 2)
    standin.set_gpu(0, memory_used=5 * GIB)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used == 5 * GIB
    standin.set_gpu(0, memory_total=None)
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, gpu) == pynvml.NVML_ERROR_NOT_SUPPORTED
    wrong = pynvml.c_nvmlMemory_v2_t(version=0x1000028)
    fn = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryInfo_v2")
    assert fn(gpu, ctypes.byref(wrong)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_device_readings(standin, gpu):
    standin.set_gpu(0, utilization=97, memory_utilization=41, encoder=7, decoder=8, energy=123_456_789_000)
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (97, 41)
    assert pynvml.nvmlDeviceGetEncoderUtilization(gpu) == [7, 166_667]
    assert pynvml.nvmlDeviceGetDecoderUtilization(gpu) == [8, 166_667]
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 90_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 700_000
    assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu) == 700_000
    assert pynvml.nvmlDeviceGetTemperature(gpu, 0) == 34
    assert pynvml.nvmlDeviceGetTemperatureV(gpu, 0) == 34
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 123_456_789_000
    assert pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total == 80 * GIB
    assert code_of(pynvml.nvmlDeviceGetFanSpeed, gpu) == pynvml.NVML_ERROR_NOT_SUPPORTED
    standin.set_gpu(0, utilization=None, power=None)
    assert code_of(pynvml.nvmlDeviceGetUtilizationRates, gpu) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, gpu) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_device_utilisation_follows_from_the_processes_unless_given(standin, gpu):
    standin.add_process(10, sm=70, mem=20)
    standin.add_process(11, sm=60, mem=5)
    standin.add_process(12, gpu=1, sm=9)
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (100, 25)
    assert pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(1)).gpu == 9


def test_series_follow_the_frozen_clock(standin, gpu):
    standin.set_gpu(0, power="90000@0,650000@60,ns@120")
    seen = []
    for at in (-5.0, 0.0, 59.9, 60.0, 119.0, 120.0):
        standin.freeze(at)
        code = code_of(pynvml.nvmlDeviceGetPowerUsage, gpu)
        seen.append(code or pynvml.nvmlDeviceGetPowerUsage(gpu))
    assert seen == [90_000, 90_000, 90_000, 650_000, 650_000, pynvml.NVML_ERROR_NOT_SUPPORTED]
    standin.advance(-1.0)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 650_000
    standin.thaw()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 90_000
    with pytest.raises(RuntimeError, match="not frozen"):
        standin.advance(1.0)


def test_init_is_counted_and_nothing_works_without_it(standin):
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    assert standin.held_inits == 2
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    assert standin.held_inits == 0
    standin.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


@pytest.mark.parametrize("code", [9, 18, 4, 999])
def test_init_fails_with_the_code_of_a_rule(standin, code):
    standin.fail("nvmlInit*", code)
    assert code_of(pynvml.nvmlInit) == code
    standin.clear_rules()
    assert code_of(pynvml.nvmlInit) == 0


def test_no_state_file_is_a_driver_that_is_not_loaded(standin, monkeypatch):
    monkeypatch.setenv("NVML_STANDIN_STATE", str(standin.directory / "absent"))
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_a_state_file_that_vanishes_leaves_the_last_state(standin, gpu):
    standin.set_gpu(0, power=123_000)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 123_000
    standin.state_file.unlink()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 123_000


def test_a_line_that_cannot_be_read_is_reported_and_left_out(standin, gpu, capfd):
    with standin.state_file.open("a") as file:
        file.write("gpu index=0 power=much\nunheard of=1\nprocess gpu=0 pid=7 memory=5\n")
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [7]
    reported = capfd.readouterr().err.splitlines()
    assert [line.split("line: ")[1] for line in reported] == ["gpu index=0 power=much", "unheard of=1"]


def test_process_lists_by_type(standin, gpu):
    standin.add_process(10, memory=GIB)
    standin.add_process(11, kind="G", memory=None)
    standin.add_process(12, kind="M", memory=3)
    standin.add_process(13, gpu=1)
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert [(p.pid, p.usedGpuMemory, p.gpuInstanceId) for p in compute] == [(10, GIB, 0xFFFFFFFF)]
    graphics = pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)
    assert [(p.pid, p.usedGpuMemory) for p in graphics] == [(11, None)]
    mps = pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)
    assert [(p.pid, p.usedGpuMemory) for p in mps] == [(12, 3)]
    standin.remove_process(10)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []


def test_the_sizing_calls_of_process_lists(standin, gpu):
    fn = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    count = ctypes.c_uint(0)
    assert (fn(gpu, ctypes.byref(count), None), count.value) == (0, 0)
    standin.add_process(10)
    standin.add_process(11)
    assert (fn(gpu, ctypes.byref(count), None), count.value) == (7, 2)
    infos = (pynvml.c_nvmlProcessInfo_v3_t * 2)()
    count.value = 1
    assert (fn(gpu, ctypes.byref(count), infos), count.value, infos[0].pid) == (7, 2, 0)
    assert (fn(gpu, ctypes.byref(count), infos), count.value, infos[1].pid) == (0, 2, 11)


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_the_older_names_of_process_lists(standin, gpu, kind):
    standin.add_process(77, kind=kind[0], memory=5)
    second = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")(gpu)
    assert [(p.pid, p.usedGpuMemory) for p in second] == [(77, 5)]
    count, infos = ctypes.c_uint(4), (ProcessInfoV1 * 4)()
    first = pynvml._nvmlGetFunctionPointer(f"nvmlDeviceGet{kind}RunningProcesses")
    assert first(gpu, ctypes.byref(count), infos) == 0
    assert (count.value, infos[0].pid, infos[0].usedGpuMemory) == (1, 77, 5)


def test_the_detail_list_has_modes_and_a_version(standin, gpu):
    for pid, kind in ((10, "C"), (11, "G"), (12, "M")):
        standin.add_process(pid, kind=kind, memory=pid)
    version = 0x1000018
    by_mode = [
        [p.pid for p in pynvml.nvmlDeviceGetRunningProcessDetailList(gpu, version, m)] for m in range(4)
    ]
    assert by_mode == [[10], [11], [12], [10, 11, 12]]
    row = pynvml.nvmlDeviceGetRunningProcessDetailList(gpu, version, 0)[0]
    assert (row.usedGpuMemory, row.usedGpuCcProtectedMemory) == (10, 0)
    wrong = code_of(pynvml.nvmlDeviceGetRunningProcessDetailList, gpu, 0x2000018, 0)
    assert wrong == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert pynvml.nvmlDeviceGetConfComputeMemSizeInfo(gpu).unprotectedMemSizeKib == 80 << 20


def test_mig_devices_have_memory_and_processes_and_no_utilisation(standin, gpu):
    uuid = standin.add_mig(0, 0, gi=7, memory=10 * GIB)
    standin.add_mig(0, 2, gi=9, memory=20 * GIB, slices=2)
    standin.add_process(10, gi=7, ci=0, memory=GIB, sm=99)
    standin.add_process(11, gi=9, ci=0, memory=2 * GIB)
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 8
    first = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    hole = code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1)
    assert hole == pynvml.NVML_ERROR_NOT_FOUND
    second = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
    assert pynvml.nvmlDeviceGetName(second) == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    assert [pynvml.nvmlDeviceIsMigDeviceHandle(h).value for h in (gpu, first)] == [0, 1]
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(second)) == 0
    assert pynvml.nvmlDeviceGetGpuInstanceId(second) == 9
    assert pynvml.nvmlDeviceGetComputeInstanceId(second) == 0
    assert pynvml.nvmlDeviceGetAttributes(second).memorySizeMB == 20 << 10
    memory = pynvml.nvmlDeviceGetMemoryInfo(second, version=pynvml.nvmlMemory_v2)
    assert (memory.total, memory.used) == (20 * GIB, 2 * GIB)
    lists = [[p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)] for h in (gpu, first, second)]
    assert lists == [[10, 11], [10], [11]]
    not_supported = pynvml.NVML_ERROR_NOT_SUPPORTED
    for handle in (gpu, first):
        assert code_of(pynvml.nvmlDeviceGetUtilizationRates, handle) == not_supported
        assert code_of(pynvml.nvmlDeviceGetProcessUtilization, handle, 0) == not_supported
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, first) == not_supported
    standin.remove_mig(0, 2)
    assert code_of(pynvml.nvmlDeviceGetUUID, second) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_an_old_driver_lacks_what_it_lacked(old_standin):
    old_standin.add_process(10, memory=GIB)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        with pytest.raises(pynvml.NVMLLibraryMismatchError) as raised:
            getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(gpu)
        assert not isinstance(raised.value, pynvml.NVMLError)
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu)] == [10]
    missing = [
        lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
        lambda: pynvml.nvmlDeviceGetRunningProcessDetailList(gpu, 0x1000018, 0),
        lambda: pynvml.nvmlDeviceGetTemperatureV(gpu, 0),
        lambda: pynvml.nvmlDeviceGetProcessesUtilizationInfo(gpu, 0),
        lambda: pynvml.nvmlDeviceGetConfComputeMemSizeInfo(gpu),
        pynvml.nvmlSystemGetCudaDriverVersion_v2,
    ]
    assert [code_of(fn) for fn in missing] == [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND] * len(missing)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used == GIB + GIB // 2
    assert pynvml.nvmlDeviceGetTemperature(gpu, 0) == 34
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12080


def test_error_texts_are_those_of_nvidia_ml_py(gpu):
    texts = pynvml._nvmlGetFunctionPointer("nvmlErrorString")
    texts.restype = ctypes.c_char_p
    known = pynvml.NVMLError._errcode_to_string
    assert {code: texts(code).decode() for code in known} == known
    assert str(pynvml.NVMLError(28)) == "GPU not found"
