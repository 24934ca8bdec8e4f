"""The cost of one round outside the driver, against nvitop listing the same processes in the same run.

A machine with 8 GPUs, 20 kernels and 64 GPU processes. Ours: a whole round (read driver and /proc, attribute, judge
every kernel, move its life) and the status as JSON. nvitop's: `Device.processes()` of all GPUs and
`GpuProcess.take_snapshots()`. A round every 5 s means that one in twelve scans all of /proc; the mean of twelve is
what counts. CPU time in the driver is left out on both sides; the driver's calls are counted by the driver itself.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nvitop

from benchmarks.assembly import assembly
from benchmarks.machine import InsideDriver, Machine, SteppedClock, gpu_machine, time_inside_driver
from benchmarks.runner import Figure, arguments, median, report
from jupyter_gpu_guard.wire import status

#: Rounds from one full scan of /proc to the next: a minute at 5 s.
CYCLE = 12


def main() -> None:
    options = arguments(__doc__).parse_args()
    gpus, kernels, processes, cycles = (2, 2, 4, 1) if options.quick else (8, 20, 64, 20)
    with gpu_machine(gpus, kernels, processes) as machine, time_inside_driver() as inside:
        report(options, asyncio.run(figures(machine, inside, cycles)))


async def figures(machine: Machine, inside: InsideDriver, cycles: int) -> list[Figure]:
    """Rounds and nvitop take turns, so that what else runs on the machine troubles both alike."""
    clock = SteppedClock()
    devices = nvitop.Device.all()
    ours: list[float] = []
    theirs: list[float] = []

    async def ask_nvitop() -> None:
        listed = [p for device in devices for p in device.processes().values()]
        assert len(listed) == machine.gpu_pids
        nvitop.GpuProcess.take_snapshots(listed)

    with tempfile.TemporaryDirectory() as folder, assembly(Path(folder), machine.kernels, clock) as built:
        assembled, processes = built

        async def one_round() -> None:
            clock.step()
            await assembled.guard.round()
            json.dumps(status(assembled.commands, "benchmark"))

        calls = [await driver_calls(machine, work) for work in (one_round, one_round, ask_nvitop)][1:]
        scans = processes.full_scans
        for _ in range(cycles):
            ours += [await own(inside, one_round) for _ in range(CYCLE)]
            theirs += [await own(inside, ask_nvitop) for _ in range(CYCLE)]
        scans = processes.full_scans - scans
        shares = [watched.usage.shares for watched in assembled.guard.state.watched.values()]
        assert len([share for share in shares if share]) == len(machine.kernels)
        await assembled.guard.stop()
    by_cycle = [statistics.fmean(ours[n : n + CYCLE]) for n in range(0, len(ours), CYCLE)]
    return [
        Figure("nvitop, own CPU", median(theirs), "ms"),
        Figure("round, own CPU, mean of twelve", median(by_cycle), "ms"),
        Figure("round, own CPU, without full scan", median(sorted(ours)[:-scans]), "ms"),
        Figure("round, own CPU, with full scan", median(sorted(ours)[-scans:]), "ms"),
        Figure("round / nvitop", median(by_cycle) / median(theirs), "", 0.2),
        Figure("full scans of /proc", scans, "", cycles),
        Figure("rounds", len(ours), ""),
        Figure("driver calls of nvitop", calls[1], ""),
        Figure("driver calls of a round", calls[0], "", calls[1]),
    ]


async def own(inside: InsideDriver, work: Callable[[], Awaitable[None]]) -> float:
    """CPU time outside the driver, of all threads, in milliseconds."""
    inside.cpu = 0.0
    began = time.process_time()
    await work()
    return 1e3 * (time.process_time() - began) - inside.cpu


async def driver_calls(machine: Machine, work: Callable[[], Awaitable[None]]) -> int:
    """How many calls the driver counts."""
    machine.driver.reset_calls()
    await work()
    return machine.driver.calls()


if __name__ == "__main__":
    main()
