"""Simulated GPUs: what real processes say of themselves through the kernel half, and what the reader makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_guard import simulated
from jupyter_gpu_guard.core.model import GpuProcess, Sample, TelemetryState
from jupyter_gpu_guard.kernel.simulated_gpu import ENVIRONMENT, SimulatedGpu
from jupyter_gpu_guard.simulated import ABANDONED_AFTER, SimulatedCard, SimulatedReader

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

#: Runs each line that it is sent, a Python text as a literal, and answers with what it printed.
LOOP = """
import ast, os, subprocess, sys, threading, time
from jupyter_gpu_guard.kernel.simulated_gpu import SimulatedGpu
for line in sys.stdin:
    exec(ast.literal_eval(line))
    print("done", flush=True)
"""


class Child:
    """A process that holds simulated GPUs."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), ENVIRONMENT: str(folder)}
        command = [sys.executable, "-c", LOOP]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def do(self, code: str) -> list[str]:
        self.process.stdin.write(repr(code) + "\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, "done\n")
        printed = []
        for line in lines:
            assert line, "the process ended"
            printed.append(line.strip())
        return printed

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def kill(self) -> None:
        """Kill it, and don't take note of its end: it becomes a zombie."""
        self.process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def reader(tmp_path):
    return SimulatedReader(tmp_path / "simulated")


@pytest.fixture
def folder(reader, tmp_path) -> Path:
    reader.read()
    return tmp_path / "simulated"


@pytest.fixture
def child(folder) -> Iterator[Child]:
    child = Child(folder)
    yield child
    child.process.kill()
    child.process.wait()
    for stream in (child.process.stdin, child.process.stdout):
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def processes(sample: Sample, gpu: int = 0) -> dict[int, GpuProcess]:
    assert (sample.state, sample.source, sample.reason) == (TelemetryState.OK, "simulated", None)
    return {process.pid: process for process in sample.gpus[gpu].processes}


# --- what is read ---------------------------------------------------------------------------------------------------


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


# --- the end of a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Child.end, Child.kill])
def test_a_process_that_ended_holds_nothing(reader, folder, child, end):
    child.do("gpu = SimulatedGpu('1GiB', 0.5)")
    assert len(list(folder.iterdir())) == len(processes(reader.read())) == 1
    end(child)
    assert processes(reader.read()) == {}
    assert list(folder.iterdir()) == []


def test_a_process_shows_its_gpu_among_its_open_files(child, folder):
    child.do("gpu = SimulatedGpu('1GiB'); gpu.allocate(1)")
    links = [os.readlink(link) for link in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert [Path(link).parent for link in links if link.endswith(".gpu")] == [folder]
    child.do("gpu.close()")
    links = [os.readlink(link) for link in Path(f"/proc/{child.pid}/fd").iterdir()]
    assert not any(".gpu" in link for link in links)


FORK = """
receiver, sender = os.pipe()
forked = os.fork()
if forked == 0:
    refused = 0
    for attempt in (lambda: gpu.allocate(1), lambda: gpu.use(1, 0), lambda: setattr(gpu, "utilization", 1)):
        try:
            attempt()
        except RuntimeError as error:
            refused += "parent" in str(error)
    gpu.close()
    own = SimulatedGpu("2GiB", gpu=1)
    os.write(sender, b"%d" % refused)
    time.sleep(3600)
print(forked, os.read(receiver, 1).decode())
"""


def test_a_forked_child_holds_only_what_it_takes_itself(reader, child):
    child.do("gpu = SimulatedGpu('1GiB', 0.5)")
    forked, refused = map(int, child.do(FORK)[0].split())
    assert refused == 3
    sample = reader.read()
    assert processes(sample)[child.pid].memory_bytes == GIB
    assert processes(sample, 1)[forked].memory_bytes == 2 * GIB
    child.kill()
    sample = reader.read()
    assert (processes(sample), processes(sample, 1).keys()) == ({}, {forked})
    os.kill(forked, 9)


def test_a_child_that_runs_another_program_can_hold_a_gpu(reader, child):
    code = "from jupyter_gpu_guard.kernel.simulated_gpu import SimulatedGpu; g = SimulatedGpu(5); print(); input()"
    child.do("gpu = SimulatedGpu('1GiB')")
    child.do(
        f"other = subprocess.Popen([sys.executable, '-c', {code!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "other.stdout.readline()"
    )
    found = {process.pid: process.memory_bytes for process in reader.read().gpus[0].processes}
    (other,) = map(int, child.do("print(other.pid)"))
    assert found == {child.pid: GIB, other: 5}
    child.do("other.communicate(b'\\n')")
    assert processes(reader.read()).keys() == {child.pid}


def test_a_process_that_changes_all_the_time_is_in_every_reading(reader, child):
    child.do("gpu = SimulatedGpu('1GiB', 0.5)")
    child.do(
        "def change():\n"
        "    while True: gpu.allocate(1); gpu.free(1)\n"
        "threading.Thread(target=change, daemon=True).start()"
    )
    for _ in range(2000):
        process = processes(reader.read())[child.pid]
        assert process.memory_bytes in (GIB, GIB + 1)
        assert process.sm_ratio == 0.5


# --- files that are none --------------------------------------------------------------------------------------------

GOOD = {
    "gpu": 0,
    "memory_bytes": 1,
    "utilization_ratio": 0.5,
    "last_use_ratio": 0.0,
    "last_use_end": 0.0,
}
HELD = """
import fcntl
file = open({path!r}, "w+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write({content!r}); file.flush()
"""


def test_the_content_that_the_others_differ_from_is_good(reader, folder, child):
    child.do(HELD.format(path=str(folder / "x.gpu"), content=json.dumps(GOOD)))
    assert processes(reader.read()).keys() == {child.pid}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 4000,
        "[]",
        "null",
        '"text"',
        "{}",
        "\0" * 100,
        json.dumps(GOOD) + " " * 5000,
        json.dumps({**GOOD, "gpu": "0"}),
        json.dumps({**GOOD, "gpu": True}),
        json.dumps({**GOOD, "memory_bytes": -1}),
        json.dumps({**GOOD, "memory_bytes": 1.5}),
        json.dumps({**GOOD, "utilization_ratio": 1.01}),
        json.dumps({**GOOD, "utilization_ratio": float("nan")}),
        json.dumps({**GOOD, "utilization_ratio": None}),
        json.dumps({**GOOD, "last_use_end": "now"}),
        json.dumps({**GOOD, "last_use_end": 1e300, "last_use_ratio": 7}),
    ],
)
def test_a_damaged_file_is_left_out_and_the_others_are_read(reader, folder, child, content):
    other = Child(folder)
    other.do("gpu = SimulatedGpu('1GiB')")
    child.do(HELD.format(path=str(folder / "x.gpu"), content=content))
    assert processes(reader.read()).keys() == {other.pid}
    assert (folder / "x.gpu").exists()
    other.end()


