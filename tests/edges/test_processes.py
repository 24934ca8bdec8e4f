"""The process reader and the record of processes that may be ended, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jupyter_gpu_guard.core.model import Instant, Link, Process, ProcessKey, Unknown
from jupyter_gpu_guard.core.reasons import because
from jupyter_gpu_guard.processes import (
    ProcessReader,
    Used,
    marked_processes,
    means,
    record_tree,
)
from jupyter_gpu_guard.procfs import ProcFiles, parse_stat
from tests.core.world import INIT, SERVER, SHELL, process, scan

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
NOBODY = 65534


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> Instant:
        return Instant(self.seconds, BEGIN + timedelta(seconds=self.seconds))


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Child:
    """A Python process that runs one line of code after the other as it is told."""

    def __init__(self, *, env: dict[str, str] | None = None) -> None:
        loop = "import sys\nfor line in sys.stdin:\n exec(line)\n print('done', flush=True)"
        self.process = subprocess.Popen(
            [sys.executable, "-c", loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid
        stat = ProcFiles(Path("/proc"), ()).stat(self.pid)
        assert stat is not None
        self.key = ProcessKey(self.pid, stat.start_ticks)

    def do(self, code: str) -> str:
        """Run one line; what it printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        printed = []
        while (line := self.process.stdout.readline().strip()) != "done":
            assert line or self.process.poll() is None, "the child died"
            printed.append(line)
        return "\n".join(printed)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(**values: object) -> Child:
        child = Child(**values)  # type: ignore[arg-type]
        child.do("pass")  # it has reached its own code
        children.append(child)
        return child

    yield start
    for child in children:
        child.end()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def pid_of_another_user(spawn: Callable[..., Child]) -> int:
    """A live process that isn't ours: root can make one, everybody else finds root's."""
    if os.geteuid() != 0:
        return 1
    child = spawn()
    child.do(f"import os; os.setuid({NOBODY})")
    return child.pid


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_full_scan_shows_who_descends_from_whom(spawn: Callable[..., Child]) -> None:
    child = spawn(env={"JUPYTER_GPU_GUARD_KERNEL_ID": "k-1"})
    grandchild = int(child.do("import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid)"))
    found = ProcessReader().read((), MINUTE, ())
    assert found.full
    assert found.server_key is not None
    assert found.server_key.pid == os.getpid()
    mine, below = found.processes[child.pid], found.processes[grandchild]
    assert (mine.key, mine.parent_pid, mine.uid) == (child.key, os.getpid(), os.geteuid())
    assert (mine.marker, mine.opens_gpu) == ("k-1", False)
    assert (below.parent_pid, below.name, below.marker, below.session) == (
        child.pid,
        "sleep",
        "k-1",
        mine.session,
    )
    assert mine.cgroup == found.server_cgroup == Path("/proc/self/cgroup").read_text().strip()
    child.do("p.kill()")


@pytest.mark.parametrize("name", ["a) R 1 1", "((", ") (", "x y z"])
def test_a_name_may_hold_parentheses_and_blanks(spawn: Callable[..., Child], name: str) -> None:
    child = spawn()
    child.do(f"open('/proc/self/comm', 'w').write({name!r})")
    seen = ProcessReader().read((), MINUTE, ()).processes[child.pid]
    assert (seen.name, seen.parent_pid, seen.key) == (name, os.getpid(), child.key)


def test_the_stat_line_of_a_process_is_read_by_its_last_parenthesis() -> None:
    fields = " ".join(str(number) for number in range(3, 53))
    stat = parse_stat(f"7 (a) b (c)) S {fields.removeprefix('3 ')}".encode())
    ticks = os.sysconf("SC_CLK_TCK")
    assert (stat.name, stat.state, stat.parent_pid, stat.session, stat.start_ticks) == (
        "a) b (c)",
        "S",
        4,
        6,
        22,
    )
    assert (stat.own_seconds, stat.reaped_seconds) == ((14 + 15) / ticks, (16 + 17) / ticks)


