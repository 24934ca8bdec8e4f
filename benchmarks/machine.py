"""A machine with GPUs for the benchmarks: the stand-in driver, and real processes that pose as GPU processes.

Covers starting them as kernels with children, and loading the driver into this process. Doesn't cover Jupyter: to the
guard these processes are kernels because `kernels` says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pynvml

from jupyter_gpu_guard.core.model import Instant, Kernel
from jupyter_gpu_guard.procfs import GPU_FILES, MARKER, ProcFiles
from tests.standin.driver import StandInDriver, build, kernel_code

GIB = 1 << 30

#: One kernel with its children, each on a GPU of its own. All end when their standard input does.
KERNEL = """
import os, sys
first, *others = {gpus!r}
for gpu in others:
    if os.fork() == 0:
        break
else:
    gpu = first
context = Context(gpu=gpu, memory=1 << 30, sm=gpu)
sys.stdout.write("+")
sys.stdout.flush()
sys.stdin.read()
"""


class SteppedClock:
    """A clock that moves only when it is told to, so that rounds of 5 s need not be waited for."""

    def __init__(self) -> None:
        self._now = Instant(time.monotonic(), datetime.now(timezone.utc))

    def __call__(self) -> Instant:
        return self._now

    def step(self, seconds: float = 5.0) -> None:
        """Move on."""
        self._now = self._now.plus(timedelta(seconds=seconds))


@dataclass(frozen=True)
class Machine:
    """`kernels`: as the guard's watch would tell of them; idle, and started a while ago."""

    driver: StandInDriver
    kernels: tuple[Kernel, ...]
    gpu_pids: int


@contextmanager
def gpu_machine(gpus: int, kernels: int, processes: int) -> Iterator[Machine]:
    """`kernels` processes that, with children, are `processes` GPU processes, spread over the GPUs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-guard-")))
        driver = StandInDriver(folder / "standin", build(folder / "library"), gpus)
        stack.enter_context(_environment(driver.env()))
        stack.enter_context(driver.load_in_process())
        share = [[n % gpus for n in range(processes) if n % kernels == k] for k in range(kernels)]
        started = [stack.enter_context(_kernel(f"kernel-{k}", own)) for k, own in enumerate(share)]
        yield Machine(
            driver, tuple(as_kernel(f"kernel-{k}", pid) for k, pid in enumerate(started)), processes
        )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _kernel(kernel_id: str, gpus: Sequence[int]) -> Iterator[int]:
    code = kernel_code(KERNEL.format(gpus=list(gpus)))
    env = {**os.environ, MARKER.decode().rstrip("="): kernel_id}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        if len(process.stdout.read(len(gpus))) < len(gpus):
            raise RuntimeError("a process of the benchmark did not start")
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def as_kernel(kernel_id: str, pid: int) -> Kernel:
    """An idle kernel in that process."""
    stat = ProcFiles(Path("/proc"), GPU_FILES).stat(pid)
    assert stat is not None
    started = Instant(time.monotonic() - 3600, datetime.now(timezone.utc) - timedelta(hours=1))
    return Kernel(
        kernel_id=kernel_id,
        name="python3",
        pid=pid,
        start_ticks=stat.start_ticks,
        started=started,
        execution_state="idle",
        executing=0,
        executing_since=None,
        waiting_for_input=False,
        last_execution_start=started,
        last_execution_end=started,
        last_execution_seconds=1.0,
        last_output=None,
        connections=1,
        notebooks=(f"{kernel_id}.ipynb",),
        watched=True,
    )


class InsideDriver:
    """The CPU time that this process spends inside the driver, in milliseconds, whoever calls it."""

    def __init__(self) -> None:
        self.cpu = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the driver, with its time added up."""

        def call(*arguments: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*arguments)
            finally:
                self.cpu += 1e-6 * (time.thread_time_ns() - began)

        return call


@contextmanager
def time_inside_driver() -> Iterator[InsideDriver]:
    """Time every call that goes through nvidia-ml-py: it looks each of the driver's functions up by its name."""
    inside = InsideDriver()
    module: Any = pynvml
    original = module._nvmlGetFunctionPointer
    known: dict[str, Callable[..., Any]] = {}

    def look_up(name: str) -> Callable[..., Any]:
        if name not in known:
            known[name] = inside.timed(original(name))
        return known[name]

    module._nvmlGetFunctionPointer = look_up
    try:
        yield inside
    finally:
        module._nvmlGetFunctionPointer = original
