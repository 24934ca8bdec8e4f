"""Simulated GPUs: what real processes say of themselves through the kernel half, and what the reader makes of it.

How the end of a process and damaged files are met is in test_simulated_files.py.
"""

from __future__ import annotations

import re

import pytest

from jupyter_gpu_guard.core.model import TelemetryState
from jupyter_gpu_guard.kernel.simulated_gpu import CARD_BYTES, ENVIRONMENT, GPUS, SimulatedGpu
from jupyter_gpu_guard.simulated import SimulatedCard, SimulatedReader
from tests.edges.simulated_process import GIB, Child, processes

pytest_plugins = ["tests.edges.simulated_fixtures"]


def test_two_unused_cards_and_a_private_folder(reader, tmp_path):
    sample = reader.read()
    first, second = sample.gpus
    assert (first.name, first.index, first.uuid) == ("Simulated GPU", 0, "GPU-simulated-0")
    assert (second.index, second.uuid, second.mig) == (1, "GPU-simulated-1", False)
    assert (first.memory_total_bytes, first.memory_used_bytes, first.utilization_ratio) == (16 * GIB, 0, 0.0)
    assert (first.power_watts, first.power_limit_watts, first.temperature_celsius) == (25.0, 250.0, 35.0)
    assert (first.processes, sample.last_success) == ((), sample.taken)
    assert (tmp_path / "simulated").stat().st_mode & 0o777 == 0o700


def test_a_process_that_holds_a_gpu(reader, child):
    child.do("gpu = SimulatedGpu(memory='4GiB', utilization=0.6, gpu=1)")
    sample = reader.read()
    assert processes(sample, 0) == {}
    process = processes(sample, 1)[child.pid]
    assert (process.kinds, process.memory_bytes, process.mig_uuid) == ({"compute"}, 4 * GIB, None)
    assert (process.sm_ratio, process.codec_ratio) == (0.6, 0.0)
    gpu = sample.gpus[1]
    assert (gpu.memory_used_bytes, gpu.utilization_ratio) == (4 * GIB, 0.6)
    assert (gpu.power_watts, gpu.temperature_celsius) == (160.0, 59.0)


def test_what_a_process_changes_shows_at_once(reader, child):
    child.do("gpu = SimulatedGpu(memory=100)")
    seen = []
    for change in (
        "gpu.allocate('1KiB')",
        "gpu.free(24)",
        "gpu.free()",
        "gpu.utilization = 0.25",
        "gpu.close()",
    ):
        child.do(change)
        process = processes(reader.read()).get(child.pid)
        seen.append(process and (process.memory_bytes, process.sm_ratio))
    assert seen == [(1124, 0.0), (1100, 0.0), (0, 0.0), (0, 0.25), None]


def test_use_lasts_as_long_as_it_is_told_to(reader, child):
    child.do("gpu = SimulatedGpu(memory='1GiB')")
    child.do("thread = threading.Thread(target=gpu.use, args=(0.5, 3600), daemon=True); thread.start()")
    child.do("while not gpu.utilization: pass")
    assert processes(reader.read())[child.pid].sm_ratio == 0.5
    child.do("other = threading.Thread(target=gpu.use, args=(0.25, 0.2)); other.start()")
    child.do("while gpu.utilization == 0.5: pass")
    assert processes(reader.read())[child.pid].sm_ratio == 0.75
    child.do("other.join()")
    reader.read()
    assert processes(reader.read())[child.pid].sm_ratio == 0.5


def test_use_between_two_readings_shows_once(reader, child):
    child.do("gpu = SimulatedGpu(memory='1GiB')")
    reader.read()
    child.do("gpu.use(0.8, seconds=0.01)")
    assert [processes(reader.read())[child.pid].sm_ratio for _ in range(2)] == [0.8, 0.0]
    child.do("gpu.utilization = 0.3; gpu.utilization = 0")
    assert [processes(reader.read())[child.pid].sm_ratio for _ in range(2)] == [0.3, 0.0]


INTERRUPTED = """
import signal
def interrupt():
    while not gpu.utilization:
        pass
    time.sleep(0.3)  # a signal right before a system call would not end it
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    gpu.use(1.0, 3600)
except KeyboardInterrupt:
    print("interrupted", gpu.utilization)
"""


def test_use_that_is_interrupted_ends(reader, child):
    child.do("gpu = SimulatedGpu(memory='1GiB')")
    assert child.do(INTERRUPTED) == ["interrupted 0.0"]
    reader.read()
    assert processes(reader.read())[child.pid].sm_ratio == 0.0


def test_a_process_that_holds_a_card_twice_is_one(reader, child):
    child.do("a = SimulatedGpu('1GiB', 0.5); b = SimulatedGpu('2GiB', 0.75); c = SimulatedGpu('4GiB', gpu=1)")
    sample = reader.read()
    assert [(process.memory_bytes, process.sm_ratio) for process in sample.gpus[0].processes] == [
        (3 * GIB, 1.0)
    ]
    assert processes(sample, 1)[child.pid].memory_bytes == 4 * GIB
    child.do("del a, b")
    assert processes(reader.read()) == {}