def test_another_users_process_is_not_looked_into(spawn: Callable[..., Child]) -> None:
    pid = pid_of_another_user(spawn)
    seen = ProcessReader(gpu_files=("*",)).read((), MINUTE, ()).processes[pid]
    assert seen.uid != os.geteuid()
    assert (seen.marker, seen.opens_gpu, seen.cgroup) == (None, False, "")
    assert isinstance(seen.io_bytes, Unknown)


def test_a_zombie_is_seen_as_one(spawn: Callable[..., Child]) -> None:
    child = spawn()
    zombie = int(child.do("import subprocess; p = subprocess.Popen(['true']); print(p.pid)"))
    assert eventually(lambda: b") Z " in Path(f"/proc/{zombie}/stat").read_bytes())
    seen = ProcessReader(gpu_files=("*",)).read((), MINUTE, ()).processes[zombie]
    assert (seen.state, seen.opens_gpu) == ("Z", False)


def test_what_is_gone_is_left_out(spawn: Callable[..., Child], clock: Clock) -> None:
    child = spawn()
    reader = ProcessReader(clock=clock)
    assert child.pid in reader.read((), MINUTE, ()).processes
    child.end()
    later = reader.read((child.pid,), MINUTE, ())
    assert not later.full
    assert child.pid not in later.processes
    assert child.pid not in list(later.processes)
    assert len(later.processes) == len(list(later.processes))


def test_files_of_a_process_that_is_gone_read_as_nothing(spawn: Callable[..., Child]) -> None:
    child = spawn()
    child.end()
    files = ProcFiles(Path("/proc"), ("*",))
    assert (files.stat(child.pid), files.uid(child.pid), files.marker(child.pid)) == (None, None, None)
    assert isinstance(files.io_bytes(child.pid), Unknown)
    assert isinstance(files.opens_gpu(child.pid), Unknown)
    assert files.cgroup(child.pid) == ""


# --- who has a GPU open ---------------------------------------------------------------------------------------------


def test_an_open_gpu_file_gives_a_process_away(
    spawn: Callable[..., Child], clock: Clock, tmp_path: Path
) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    child, other = spawn(), spawn()
    reader = ProcessReader(clock=clock, gpu_files=(str(tmp_path / "nvidia*"),))
    assert reader.read((), MINUTE, ()).processes[child.pid].opens_gpu is False
    child.do(f"f = open({str(device)!r})")
    # The rounds between full scans ask only those that the driver names.
    assert reader.read((), MINUTE, (child.pid,)).processes[child.pid].opens_gpu is False
    between = reader.read((child.pid,), MINUTE, ())
    assert not between.full
    assert between.processes[child.pid].opens_gpu is True
    clock.seconds += 60
    found = reader.read((), MINUTE, ()).processes
    assert (found[child.pid].opens_gpu, found[other.pid].opens_gpu) == (True, False)


def test_a_mapped_libcuda_gives_a_process_away(spawn: Callable[..., Child], tmp_path: Path) -> None:
    library, runtime = tmp_path / "libcuda.so.1", tmp_path / "libcudart.so.12"
    for file in (library, runtime):
        file.write_bytes(b"\0" * 4096)
    child, other = spawn(), spawn()
    map_it = "import mmap; f = open({!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4096); f.close()"
    child.do(map_it.format(str(library)))
    other.do(
        map_it.format(str(runtime))
    )  # the runtime is no proof: it comes with the package, without a driver
    found = ProcessReader().read((), MINUTE, ()).processes
    assert (found[child.pid].opens_gpu, found[other.pid].opens_gpu) == (True, False)


