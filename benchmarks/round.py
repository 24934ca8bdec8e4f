"""The cost of one round outside the driver, against nvitop listing the same processes in the same run.

A machine with 8 GPUs, 20 kernels and 64 GPU processes. Ours: a whole round (read driver and /proc, attribute, judge
every kernel, move its life); where somebody watches, the status as JSON comes on top of it. nvitop's:
`Device.processes()` of all GPUs and `GpuProcess.take_snapshots()`; it judges nothing, so the part of a round that reads
and attributes is told as well. A round every 5 s means that one in twelve scans all of /proc; the mean of twelve is
what counts. CPU time in the driver is left out on both sides; the driver's calls are counted by the driver itself.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import nvitop

from benchmarks.assembly import assembly
from benchmarks.machine import InsideDriver, Machine, SteppedClock, gpu_machine, time_inside_driver
from benchmarks.runner import Figure, arguments, median, report
from jupyter_gpu_guard.wire import status

#: Rounds from one full scan of /proc to the next: a minute at 5 s.
CYCLE = 12
MINUTE = timedelta(minutes=1)
#: nvitop's names for what a round reads of each card.
OF_CARDS = (
    "memory_info",
    "utilization_rates",
    "power_usage",
    "power_limit",
    "temperature",
    "is_mig_mode_enabled",
)


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
    reading: list[float] = []
    showing: list[float] = []
    theirs: list[float] = []

    async def ask_nvitop() -> None:
        listed = [p for device in devices for p in device.processes().values()]
        assert len(listed) == machine.gpu_pids
        nvitop.GpuProcess.take_snapshots(listed)

    async def ask_nvitop_for_all() -> None:
        """For what a round reads of the cards, too."""
        await ask_nvitop()
        for device in devices:
            for name in OF_CARDS:
                getattr(device, name)()

    with tempfile.TemporaryDirectory() as folder, assembly(Path(folder), machine.kernels, clock) as built:
        assembled, processes = built

        async def one_round() -> None:
            clock.step()
            began = time.process_time()
            await assembled.guard.round(MINUTE)
            reading.append(1e3 * (adopted[-1] - began) - inside.cpu)

        async def a_minute() -> None:
            for _ in range(CYCLE):
                await one_round()

        async def show() -> None:
            json.dumps(status(assembled.commands, "benchmark"))

        adopted = moments_of(assembled.guard, "_adopt")
        works = (one_round, a_minute, ask_nvitop, ask_nvitop_for_all)
        calls = [await driver_calls(machine, work) for work in works][1:]
        scans = processes.full_scans
        reading.clear()
        for _ in range(cycles):
            ours += [await own(inside, one_round) for _ in range(CYCLE)]
            showing.append(await own(inside, show))
            theirs += [await own(inside, ask_nvitop) for _ in range(CYCLE)]
        scans = processes.full_scans - scans
        shares = [watched.usage.shares for watched in assembled.guard.state.watched.values()]
        assert len([share for share in shares if share]) == len(machine.kernels)
        await assembled.guard.stop()
    nvitop_cpu, round_cpu, reading_cpu = median(theirs), mean_of_cycles(ours), mean_of_cycles(reading)
    watched_cpu = round_cpu + median(showing)
    return [
        Figure("nvitop, own CPU", nvitop_cpu, "ms"),
        Figure("round, own CPU, mean of twelve", round_cpu, "ms"),
        Figure("round, own CPU, without full scan", median(sorted(ours)[:-scans]), "ms"),
        Figure("round, own CPU, with full scan", median(sorted(ours)[-scans:]), "ms"),
        Figure("round / nvitop", round_cpu / nvitop_cpu, "", 0.2),
        Figure("status as JSON, own CPU", median(showing), "ms"),
        Figure("round and status as JSON / nvitop", watched_cpu / nvitop_cpu, ""),
        Figure("reading and attributing, own CPU, mean of twelve", reading_cpu, "ms"),
        Figure("reading and attributing, without full scan", median(sorted(reading)[:-scans]), "ms"),
        Figure("reading and attributing / nvitop", reading_cpu / nvitop_cpu, "", 0.2),
        Figure("full scans of /proc", scans, "", cycles),
        Figure("rounds", len(ours), ""),
        Figure("driver calls of a round, mean of twelve", calls[0] / CYCLE, "", calls[1]),
        Figure("driver calls of nvitop", calls[1], ""),
        Figure("driver calls of nvitop for all that a round reads", calls[2], ""),
    ]


def mean_of_cycles(values: list[float]) -> float:
    """The median of what twelve rounds cost in the mean."""
    return median([statistics.fmean(values[n : n + CYCLE]) for n in range(0, len(values), CYCLE)])


def moments_of(part: object, method: str) -> list[float]:
    """By the CPU clock, when that method is called from now on."""
    moments: list[float] = []
    original = getattr(part, method)

    def noted(*arguments: object) -> object:
        moments.append(time.process_time())
        return original(*arguments)

    setattr(part, method, noted)
    return moments


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
