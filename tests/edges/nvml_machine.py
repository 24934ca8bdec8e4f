"""The stand-in driver, its clock and a reader on one machine, for the tests of the NVML readings."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from jupyter_gpu_guard.core.model import Gpu, GpuProcess, Instant, Sample, TelemetryState, Unknown
from jupyter_gpu_guard.core.reasons import Reason
from jupyter_gpu_guard.nvml import NvmlReader
from tests.standin.driver import StandInDriver

ROOT = Path(__file__).parents[2]

#: Stands for any process that only the driver knows of.
PID = 4001

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
SAMPLES = "nvmlDeviceGetProcessUtilization"
INIT = "nvmlInitWithFlags"

#: Each return code that a call can answer, with the reason that it has to become.
REASON_OF_CODE = {
    1: "uninitialized",
    2: "driver_error",
    3: "not_supported",
    4: "no_permission",
    10: "driver_error",
    15: "gpu_lost",
    16: "reset_required",
    17: "driver_error",
    18: "version_mismatch",
    20: "driver_error",
    23: "driver_error",
    28: "driver_error",
    77: "driver_error",
    999: "driver_error",
}


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
        return Instant(1000 + self.seconds, datetime.fromtimestamp(wall, UTC))

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

    def unavailable(self) -> tuple[str, object]:
        """The reason of a reading that has to fail."""
        sample = self.read()
        assert sample.state is TelemetryState.UNAVAILABLE
        return reason_of(sample.reason)

    def processes(self, gpu: int = 0) -> dict[int, GpuProcess]:
        """Those of one card whose lists have to be readable."""
        processes = self.gpus()[gpu].processes
        assert not isinstance(processes, Unknown)
        assert len({process.pid for process in processes}) == len(processes)
        return {process.pid: process for process in processes}


def run(code: str, **env: str) -> str:
    """What a new process prints that runs `code` at the root of the project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def why(value: object) -> tuple[str, object]:
    """Code of the reason of a value that has to be unknown, and the call that gave none."""
    assert isinstance(value, Unknown), value
    return reason_of(value.reason)


def reason_of(reason: Reason | None) -> tuple[str, object]:
    assert reason is not None
    assert reason.text != reason.code  # the text could be filled in
    return reason.code, dict(reason.params).get("call")