def test_a_libcuda_that_is_mapped_later_or_let_go_is_noticed(
    spawn: Callable[..., Child], tmp_path: Path
) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    child = spawn()
    reader = ProcessReader()
    seen = []
    for line in (
        "pass",
        "pass",
        f"import mmap; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4096); f.close()",
        "pass",
        "m.close()",
    ):
        child.do(line)
        seen.append(reader.read((), NOW, ()).processes[child.pid].opens_gpu)
    assert seen == [False, False, True, True, False]


# --- when everything is scanned -------------------------------------------------------------------------------------


def test_full_scans_come_once_a_period(spawn: Callable[..., Child], clock: Clock) -> None:
    child = spawn()
    reader = ProcessReader(clock=clock)
    kinds = []
    for _ in range(25):
        kinds.append(reader.read((), MINUTE, (child.pid,)).full)
        clock.seconds += 5
    assert kinds == [step % 12 == 0 for step in range(25)]
    assert reader.full_scans == 3


def test_period_0_scans_now_and_leaves_the_means_alone(clock: Clock) -> None:
    reader = ProcessReader(clock=clock)
    reader.read((), MINUTE, ())
    clock.seconds += 60
    measured = reader.read((), MINUTE, ())
    clock.seconds += 3
    forced = reader.read((), NOW, ())
    assert forced.full
    assert forced.measured_at == measured.measured_at
    assert forced.cpu_cores == measured.cpu_cores
    clock.seconds += 56
    assert not reader.read((), MINUTE, ()).full
    clock.seconds += 1
    again = reader.read((), MINUTE, ())
    assert again.measured == timedelta(seconds=60)  # forced ones put nothing off
    assert again.measured_at == clock()


def test_an_unknown_gpu_pid_asks_for_one_scan_and_is_remembered(clock: Clock) -> None:
    reader = ProcessReader(clock=clock)
    reader.read((), MINUTE, ())
    foreign = 2**22 - 1  # above any pid that is given out here
    assert not reader.read((foreign,), MINUTE, ()).full  # a scan has only just been made
    clock.seconds += 1
    assert reader.read((foreign,), MINUTE, ()).full
    for _ in range(5):
        clock.seconds += 5
        assert not reader.read((foreign,), MINUTE, ()).full
    assert reader.full_scans == 2


def test_a_new_process_on_a_gpu_is_found_with_its_parents_at_once(
    spawn: Callable[..., Child], clock: Clock
) -> None:
    reader = ProcessReader(clock=clock, gpu_files=("/dev/null",))
    reader.read((), MINUTE, ())
    parent = spawn()
    child = int(
        parent.do(
            "import subprocess; p = subprocess.Popen(['sleep', '60'], stdin=subprocess.DEVNULL); print(p.pid)"
        )
    )
    found = reader.read((child,), MINUTE, ())
    assert not found.full
    assert found.processes[child].parent_pid == parent.pid
    assert found.processes[parent.pid].parent_pid == os.getpid()
    assert found.processes[child].opens_gpu is True
    parent.do("p.kill()")


def test_rounds_between_full_scans_read_only_what_they_are_asked_for(
    spawn: Callable[..., Child], clock: Clock, tmp_path: Path
) -> None:
    """/proc is replaced by a copy that lacks everybody else: nobody misses them."""
    child = spawn()
    for pid in (os.getpid(), child.pid):
        copy = tmp_path / str(pid)
        copy.mkdir()
        for name in ("stat", "status", "io", "cgroup", "environ"):
            (copy / name).write_bytes(Path(f"/proc/{pid}/{name}").read_bytes())
    reader = ProcessReader(proc=tmp_path, clock=clock)
    assert set(reader.read((), MINUTE, ()).processes) == {os.getpid(), child.pid}
    (tmp_path / str(os.getpid()) / "stat").unlink()
    between = reader.read((), MINUTE, ()).processes
    assert set(between) == {os.getpid(), child.pid}  # not looked at again
    assert set(reader.read((), MINUTE, (child.pid,)).processes) == {child.pid}


