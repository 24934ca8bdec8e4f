"""What a round costs on a machine with 100 and with 1000 processes that have nothing to do with it.

All of /proc is read once a minute, and at once when the driver names a process that nobody knows; the rounds between
must not grow with the processes of the machine. Beside it, in the same run, the usual way to find what belongs to a
kernel: psutil's `children(recursive=True)` for each, which reads all of /proc each time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil

from benchmarks.assembly import assembly
from benchmarks.machine import Machine, SteppedClock, gpu_machine
from benchmarks.runner import Figure, arguments, median, report

MINUTE = timedelta(minutes=1)

#: A process that forks so many others; all sleep until their standard input ends.
CROWD = """
import os, sys
for _ in range({number}):
    if os.fork() == 0:
        break
else:
    sys.stdout.write("+")
    sys.stdout.flush()
sys.stdin.read()
"""


def main() -> None:
    options = arguments(__doc__).parse_args()
    crowds, kernels, times = ((5, 10), 2, 3) if options.quick else ((100, 1000), 20, 40)
    figures: list[Figure] = []
    with gpu_machine(gpus=2, kernels=kernels, processes=kernels) as machine:
        for number in crowds:
            with crowd(number):
                figures += asyncio.run(measured(machine, number, times))
    few, many = figures[: len(figures) // 2], figures[len(figures) // 2 :]
    for n, name in enumerate(("round", "round with a full scan", "psutil children")):
        figures.append(Figure(f"{name}: growth", many[n].value / few[n].value, ""))
    report(options, figures)


@contextmanager
def crowd(number: int) -> Iterator[None]:
    """That many sleeping processes."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CROWD.format(number=number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.read(1)
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


async def measured(machine: Machine, number: int, times: int) -> list[Figure]:
    """The figures beside one crowd."""
    clock = SteppedClock()
    with tempfile.TemporaryDirectory() as folder, assembly(Path(folder), machine.kernels, clock) as built:
        assembled, processes = built
        guard = assembled.guard
        for _ in range(3):
            await guard.look()
        before = processes.full_scans
        await guard.round(MINUTE)
        between = [await cpu_of(lambda: guard.round(MINUTE)) for _ in range(times)]
        assert processes.full_scans == before
        full = []
        for _ in range(times):
            clock.step(MINUTE.total_seconds())
            full.append(await cpu_of(lambda: guard.round(MINUTE)))
        assert processes.full_scans == before + times
        await guard.stop()
    children = [await cpu_of(lambda: asks_psutil(machine)) for _ in range(max(2, times // 8))]
    beside = f"{number} other processes"
    return [
        Figure(f"round, {beside}", median(between), "ms CPU"),
        Figure(f"round with a full scan, {beside}", median(full), "ms CPU"),
        Figure(f"psutil children of {len(machine.kernels)} kernels, {beside}", median(children), "ms CPU"),
    ]


async def asks_psutil(machine: Machine) -> None:
    """The children of each kernel."""
    for kernel in machine.kernels:
        psutil.Process(kernel.pid).children(recursive=True)


async def cpu_of(work: Callable[[], Awaitable[object]]) -> float:
    """CPU time of all threads, in milliseconds."""
    began = time.process_time()
    await work()
    return 1e3 * (time.process_time() - began)


if __name__ == "__main__":
    main()
