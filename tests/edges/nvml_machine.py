"""The stand-in driver, its clock and a reader on one machine, for the tests of the NVML readings."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from jupyter_gpu_guard.core.model import Gpu, GpuProcess, Instant, Sample, TelemetryState, Unknown
from jupyter_gpu_guard.core.reasons import Reason
from jupyter_gpu_guard.nvml import NvmlReader
from tests.standin.driver import StandInDriver

#: What cannot be in a process list by itself: it stands for any pid.
PID = 4001


class Machine:
    """Its clock stands still until `wait`, for the driver and for the reader alike."""

    def __init__(self, driver: StandInDriver, folder: Path) -> None:
        self.driver = driver
        self.seconds = 0.0
        self.clock_set_by = 0.0
        self.sysfs = folder / "sys"
        self.reader = NvmlReader(self.clock, self.sysfs)
        driver.freeze(0)

    def clock(self) -> Instant:
        wall = self.driver.origin + self.seconds + self.clock_set_by
        return Instant(1000 + self.seconds, datetime.fromtimestamp(wall, timezone.utc))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.driver.freeze(self.seconds + self.clock_set_by)

    def set_clock_by(self, seconds: float) -> None:
        """Set the wall clock, as an administrator or a time server does."""
        self.clock_set_by += seconds
        self.wait(0)

    def read(self) -> Sample:
        """A reading 5 s after the one before."""
        self.wait(5)
        return self.reader.read()

    def gpus(self) -> tuple[Gpu, ...]:
        """The cards of a reading that has to succeed."""
        sample = self.read()
        assert (sample.state, sample.reason) == (TelemetryState.OK, None)
        assert sample.last_success == sample.taken
        return sample.gpus

    def processes(self, gpu: int = 0) -> dict[int, GpuProcess]:
        """Those of one card whose lists have to be readable."""
        processes = self.gpus()[gpu].processes
        assert not isinstance(processes, Unknown)
        assert len({process.pid for process in processes}) == len(processes)
        return {process.pid: process for process in processes}


def why(value: object) -> tuple[str, object]:
    """Code of the reason of a value that has to be unknown, and the call that gave none."""
    assert isinstance(value, Unknown), value
    return reason_of(value.reason)


def reason_of(reason: Reason | None) -> tuple[str, object]:
    assert reason is not None
    assert reason.text != reason.code  # the text could be filled in
    return reason.code, dict(reason.params).get("call")