def test_several_processes_share_a_card(reader, folder, child):
    other = Child(folder)
    for process, use in ((child, 0.75), (other, 0.5)):
        process.do(f"gpu = SimulatedGpu('1GiB', {use})")
    sample = reader.read()
    assert {pid: process.sm_ratio for pid, process in processes(sample).items()} == {
        child.pid: 0.75,
        other.pid: 0.5,
    }
    assert (sample.gpus[0].utilization_ratio, sample.gpus[0].memory_used_bytes) == (1.0, 2 * GIB)
    other.end()
    assert processes(reader.read()).keys() == {child.pid}


def test_other_cards(folder, child):
    child.do("gpu = SimulatedGpu('1GiB', 0.5, gpu=1)")
    reader = SimulatedReader(folder, [SimulatedCard("Simulated A", 8 * GIB, 10.0, 100.0)])
    (gpu,) = reader.read().gpus
    assert (gpu.name, gpu.memory_total_bytes, gpu.power_watts) == ("Simulated A", 8 * GIB, 10.0)
    assert gpu.processes == ()  # there is no second card that it could hold


def test_a_folder_that_cannot_be_read(reader, child, folder):
    child.do("gpu = SimulatedGpu('1GiB')")
    good = reader.read()
    folder.rename(folder.with_name("elsewhere"))
    folder.touch()
    sample = reader.read()
    assert (sample.state, sample.gpus, sample.last_success) == (
        TelemetryState.UNAVAILABLE,
        good.gpus,
        good.taken,
    )
    assert sample.reason.code == "simulation_unreadable"
    assert SimulatedReader(folder).read().gpus == ()


def test_a_release_changes_nothing(reader, child):
    child.do("gpu = SimulatedGpu('1GiB')")
    before = reader.read().gpus
    reader.release()
    assert reader.read().gpus == before


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, ""])
def test_a_server_without_simulated_gpus_is_told_how_to_have_them(monkeypatch, value):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENVIRONMENT, value)
    with pytest.raises(RuntimeError) as raised:
        SimulatedGpu()
    text = "this server has no simulated GPU: start it with --GpuGuard.gpu_source=simulated"
    assert str(raised.value) == text


MEMORY = "bytes from 0, or a text such as '4GiB', and at most the 16 GiB that simulated GPU 0 has"
SHARE = "a share of the time, a number from 0 to 1"
INDEX = "a whole number from 0 to 1: there are 2 simulated GPUs"


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        (
            "memory",
            ["4 apples", "GiB", "", "-1GiB", "400GiB", "9" * 400, -1, (16 << 30) + 1, 10**400, True, None, [1],
             float("nan"), float("inf")],
            MEMORY,
        ),
        ("utilization", [1.5, -0.1, float("nan"), True, "0.5", None], SHARE),
        ("gpu", [-1, 2, 7, True, "0", 0.5, 1e300, None], INDEX),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_and_nothing_is_held(monkeypatch, folder, key, values, expected):
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    for value in values:
        with pytest.raises(ValueError, match=key) as raised:
            SimulatedGpu(**{key: value})
        assert str(raised.value) == f"{key} = {value!r}: expected {expected}"
    assert list(folder.iterdir()) == []


def test_a_wrong_change_is_named_and_changes_nothing(monkeypatch, folder):
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    with SimulatedGpu("12GiB", 0.25, gpu=1) as gpu:
        (file,) = folder.iterdir()
        before = file.read_text()
        for change, message in [
            (lambda: gpu.allocate("8GiB"), "memory = '8GiB': expected bytes from 0, or a text such as '4GiB', and at "
             "most the 4 GiB that are left of simulated GPU 1"),
            (lambda: gpu.allocate(-5), "memory = -5: "),
            (lambda: gpu.free("13GiB"), "and at most the 12 GiB that are held"),
            (lambda: gpu.free(True), "memory = True: "),
            (lambda: gpu.use(2), "utilization = 2: "),
            (lambda: gpu.use(1, seconds=-1), "seconds = -1: expected a number from 0"),
            (lambda: gpu.use(1, seconds="5"), "seconds = '5': "),
            (lambda: gpu.use(1, seconds=1e300), "seconds = 1e+300: "),
            (lambda: setattr(gpu, "utilization", "0.5"), "utilization = '0.5': "),
        ]:  # fmt: skip
            with pytest.raises(ValueError, match=re.escape(message)):
                change()
        assert (gpu.memory, gpu.utilization, file.read_text()) == (12 << 30, 0.25, before)


def test_the_cards_that_a_process_knows_of_are_those_of_the_server(reader):
    cards = reader.read().gpus
    assert [card.memory_total_bytes for card in cards] == [CARD_BYTES] * GPUS


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("512", 512),
        ("1.5 KiB", 1536),
        ("2kb", 2000),
        ("3 MB", 3_000_000),
        ("64MiB", 64 << 20),
        (7, 7),
    ],
)
def test_amounts_of_memory(monkeypatch, folder, text, amount):
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    with SimulatedGpu(text) as gpu:
        assert gpu.memory == amount
        gpu.allocate(text)
        assert gpu.memory == 2 * amount


def test_a_gpu_that_was_closed_cannot_be_used(monkeypatch, folder):
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    with SimulatedGpu("1GiB") as gpu:
        assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) == []
    changes = (
        lambda: gpu.allocate(1),
        gpu.free,
        lambda: gpu.use(1, 0),
        lambda: setattr(gpu, "utilization", 1),
    )
    for change in changes:
        with pytest.raises(RuntimeError, match="closed"):
            change()
    gpu.close()
    assert list(folder.iterdir()) == []