def test_between_full_scans_a_known_process_is_seen_to_die(spawn: Callable[..., Child], clock: Clock) -> None:
    child = spawn(env={"JUPYTER_GPU_GUARD_KERNEL_ID": "k-1"})
    reader = ProcessReader(clock=clock)
    before = [reader.read((), NOW, ()).processes[child.pid] for _ in range(2)][1]
    assert reader.read((child.pid,), MINUTE, ()).processes[child.pid] == before
    child.process.kill()
    assert eventually(lambda: reader.read((child.pid,), MINUTE, ()).processes[child.pid].state == "Z")
    child.process.wait()
    assert child.pid not in reader.read((child.pid,), MINUTE, ()).processes
    assert reader.full_scans == 2


def test_between_full_scans_a_known_process_is_seen_to_lose_its_parent(
    spawn: Callable[..., Child], clock: Clock
) -> None:
    """Also one that was watched when it still had it."""
    parent = spawn()
    start = "import subprocess; p = subprocess.Popen(['sleep', '60'], stdin=subprocess.DEVNULL); print(p.pid)"
    orphan = int(parent.do(start))
    reader = ProcessReader(clock=clock)
    for _ in range(2):
        reader.read((), NOW, ())
    try:
        assert reader.read((orphan,), MINUTE, ()).processes[orphan].parent_pid == parent.pid
        parent.process.kill()
        parent.process.wait()
        found = reader.read((orphan,), MINUTE, ())
        assert found.processes[orphan].parent_pid not in (parent.pid, 0)
        assert not found.full
    finally:
        os.kill(orphan, signal.SIGKILL)


def _pidfds() -> int:
    folder = Path("/proc/self/fd")
    return sum("pidfd" in os.readlink(file) for file in folder.iterdir() if file.is_symlink())


def test_what_is_not_asked_for_any_more_holds_no_descriptor(
    spawn: Callable[..., Child], clock: Clock
) -> None:
    child = spawn()
    reader = ProcessReader(clock=clock)
    held = []
    for roots in ((), (), (child.pid,), (), ()):
        reader.read((), NOW, ())
        reader.read((), MINUTE, roots)
        held.append(_pidfds())
    assert held[2] > held[1] == held[4]


