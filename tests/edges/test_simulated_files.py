"""The files of simulated GPUs: gone with their process however it ends, and harmless when they are damaged."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from jupyter_gpu_guard import simulated
from jupyter_gpu_guard.simulated import ABANDONED_AFTER
from tests.edges.simulated_process import GIB, Child, processes

pytest_plugins = ["tests.edges.simulated_fixtures"]


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
    try:
        assert refused == 3
        sample = reader.read()
        assert processes(sample)[child.pid].memory_bytes == GIB
        assert processes(sample, 1)[forked].memory_bytes == 2 * GIB
        child.kill()
        sample = reader.read()
        assert (processes(sample), processes(sample, 1).keys()) == ({}, {forked})
    finally:
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
