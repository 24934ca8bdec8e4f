"""One reading of everything: GPUs, processes, kernels, terminals, people.

What may hang is asked in a daemon thread with a deadline: a late driver makes the sample `stale`, a late /proc makes
the whole round a hole. The driver is left alone, and no handle held, while no kernel has a GPU open and no tab looks.

Not here: what the readings mean (core), when a round is due (guard).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from logging import Logger
from typing import Protocol

from .core.model import Instant, Kernel, Observation, ProcessScan, Sample, TelemetryState, Terminal, Unknown
from .core.ownership import Family, Kind
from .core.reasons import Reason, because
from .kernels import KernelWatch
from .presence import People
from .processes import ProcessReader
from .worker import Hung, Worker

#: A reading of the driver that takes longer is late: the telemetry is `stale` until it comes.
DRIVER_DEADLINE = 5.0
#: The same for /proc, which only hangs when the machine does.
PROC_DEADLINE = 30.0
#: A page that asked within this time counts as looking.
LOOK_SECONDS = 30.0
#: Processes that have nothing to do with this server, and those that use nothing any more.
_OTHERS = frozenset({Kind.STRANGER, Kind.FOREIGN, Kind.DEAD})


class GpuReader(Protocol):
    """A source of samples. Both calls block and never raise; they are made in one daemon thread."""

    def read(self) -> Sample: ...

    def release(self) -> None: ...


class Observer:
    """Takes observations. `reader` is None where there is nothing to read (`nothing` says why)."""

    def __init__(
        self,
        reader: GpuReader | None,
        nothing: Reason,
        source: str,
        processes: ProcessReader,
        watch: KernelWatch,
        people: People,
        terminals: Callable[[], tuple[Terminal, ...]],
        clock: Callable[[], Instant],
        log: Logger,
    ) -> None:
        self._reader = reader
        self._nothing = nothing
        self._source = source
        self._processes = processes
        self._watch = watch
        self._people = people
        self._terminals = terminals
        self._clock = clock
        self._log = log
        self._driver = Worker("gpu-guard-driver")
        self._proc = Worker("gpu-guard-proc")
        self._driver_open = False
        self._last: Instant | None = None
        self._scan: ProcessScan | None = None
        self._looked = float("-inf")
        self.viewers: Callable[[], int] = lambda: 0  # open streams; set by the app
        self.sample = self._nothing_read(nothing if reader is None else because("no_samples"))

    async def observe(self, period: timedelta) -> Observation | None:
        """Everything at one moment, or None when /proc did not answer. `period`: how old the last full scan of the
        processes may be; 0 makes a full one, outside the rounds."""
        kernels = await self._watch.kernels()
        now = self._clock()
        drift = timedelta(0)
        if self._last is not None:
            drift = (now.at - self._last.at) - now.since(self._last)
        sample = self.sample = await self._sample(now, kernels)
        scan = await self._scan_processes(sample, kernels, period)
        if scan is None:
            return None
        self._last = now
        return Observation(
            now=now,
            sample=sample,
            scan=scan,
            kernels=kernels,
            terminals=self._terminals(),
            presence=self._people.for_kernels(now),
            clock_drift=drift,
        )

    async def _sample(self, now: Instant, kernels: tuple[Kernel, ...]) -> Sample:
        if self._reader is None:
            return self._nothing_read(self._nothing)
        if not self._wanted(now, kernels):
            if self._driver_open:
                self._driver_open = False
                await self._release()
            return self._nothing_read(because("asleep"))
        self._driver_open = True
        try:
            return await self._driver.call(self._reader.read, DRIVER_DEADLINE)
        except Hung as hung:
            last = self.sample
            reason = because("driver_timeout", seconds=round(hung.seconds, 1))
            return replace(last, taken=now, state=TelemetryState.STALE, reason=reason)

    def _wanted(self, now: Instant, kernels: tuple[Kernel, ...]) -> bool:
        """Whether the driver is asked at all: somebody looks, or something that was started from this server has a
        GPU open (or may have). What others do on the machine is no reason to keep its cards awake."""
        if self.viewers() > 0 or now.monotonic - self._looked < LOOK_SECONDS:
            return True
        scan = self._scan
        if scan is None:
            return False
        # The server itself has the driver open while it reads.
        openers = (
            p for p in scan.processes.values() if p.opens_gpu is not False and p.key != scan.server_key
        )
        family = Family(scan, kernels, self._terminals())
        return any(family.owner(process).kind not in _OTHERS for process in openers)

    def looked(self) -> None:
        """Somebody asked for the readings: keep reading for a while."""
        self._looked = self._clock().monotonic

    async def _release(self) -> None:
        assert self._reader is not None
        try:
            await self._driver.call(self._reader.release, DRIVER_DEADLINE)
        except Hung:
            self._log.warning("gpu_guard: the driver did not let go in time")

    def _nothing_read(self, reason: Reason) -> Sample:
        state = TelemetryState.NONE
        source = "none" if self._reader is None else self._source
        return Sample(self._clock(), source, state, reason=reason)

    async def _scan_processes(
        self, sample: Sample, kernels: Iterable[Kernel], period: timedelta
    ) -> ProcessScan | None:
        pids = {p.pid for g in sample.gpus if not isinstance(g.processes, Unknown) for p in g.processes}
        roots = {k.pid for k in kernels if k.pid is not None}
        try:
            scan = await self._proc.call(lambda: self._processes.read(pids, period, roots), PROC_DEADLINE)
        except Hung:
            self._log.error("gpu_guard: /proc has not answered for %.0f s", self._proc.hung_for)
            return None
        if period > timedelta(0):
            self._scan = scan
        return scan

    def stop(self) -> None:
        """Let the threads end. A call that hangs is left alone: its thread is a daemon."""
        self._driver.stop()
        self._proc.stop()