def test_what_is_no_file_of_a_process_is_left_alone(reader, folder, child, tmp_path):
    child.do("gpu = SimulatedGpu('1GiB')")
    (tmp_path / "target").write_text(json.dumps(GOOD))
    (folder / "link.gpu").symlink_to(tmp_path / "target")
    (folder / "folder.gpu").mkdir()
    os.mkfifo(folder / "pipe.gpu")
    (folder / "notes.txt").touch()
    assert processes(reader.read()).keys() == {child.pid}
    left = {path.name for path in folder.iterdir()}
    assert left > {"link.gpu", "folder.gpu", "pipe.gpu", "notes.txt"}
    assert (tmp_path / "target").exists()


def test_files_of_another_user_are_neither_read_nor_removed(reader, folder, child, monkeypatch):
    child.do("gpu = SimulatedGpu('1GiB')")
    (folder / "nobody-holds-it.gpu").touch()
    somebody_else = os.getuid() + 1
    monkeypatch.setattr(simulated.os, "getuid", lambda: somebody_else)
    assert processes(reader.read()) == {}
    assert len(list(folder.iterdir())) == 2
    monkeypatch.undo()
    assert processes(reader.read()).keys() == {child.pid}
    assert len(list(folder.iterdir())) == 1


def test_a_half_written_file_is_removed_once_it_is_old(reader, folder):
    fresh, old, foreign = folder / "1-a.gpu.new", folder / "2-b.gpu.new", folder / "old.txt"
    for file in (fresh, old, foreign):
        file.touch()
    for file in (old, foreign):
        os.utime(file, times=(time.time() - ABANDONED_AFTER - 1,) * 2)
    reader.read()
    assert set(folder.iterdir()) == {fresh, foreign}


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


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"memory": "4 apples"}, "4 apples"),
        ({"memory": "GiB"}, "GiB"),
        ({"memory": -1}, "-1"),
        ({"memory": True}, "True"),
        ({"utilization": 1.5}, "1.5"),
        ({"utilization": -0.1}, "-0.1"),
        ({"utilization": float("nan")}, "nan"),
        ({"gpu": -1}, "-1"),
    ],
)
def test_numbers_out_of_range_are_refused_and_nothing_is_held(monkeypatch, folder, settings, named):
    monkeypatch.setenv(ENVIRONMENT, str(folder))
    with pytest.raises(ValueError, match=named):
        SimulatedGpu(**settings)
    assert list(folder.iterdir()) == []


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
