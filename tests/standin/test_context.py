"""Real processes as GPU processes: they show while they live, whatever way they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pynvml
import pytest
from jupyter_client.manager import start_new_kernel

from tests.standin.context import Context
from tests.standin.driver import GIB, kernel_code
from tests.standin.test_standin import code_of
from tests.standin.test_utilization import samples

pytest_plugins = ["tests.standin.fixtures"]


@pytest.fixture
def gpu(standin):
    """The handle of GPU 0, in an initialised library."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


@pytest.fixture
def start(standin):
    """Starts a Python that runs code with `Context`; it has run up to its first `print` when this returns."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-c", kernel_code(code)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        process.ready = process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def listed(gpu) -> list[tuple[int, int | None]]:
    return [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]


WAIT = "; print('ready'); input()"


def test_a_process_shows_until_it_exits(gpu, start):
    process = start("c = Context(memory=2 << 30, sm=80, mem=12, enc=1, dec=2)" + WAIT)
    assert listed(gpu) == [(process.pid, 2 * GIB)]
    assert samples(gpu) == [(process.pid, 80, 12, 1, 2)]
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 80
    assert listed(pynvml.nvmlDeviceGetHandleByIndex(1)) == []
    process.communicate("\n")
    assert listed(gpu) == []
    assert samples(gpu) == []


def test_a_killed_process_is_gone_while_it_is_still_a_zombie(gpu, start):
    process = start("c = Context(memory=5)" + WAIT)
    assert listed(gpu) == [(process.pid, 5)]
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with open(f"/proc/{process.pid}/stat") as stat:
        assert stat.read().rpartition(")")[2].split()[0] == "Z"
    assert listed(gpu) == []


def test_a_forked_child_does_not_show_until_it_uses_the_gpu_itself(gpu, start):
    process = start(
        "import os; c = Context(memory=5)\n"
        "if os.fork() == 0:\n"
        "    c.close(); print('ready', os.getpid()); input(); d = Context(memory=6); print('used'); input()\n"
        "else:\n"
        "    os.wait()"
    )
    child = int(process.ready.split()[1])
    assert listed(gpu) == [(process.pid, 5)]
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "used\n"
    assert listed(gpu) == [(process.pid, 5), (child, 6)]


def test_a_slot_left_behind_is_used_again(gpu, start):
    first = start("c = Context(memory=5)" + WAIT)
    second = start("c = Context(memory=6)" + WAIT)
    first.kill()
    first.wait()
    third = start("c = Context(memory=7)" + WAIT)
    assert listed(gpu) == [(third.pid, 7), (second.pid, 6)]


def test_this_process_shows_too_and_on_two_gpus(gpu):
    with Context(memory=5, sm=3) as zero, Context(gpu=1, memory=None, kind="G"):
        one = pynvml.nvmlDeviceGetHandleByIndex(1)
        assert listed(gpu) == [(os.getpid(), 5)]
        graphics = pynvml.nvmlDeviceGetGraphicsRunningProcesses(one)
        assert [(p.pid, p.usedGpuMemory) for p in graphics] == [(os.getpid(), None)]
        zero.alloc(10)
        zero.free(1)
        assert listed(gpu) == [(os.getpid(), 14)]
        zero.free()
        assert listed(gpu) == [(os.getpid(), 0)]
        zero.set(sm=0)
        assert samples(gpu) == []
    assert listed(gpu) == []
    with pytest.raises(RuntimeError, match="closed"):
        zero.set(sm=1)


def test_changing_drivers_does_not_drop_a_process_that_holds_a_slot(standin, gpu, monkeypatch):
    with Context(memory=5):
        monkeypatch.setenv("NVML_STANDIN_TABLE", str(standin.directory / "another"))
        pynvml.nvmlInit()
        assert listed(gpu) == []
        monkeypatch.setenv("NVML_STANDIN_TABLE", str(standin.table_file))
        pynvml.nvmlInit()
        assert listed(gpu) == [(os.getpid(), 5)]


def test_real_processes_can_be_reported_under_other_pids(standin, gpu):
    with Context(memory=5, sm=40):
        standin.shift_pids(samples=600_000)
        assert listed(gpu) == [(os.getpid(), 5)]
        assert samples(gpu) == [(os.getpid() + 600_000, 40, 0, 0, 0)]
        standin.shift_pids(listed=1_000_000)
        assert listed(gpu) == [(os.getpid() + 1_000_000, 5)]


def test_a_real_process_on_a_mig_device(standin, gpu):
    standin.add_mig(0, 0, gi=7)
    standin.add_mig(0, 1, gi=8)
    handles = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in (0, 1)]
    with Context(memory=5, gi=8, ci=0):
        assert [listed(handle) for handle in handles] == [[], [(os.getpid(), 5)]]


def test_a_forked_child_finds_the_library_uninitialised(gpu):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = code_of(pynvml.nvmlDeviceGetCount)
        after = code_of(pynvml.nvmlInit) or code_of(pynvml.nvmlDeviceGetCount)
        os.write(write, f"{before} {after}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100).decode() == f"{pynvml.NVML_ERROR_UNINITIALIZED} 0"
    os.close(read)
    os.close(write)
    assert pynvml.nvmlDeviceGetCount() == 2


def test_a_jupyter_kernel_is_a_gpu_process_until_it_is_restarted(standin, gpu):
    manager, client = start_new_kernel(env={**os.environ, **standin.env()})
    try:
        pid = manager.provisioner.pid
        client.execute_interactive(kernel_code("gpu = Context(memory=1 << 30, sm=70)"), timeout=60)
        assert listed(gpu) == [(pid, GIB)]
        client.execute_interactive("gpu.alloc(1 << 30)", timeout=60)
        assert listed(gpu) == [(pid, 2 * GIB)]
        child = (
            "import subprocess, sys\n"
            "p = subprocess.Popen([sys.executable, '-uc', CODE], stdout=subprocess.PIPE); p.stdout.readline()"
        )
        code = kernel_code("c = Context(memory=3); print('ready'); import time; time.sleep(600)")
        client.execute_interactive(f"gpu.close(); CODE = {code!r}\n{child}", timeout=60)
        [(worker, memory)] = listed(gpu)
        assert (worker != pid, memory) == (True, 3)
        client.execute_interactive("p.kill(); p.wait(); gpu = Context(memory=9)", timeout=60)
        assert listed(gpu) == [(pid, 9)]
        manager.restart_kernel(now=True)
        assert listed(gpu) == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
