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
from dataclasses import dataclass, field
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
        report(options, figures(asyncio.run(measure(machine, inside, cycles)), cycles))


@dataclass
class Measured:
    """Milliseconds of own CPU time, one value a turn, and what was counted."""

    #: Whole rounds, and the part of each that reads and attributes.
    rounds: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)
    showing: list[float] = field(default_factory=list)
    nvitop: list[float] = field(default_factory=list)
    full_scans: int = 0
    #: Driver calls of a round, in the mean of twelve; of nvitop; of nvitop for all that a round reads.
    calls: tuple[float, int, int] = (0, 0, 0)


class Nvitop:
    """What nvitop does in the place of a round."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._devices = nvitop.Device.all()

    async def processes(self) -> None:
        listed = [p for device in self._devices for p in device.processes().values()]
        assert len(listed) == self._machine.gpu_pids
        nvitop.GpuProcess.take_snapshots(listed)

    async def everything(self) -> None:
        """For what a round reads of the cards, too."""
        await self.processes()
        for device in self._devices:
            for name in OF_CARDS:
                getattr(device, name)()


async def measure(machine: Machine, inside: InsideDriver, cycles: int) -> Measured:
    """Rounds and nvitop take turns, so that what else runs on the machine troubles both alike."""
    clock, theirs, found = SteppedClock(), Nvitop(machine), Measured()
    with tempfile.TemporaryDirectory() as folder, assembly(Path(folder), machine.kernels, clock) as built:
        assembled, processes = built
        adopted = moments_of(assembled.guard, "_adopt")

        async def one_round() -> None:
            clock.step()
            began = time.process_time()
            await assembled.guard.round(MINUTE)
            found.reading.append(1e3 * (adopted[-1] - began) - inside.cpu)

        async def a_minute() -> None:
            for _ in range(CYCLE):
                await one_round()

        async def show() -> None:
            json.dumps(status(assembled.commands, "benchmark"))

        await one_round()  # the first one meets everything
        works = (a_minute, theirs.processes, theirs.everything)
        calls = [await driver_calls(machine, work) for work in works]
        found.calls = (calls[0] / CYCLE, calls[1], calls[2])
        scans = processes.full_scans
        found.reading.clear()
        for _ in range(cycles):
            found.rounds += [await own(inside, one_round) for _ in range(CYCLE)]
            found.showing.append(await own(inside, show))
            found.nvitop += [await own(inside, theirs.processes) for _ in range(CYCLE)]
        found.full_scans = processes.full_scans - scans
        shares = [watched.usage.shares for watched in assembled.guard.state.watched.values()]
        assert len([share for share in shares if share]) == len(machine.kernels)
        await assembled.guard.stop()
    return found


def figures(measured: Measured, cycles: int) -> list[Figure]:
    """What is told of it, with the limits."""
    nvitop_cpu, shown_cpu = median(measured.nvitop), median(measured.showing)
    round_cpu, reading_cpu = mean_of_cycles(measured.rounds), mean_of_cycles(measured.reading)
    without_scan, with_scan = parted(measured.rounds, measured.full_scans)
    reading_without_scan, _ = parted(measured.reading, measured.full_scans)
    round_calls, nvitop_calls, all_nvitop_calls = measured.calls
    return [
        Figure("nvitop, own CPU", nvitop_cpu, "ms"),
        Figure("round, own CPU, mean of twelve", round_cpu, "ms"),
        Figure("round, own CPU, without full scan", without_scan, "ms"),
        Figure("round, own CPU, with full scan", with_scan, "ms"),
        Figure("round / nvitop", round_cpu / nvitop_cpu, "", 0.2),
        Figure("status as JSON, own CPU", shown_cpu, "ms"),
        Figure("round and status as JSON / nvitop", (round_cpu + shown_cpu) / nvitop_cpu, ""),
        Figure("reading and attributing, own CPU, mean of twelve", reading_cpu, "ms"),
        Figure("reading and attributing, without full scan", reading_without_scan, "ms"),
        Figure("reading and attributing / nvitop", reading_cpu / nvitop_cpu, "", 0.2),
        Figure("full scans of /proc", measured.full_scans, "", cycles),
        Figure("rounds", len(measured.rounds), ""),
        Figure("driver calls of a round, mean of twelve", round_calls, "", nvitop_calls),
        Figure("driver calls of nvitop", nvitop_calls, ""),
        Figure("driver calls of nvitop for all that a round reads", all_nvitop_calls, ""),
    ]


def parted(values: list[float], full_scans: int) -> tuple[float, float]:
    """The median of the rounds without a full scan, and of those with one, which cost the most."""
    ordered = sorted(values)
    return median(ordered[:-full_scans]), median(ordered[-full_scans:])


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
