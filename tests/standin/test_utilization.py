"""The stand-in driver's per-process utilisation: sizes, times, absence, foreign and junk samples."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from tests.standin.test_standin import code_of

pytest_plugins = ["tests.standin.fixtures"]

NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
PERIOD_US = 166_667


@pytest.fixture
def gpu(standin):
    """The handle of GPU 0, in an initialised library whose clock stands still."""
    pynvml.nvmlInit()
    standin.freeze(at=1000.0)
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def samples(gpu, since: int = 0) -> list[tuple[int, ...]]:
    """(pid, sm, mem, enc, dec) of each sample; nothing if the driver found none."""
    try:
        found = pynvml.nvmlDeviceGetProcessUtilization(gpu, since)
    except pynvml.NVMLError_NotFound:
        return []
    return [(s.pid, s.smUtil, s.memUtil, s.encUtil, s.decUtil) for s in found]


def newest(gpu, since: int = 0) -> int:
    return max(s.timeStamp for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, since))


def test_one_sample_for_each_process_that_did_something(standin, gpu):
    standin.add_process(10, sm=55, mem=3)
    standin.add_process(11)
    standin.add_process(12, enc=4, dec=5)
    standin.add_process(13, gpu=1, sm=9)
    assert samples(gpu) == [(10, 55, 3, 0, 0), (12, 0, 0, 4, 5)]


def test_idle_is_not_found_whatever_was_asked(standin, gpu):
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, 0) == NOT_FOUND
    standin.add_process(10, sm=0)
    assert code_of(pynvml.nvmlDeviceGetProcessUtilization, gpu, 0) == NOT_FOUND


def test_the_sizing_call_answers_100_whatever_the_load(standin, gpu):
    fn = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetProcessUtilization")
    count = ctypes.c_uint(0)
    assert (fn(gpu, None, ctypes.byref(count), ctypes.c_ulonglong(0)), count.value) == (7, 100)
    for pid in range(1, 131):
        standin.add_process(pid, sm=1)
    assert (fn(gpu, None, ctypes.byref(count), ctypes.c_ulonglong(0)), count.value) == (7, 130)
    room = (pynvml.c_nvmlProcessUtilizationSample_t * 100)()
    count.value = 100
    assert (fn(gpu, room, ctypes.byref(count), ctypes.c_ulonglong(0)), count.value) == (7, 130)
    assert len(samples(gpu)) == 130


def test_only_samples_newer_than_asked(standin, gpu):
    standin.add_process(10, sm=55)
    seen = newest(gpu)
    now_us = round((standin.origin + 1000.0) * 1e6)
    assert seen % PERIOD_US == 0
    assert now_us - PERIOD_US <= seen <= now_us + 1
    assert samples(gpu, since=seen) == []
    assert samples(gpu, since=seen - 1) == [(10, 55, 0, 0, 0)]
    standin.advance(0.2)
    later = newest(gpu, since=seen)
    assert later % PERIOD_US == 0
    assert now_us + 200_000 - PERIOD_US <= later <= now_us + 200_001


def test_use_since_the_last_look_shows_after_it_has_ended(standin, gpu):
    standin.add_process(10, sm="0@0,80@1001,0@1002")
    asked = round((standin.origin + 1000.0) * 1e6)
    assert samples(gpu, since=asked) == []
    standin.freeze(at=1005.0)
    assert samples(gpu, since=asked) == [(10, 80, 0, 0, 0)]
    end = round((standin.origin + 1002.0) * 1e6)
    assert end - PERIOD_US <= newest(gpu, since=asked) < end
    assert samples(gpu, since=end) == []
    standin.freeze(at=1020.0)
    assert samples(gpu) == [], "the driver's buffer holds twelve seconds"


def test_samples_may_carry_pids_that_no_list_has(standin, gpu):
    standin.add_process(324, memory=1, sm=40, sample_pid=645400)
    standin.add_sample(7, sm=12)
    listed = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    assert listed == [324]
    assert samples(gpu) == [(645400, 40, 0, 0, 0), (7, 12, 0, 0, 0)]


def test_junk_and_stale_samples_come_as_they_stand(standin, gpu):
    standin.add_sample(3456789, sm=3456789012, mem=2147483632)
    standin.add_sample(5, sm=9, at=1.5)
    now_us = round((standin.origin + 1000.0) * 1e6)
    assert samples(gpu, since=now_us + 1) == [(5, 9, 0, 0, 0)]
    assert samples(gpu) == [(3456789, 3456789012, 2147483632, 0, 0), (5, 9, 0, 0, 0)]
    standin.clear_samples()
    assert samples(gpu) == []


def test_use_that_is_not_supported_gives_no_sample(standin, gpu):
    standin.add_process(10, sm=None)
    assert samples(gpu) == []


def test_the_versioned_query_says_the_same(standin, gpu):
    assert code_of(pynvml.nvmlDeviceGetProcessesUtilizationInfo, gpu, 0) == NOT_FOUND
    standin.add_process(10, sm=55, mem=3, enc=2, dec=1)
    found = pynvml.nvmlDeviceGetProcessesUtilizationInfo(gpu, 0)
    assert [(s.pid, s.smUtil, s.memUtil, s.encUtil, s.decUtil, s.jpgUtil) for s in found] == [
        (10, 55, 3, 2, 1, 0)
    ]
    assert found[0].timeStamp == newest(gpu)
    wrong = pynvml.c_nvmlProcessesUtilizationInfo_v1_t(version=0x2000018)
    fn = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetProcessesUtilizationInfo")
    assert fn(gpu, ctypes.byref(wrong)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