def test_a_marker_of_a_process_just_forked_is_read_again(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "700"
    folder.mkdir()
    for name in ("stat", "status", "io", "cgroup"):
        (folder / name).write_bytes(Path(f"/proc/self/{name}").read_bytes())
    (folder / "environ").write_bytes(b"A=1\0JUPYTER_GPU_GUARD_KERNEL_ID=parents\0")
    reader = ProcessReader(proc=tmp_path, clock=clock)
    seen = [reader.read((), NOW, ()).processes[700].marker]
    for marker in (b"own", b"never-read", b"never-read"):
        (folder / "environ").write_bytes(b"JUPYTER_GPU_GUARD_KERNEL_ID=" + marker + b"\0B=2")
        seen.append(reader.read((), NOW, ()).processes[700].marker)
    assert seen == ["parents", "own", "own", "own"]


# --- what they use --------------------------------------------------------------------------------------------------

A, B, C, D = (ProcessKey(pid, pid) for pid in (10, 20, 30, 40))


def used(parent: int, own: float = 0.0, reaped: float = 0.0, io: int | Unknown = 0) -> Used:
    return Used(parent, own, reaped, io)


def test_means_are_what_was_used_in_the_period() -> None:
    cpu, io = means({A: used(1, 100, 50, 1000)}, {A: used(1, 130, 50, 7000)}, 60)
    assert cpu == {A: 0.5}
    assert io == {A: 100.0}


def test_a_new_process_counts_from_its_birth() -> None:
    cpu, io = means({A: used(1)}, {A: used(1), B: used(10, 6, 0, 600)}, 60)
    assert (cpu[B], io[B]) == (0.1, 10.0)


def test_a_child_that_ended_counts_through_its_parent_with_what_is_new() -> None:
    """It had used 100 s and 6000 bytes before the period, and 3 s and 60 bytes in it."""
    before = {A: used(1, 5, 0, 0), B: used(10, 100, 0, 6000)}
    cpu, io = means(before, {A: used(1, 5, 103, 6060)}, 60)
    assert cpu == {A: pytest.approx(3 / 60)}
    assert io == {A: pytest.approx(1.0)}


def test_a_whole_branch_that_ended_counts_through_who_lives_on() -> None:
    before = {A: used(1), B: used(10, 100), C: used(20, 40), D: used(30, 7, 3)}
    cpu, _ = means(before, {A: used(1, 0, 156)}, 60)
    assert cpu == {A: pytest.approx(6 / 60)}


def test_what_a_living_parent_reaped_itself_is_not_hidden_by_children_that_others_reaped() -> None:
    """B ended, but its 1000 s went elsewhere: what A did reap, 3 s of somebody else, stays."""
    cpu, io = means({A: used(1), B: used(10, 1000, 0, 9000)}, {A: used(1, 1, 3, 60)}, 60)
    assert cpu == {A: pytest.approx(4 / 60)}
    assert io == {A: 1.0}


def test_a_reused_pid_is_a_new_process() -> None:
    cpu, _ = means({A: used(1, 100)}, {ProcessKey(10, 999): used(1, 6)}, 60)
    assert cpu == {ProcessKey(10, 999): 0.1}


def test_io_that_could_not_be_read_at_either_end_is_unknown() -> None:
    hidden = Unknown(because("proc_unreadable", pid=1))
    for before, after in ((hidden, 5), (5, hidden)):
        _, io = means({A: used(1, io=before)}, {A: used(1, io=after)}, 60)
        assert io == {A: hidden}


def test_cpu_of_real_processes_is_measured_even_if_they_end_in_between(
    spawn: Callable[..., Child], clock: Clock
) -> None:
    worker, parent, idle = spawn(), spawn(), spawn()
    reader = ProcessReader(clock=clock)
    assert reader.read((), MINUTE, ()).cpu_cores == {}
    burn = (
        "import time; end = time.process_time() + 0.5; any(time.process_time() >= end for _ in iter(int, 1))"
    )
    worker.do(burn)
    parent.do(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)")
    clock.seconds += 60
    found = reader.read((), MINUTE, ())
    assert found.measured == MINUTE
    assert found.measured_at == clock()
    assert found.cpu_cores[worker.key] >= 0.45 / 60
    assert found.cpu_cores[parent.key] >= 0.45 / 60
    assert found.cpu_cores[idle.key] < 0.1 / 60


def test_what_is_written_counts_and_what_is_sent_does_not(
    spawn: Callable[..., Child], clock: Clock, tmp_path: Path
) -> None:
    """Kernels exchange their messages by send and recv."""
    writer, talker = spawn(), spawn()
    reader = ProcessReader(clock=clock)
    reader.read((), MINUTE, ())
    writer.do(f"f = open({str(tmp_path / 'file')!r}, 'wb', 0); f.write(bytes(6_000_000)); f.close()")
    talker.do(
        "import socket; a, b = socket.socketpair(); "
        "n = sum(a.send(bytes(1000)) + len(b.recv(1000)) for _ in range(3000))"
    )
    clock.seconds += 60
    rates = reader.read((), MINUTE, ()).io_rate
    written, sent = rates[writer.key], rates[talker.key]
    assert not isinstance(written, Unknown)
    assert not isinstance(sent, Unknown)
    assert 100_000 <= written < 110_000
    assert sent < 50_000


# --- the record -----------------------------------------------------------------------------------------------------


def test_only_what_is_recorded_can_be_ended(spawn: Callable[..., Child]) -> None:
    mine, other = spawn(), spawn()
    tree = record_tree([(mine.key, Link.DESCENDANT)])
    assert tree.links == {mine.key: Link.DESCENDANT}
    with pytest.raises(KeyError):
        tree.terminate([mine.key, other.key])
    assert tree.alive() == (mine.key,)  # all or none
    assert tree.terminate([mine.key]) == (mine.key,)
    assert mine.process.wait(20) == -signal.SIGTERM
    assert tree.alive() == ()
    assert tree.terminate([mine.key]) == ()
    tree.close()
    assert other.process.poll() is None


def test_what_ignores_sigterm_is_killed(spawn: Callable[..., Child]) -> None:
    child = spawn()
    child.do("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    tree = record_tree([(child.key, Link.DETACHED)])
    assert tree.terminate([child.key]) == (child.key,)
    assert tree.alive() == (child.key,)
    assert tree.kill([child.key]) == (child.key,)
    assert child.process.wait(20) == -signal.SIGKILL
    tree.close()


@pytest.fixture(params=["pidfd", "start time"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are told apart: by their descriptors, or by their start time where there are none."""
    if request.param == "start time":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return str(request.param)


def test_the_dead_and_the_zombies_do_not_live(spawn: Callable[..., Child], by: str) -> None:
    child = spawn()
    tree = record_tree([(child.key, Link.KERNEL)])
    assert tree.alive() == (child.key,)
    os.kill(child.pid, signal.SIGKILL)
    assert eventually(lambda: tree.alive() == ())  # nobody has waited for it: a zombie
    assert tree.kill([ProcessKey(child.pid, next(iter(tree.links)).start_ticks)]) == ()
    tree.close()


def test_who_is_never_recorded(spawn: Callable[..., Child], by: str) -> None:
    child = spawn()
    another = pid_of_another_user(spawn)
    reader = ProcessReader().read((), MINUTE, ())
    assert reader.server_key is not None
    ended = spawn()
    gone = ended.key
    ended.end()
    tree = record_tree(
        [
            (reader.processes[another].key, Link.DESCENDANT),  # another user's
            (
                ProcessKey(child.pid, child.key.start_ticks + 1),
                Link.DESCENDANT,
            ),  # its pid went to another one
            (reader.server_key, Link.DESCENDANT),  # this process
            (reader.processes[1].key, Link.DESCENDANT),
            (gone, Link.DESCENDANT),
            (child.key, Link.INFERRED),
        ]
    )
    assert tree.links == {}
    with pytest.raises(KeyError):
        tree.kill([child.key])
    assert child.process.poll() is None
    tree.close()


def test_one_that_became_another_users_is_left_alone(spawn: Callable[..., Child]) -> None:
    """As with sudo. Only root can stage it; for everybody else it stays ours and is ended."""
    child = spawn()
    tree = record_tree([(child.key, Link.DESCENDANT)])
    root = os.geteuid() == 0
    child.do(f"import os; os.geteuid() or os.setuid({NOBODY})")
    assert tree.terminate([child.key]) == (() if root else (child.key,))
    assert eventually(lambda: tree.alive() == ((child.key,) if root else ()))
    tree.close()


def test_closing_gives_the_descriptors_back(spawn: Callable[..., Child]) -> None:
    child = spawn()
    before = len(os.listdir("/proc/self/fd"))
    tree = record_tree([(child.key, Link.KERNEL)])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    tree.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(KeyError):
        tree.kill([child.key])


def test_what_an_earlier_server_left_behind() -> None:
    left: Process = process(300, INIT, marker="old")
    found = scan(
        left,
        process(310, 300, marker="old"),
        process(320, INIT, marker="alive"),
        process(330, SHELL),
        process(340, 330, marker="of-another-server"),
        process(350, INIT, marker="old", state="Z"),
        process(360, SERVER, marker="just-starting"),
    )
    assert [p.key.pid for p in marked_processes(found, {"alive"})] == [300, 310]
