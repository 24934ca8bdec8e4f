"""A small machine for the tests of attribution and judgement: processes, GPUs, kernels, and rounds that follow each
other. Nothing here reads a clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from jupyter_gpu_guard.core.model import (
    Gpu,
    GpuProcess,
    Instant,
    Kernel,
    Observation,
    Presence,
    Process,
    ProcessKey,
    ProcessScan,
    Reading,
    Sample,
    TelemetryState,
    Terminal,
    Unknown,
)
from jupyter_gpu_guard.core.policy import Policy, PolicyLayers, resolve
from jupyter_gpu_guard.core.policy_rules import KernelFacts
from jupyter_gpu_guard.core.reasons import Reason, because

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
GIB = 1 << 30
OURS, THEIRS = 1000, 2000
INIT, SHELL, SERVER = 1, 50, 100
GPU = "GPU-0"


def at(seconds: float) -> Instant:
    """That many seconds after the beginning of the test, by both clocks."""
    return Instant(seconds, START + timedelta(seconds=seconds))


def unknown(code: str = "not_supported", **params: str) -> Unknown:
    return Unknown(because(code, **params))


def policy(**values: object) -> Policy:
    """The defaults, with durations given as an admin writes them."""
    return replace(resolve(PolicyLayers(), KernelFacts("python3"), START), **values)  # type: ignore[arg-type]


def process(pid: int, parent: int, **values: object) -> Process:
    """A process of ours that started in the order of its pid."""
    given: dict[str, object] = {
        "key": ProcessKey(pid, pid * 10),
        "parent_pid": parent,
        "uid": OURS,
        "name": f"p{pid}",
        "state": "S",
        "session": pid,
        "cgroup": "/box",
        "cpu_seconds": 0.0,
        "io_bytes": 0,
        "marker": None,
        "opens_gpu": False,
    }
    return Process(**{**given, **values})  # type: ignore[arg-type]


BASE = (
    process(INIT, 0, uid=0, cgroup=""),
    process(SHELL, INIT),
    process(SERVER, SHELL, opens_gpu=True),
)


def key(pid: int) -> ProcessKey:
    return ProcessKey(pid, pid * 10)


def scan(
    *processes: Process, now: float = 0, base: tuple[Process, ...] = BASE, **values: object
) -> ProcessScan:
    table = {p.key.pid: p for p in (*base, *processes)}
    given: dict[str, object] = {"full": True, "server_key": key(SERVER), "server_cgroup": "/box"}
    return ProcessScan(at(now), table, **{**given, **values})  # type: ignore[arg-type]


def measured(found: ProcessScan, cpu: dict[int, float], io: dict[int, Reading] | None = None) -> ProcessScan:
    """The scan with the means of a period that ended with it; what isn't named used nothing."""
    keys = {p.key.pid: p.key for p in found.processes.values()}
    return replace(
        found,
        cpu_cores={k: cpu.get(pid, 0.0) for pid, k in keys.items()},
        io_rate={k: (io or {}).get(pid, 0.0) for pid, k in keys.items()},
        measured=timedelta(seconds=60),
        measured_at=found.taken,
    )


def row(
    pid: int, sm: Reading = 0.0, memory: int | Unknown = GIB, codec: Reading = 0.0, **values: object
) -> GpuProcess:
    return GpuProcess(pid, frozenset({"compute"}), memory, sm, codec, **values)  # type: ignore[arg-type]


def gpu(*rows: GpuProcess, uuid: str = GPU, **values: object) -> Gpu:
    given: dict[str, object] = {
        "uuid": uuid,
        "index": 0,
        "name": "Test GPU",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": GIB,
        "utilization_ratio": 0.0,
        "power_watts": 60.0,
        "power_limit_watts": 400.0,
        "temperature_celsius": 40.0,
        "mig": False,
        "processes": rows,
    }
    return Gpu(**{**given, **values})  # type: ignore[arg-type]


def sample(
    *gpus: Gpu, now: float = 0, state: TelemetryState = TelemetryState.OK, reason: Reason | None = None
) -> Sample:
    return Sample(at(now), "nvml", state, gpus, reason)


def kernel(kernel_id: str = "k", pid: int | None = 200, **values: object) -> Kernel:
    """An idle kernel, watched, that started with the test and never ran anything."""
    given: dict[str, object] = {
        "kernel_id": kernel_id,
        "name": "python3",
        "pid": pid,
        "start_ticks": None if pid is None else pid * 10,
        "started": at(0),
        "execution_state": "idle",
        "executing": 0,
        "executing_since": None,
        "waiting_for_input": False,
        "last_execution_start": None,
        "last_execution_end": None,
        "last_execution_seconds": None,
        "last_output": None,
        "connections": 1,
        "notebooks": ("a.ipynb",),
        "watched": True,
    }
    return Kernel(**{**given, **values})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Look:
    """One observation in the making."""

    sample: Sample
    scan: ProcessScan
    kernels: tuple[Kernel, ...] = ()
    terminals: tuple[Terminal, ...] = ()
    presence: Presence = field(default_factory=Presence)
    drift: float = 0.0

    def observation(self, now: float) -> Observation:
        return Observation(
            at(now),
            replace(self.sample, taken=at(now)),
            replace(self.scan, taken=at(now)),
            self.kernels,
            self.terminals,
            {k.kernel_id: self.presence for k in self.kernels},
            timedelta(seconds=self.drift),
        )
