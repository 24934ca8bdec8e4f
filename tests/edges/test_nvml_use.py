"""How much each process uses a card: no sample is no use, and what can't be read is not no use."""

from __future__ import annotations

import pynvml
import pytest

from tests.edges.nvml_machine import PID, REASON_OF_CODE, SAMPLES, why
from tests.standin.driver import GIB

pytest_plugins = ["tests.standin.fixtures", "tests.edges.nvml_fixtures"]


def test_no_sample_is_no_use(machine):
    machine.driver.add_process(PID, memory=GIB)
    assert (machine.processes()[PID].sm_ratio, machine.processes()[PID].codec_ratio) == (0.0, 0.0)


def test_success_where_the_number_of_samples_is_asked_is_no_use(machine, monkeypatch):
    machine.driver.add_process(PID, memory=GIB, sm=50)
    assert machine.processes()[PID].sm_ratio == 0.5
    # Some drivers say so instead of "not found"; nvidia-ml-py then raises an error that is none.
    monkeypatch.setitem(pynvml._nvmlGetFunctionPointer_cache, SAMPLES, lambda *arguments: 0)
    assert machine.processes()[PID].sm_ratio == 0.0


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


def test_a_damaged_sample_does_not_make_others_stale(machine):
    machine.driver.add_process(PID, memory=GIB)
    machine.driver.add_sample(PID, sm=3456789012, at=4.9)
    assert why(machine.processes()[PID].sm_ratio) == ("damaged_value", SAMPLES)
    machine.driver.clear_samples()
    machine.driver.add_sample(PID, sm=30, at=4.8)
    assert machine.processes()[PID].sm_ratio == 0.3


def test_a_time_stamp_from_the_future_does_not_hide_later_use(machine):
    machine.driver.add_process(PID, memory=GIB, sm="0@0,40@12")
    machine.driver.add_sample(PID, sm=1, at=10**9)
    assert machine.processes()[PID].sm_ratio == 0.01
    machine.driver.clear_samples()
    assert [machine.processes()[PID].sm_ratio for _ in range(3)] == [0.0, 0.4, 0.4]


def test_samples_of_pids_in_no_list_are_kept_apart(machine):
    machine.driver.add_process(324, memory=0, sm=35, sample_pid=645400)
    machine.driver.add_sample(645401, sm=0, mem=3)
    machine.driver.add_sample(0, sm=50)
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
    assert (
        why(gpu.memory_total_bytes)
        == why(gpu.memory_used_bytes)
        == ("not_available", "nvmlDeviceGetMemoryInfo")
    )
