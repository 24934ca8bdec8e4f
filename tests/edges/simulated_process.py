"""A process that holds simulated GPUs, for the tests of those."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jupyter_gpu_guard.core.model import GpuProcess, Sample, TelemetryState
from jupyter_gpu_guard.kernel.simulated_gpu import ENVIRONMENT

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

#: Runs each line that it is sent, a Python text as a literal, and answers with what it printed.
LOOP = """
import ast, os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
from jupyter_gpu_guard.kernel.simulated_gpu import SimulatedGpu
for line in sys.stdin:
    exec(ast.literal_eval(line))
    print("done", flush=True)
"""


class Child:
    """A process that holds simulated GPUs."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), ENVIRONMENT: str(folder)}
        command = [sys.executable, "-c", LOOP]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def do(self, code: str) -> list[str]:
        self.process.stdin.write(repr(code) + "\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, "done\n")
        printed = []
        for line in lines:
            assert line, "the process ended"
            printed.append(line.strip())
        return printed

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def kill(self) -> None:
        """Kill it, and don't take note of its end: it becomes a zombie."""
        self.process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def processes(sample: Sample, gpu: int = 0) -> dict[int, GpuProcess]:
    assert (sample.state, sample.source, sample.reason) == (TelemetryState.OK, "simulated", None)
    return {process.pid: process for process in sample.gpus[gpu].processes}
