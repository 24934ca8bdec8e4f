"""The nouns: what a round observes and what is concluded from it.

Every reading is a number or `Unknown` with a reason; zero is a number, "not supported" is not zero. Units: seconds,
bytes, watts, degrees Celsius, ratios from 0 to 1, CPU in cores. Times are `Instant`s: the wall clock for people, the
monotonic clock (which stands still while the machine sleeps) for durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from .reasons import Reason


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that could not be read, and why. Never to be taken for zero."""

    reason: Reason


Reading = float | Unknown
ByteReading = int | Unknown


def known(value: float | int | Unknown | None) -> float | None:
    """The number, or None where there is none. For display and arithmetic that has checked before."""
    return None if value is None or isinstance(value, Unknown) else value


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A moment: `at` (aware, UTC) to show, `monotonic` (seconds) to measure with."""

    monotonic: float
    at: datetime = field(compare=False)

    def since(self, earlier: Instant) -> timedelta:
        """Awake time between the two, by the monotonic clock."""
        return timedelta(seconds=self.monotonic - earlier.monotonic)

    def plus(self, span: timedelta) -> Instant:
        """The moment `span` later if neither clock jumps nor the machine sleeps."""
        return Instant(self.monotonic + span.total_seconds(), self.at + span)


# --- the GPUs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one GPU, as the driver lists it. The pid may belong to another pid namespace."""

    pid: int
    kinds: frozenset[str]  # of "compute", "graphics", "mps"
    memory_bytes: ByteReading
    sm_ratio: Reading  # 0.0 when the driver had no non-zero sample; Unknown when it could not tell
    codec_ratio: Reading  # the larger of encoder and decoder
    mig_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. `processes` is Unknown when any list that the card has could not be read."""

    uuid: str
    index: int
    name: str
    memory_total_bytes: ByteReading
    memory_used_bytes: ByteReading
    utilization_ratio: Reading
    power_watts: Reading
    power_limit_watts: Reading
    temperature_celsius: Reading
    mig: bool
    processes: tuple[GpuProcess, ...] | Unknown
    #: Non-zero samples whose pid is in no process list: (pid, sm ratio). Points to a pid-namespace mismatch.
    stray_samples: tuple[tuple[int, float], ...] = ()


class TelemetryState(str, Enum):
    """Whether GPU readings can be had: `ok`, `stale` (late), `unavailable` (failing), `none` (nothing to read)."""

    OK = "ok"
    STALE = "stale"
    UNAVAILABLE = "unavailable"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of all GPUs. With state other than `ok`, `gpus` is the last good list, for display only."""

    taken: Instant
    source: str  # "nvml", "simulated", "none"
    state: TelemetryState
    gpus: tuple[Gpu, ...] = ()
    reason: Reason | None = None
    last_success: Instant | None = None
    driver_version: str | None = None


# --- processes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """A process for good: a pid alone is reused, a pid with its start time (clock ticks since boot) is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One local process, from /proc."""

    key: ProcessKey
    parent_pid: int
    uid: int
    name: str
    state: str  # the letter of /proc/PID/stat; "Z" is a zombie
    session: int
    cgroup: str
    cpu_seconds: float  # user + system, with that of its reaped children
    io_bytes: ByteReading  # read + written through system calls, never falling
    marker: str | None  # JUPYTER_GPU_GUARD_KERNEL_ID of its environment
    opens_gpu: bool | Unknown  # a /dev/nvidia* descriptor, or libcuda mapped


@dataclass(frozen=True, slots=True)
class ProcessScan:
    """All local processes that can matter, at one moment. `full` scans carry everything; others only the GPU pids'
    chains of parents, laid over the last full one."""

    taken: Instant
    processes: Mapping[int, Process]
    full: bool
    #: CPU (cores) and IO (bytes a second) of each process as the mean since the full scan before; empty until two.
    cpu_cores: Mapping[ProcessKey, float] = field(default_factory=dict)
    io_rate: Mapping[ProcessKey, Reading] = field(default_factory=dict)
    #: The span that those means cover.
    measured: timedelta | None = None
    server_key: ProcessKey | None = None
    server_cgroup: str = ""
    #: When the span of those means ended; later scans carry the same means until the next span is over.
    measured_at: Instant | None = None
    #: We run in the machine's first pid namespace, where a pid that the driver names is the process of that number.
    host_pids: bool = False


# --- kernels, terminals, people -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as its messages show it. `executing` counts execute requests that said busy and not yet idle."""

    kernel_id: str
    name: str
    pid: int | None
    start_ticks: int | None
    started: Instant
    execution_state: str  # starting, busy, idle, restarting, dead
    executing: int
    executing_since: Instant | None
    waiting_for_input: bool
    last_execution_start: Instant | None
    last_execution_end: Instant | None
    last_execution_seconds: float | None
    last_output: (
        Instant | None
    )  # output whose parent is an execute request: a cell's thread may print after its end
    connections: int
    notebooks: tuple[str, ...]
    watched: bool  # our IOPub watch is attached
    remote: bool = False  # runs behind a gateway: local telemetry says nothing
    incarnation: int = 0  # grows with each restart
    language: str = ""


@dataclass(frozen=True, slots=True)
class Terminal:
    """One Jupyter terminal and the root of its process tree."""

    name: str
    pid: int | None
    last_activity: datetime | None


@dataclass(frozen=True, slots=True)
class Presence:
    """People at one kernel's notebooks, from the browser's own reports."""

    last_input: Instant | None = None  # focus and input in a tab of that kernel, or an edit
    open_documents: tuple[OpenDocument, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenDocument:
    """One document open in one browser window."""

    client_id: str
    path: str
    kernel_id: str
    dirty: bool
    reported: Instant


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one round saw."""

    now: Instant
    sample: Sample
    scan: ProcessScan
    kernels: tuple[Kernel, ...]
    terminals: tuple[Terminal, ...] = ()
    presence: Mapping[str, Presence] = field(default_factory=dict)  # by kernel_id
    #: How far the wall clock ran from the monotonic one since the last round (clock set, or machine asleep).
    clock_drift: timedelta = timedelta(0)


# --- conclusions --------------------------------------------------------------------------------------------------


class Link(str, Enum):
    """How a GPU process belongs to its kernel, surest first."""

    KERNEL = "kernel"
    DESCENDANT = "descendant"
    DETACHED = "detached"  # re-parented, but carries our marker
    INFERRED = "inferred"  # the only local process that has a GPU open, where pids cannot be matched


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What one kernel has on one GPU, its processes taken together."""

    uuid: str
    memory_bytes: ByteReading
    sm_ratio: Reading  # sum over its processes, at most 1
    codec_ratio: Reading
    link: Link  # the least sure one
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Usage:
    """One kernel's share of an observation."""

    kernel_id: str
    shares: tuple[GpuShare, ...] = ()
    #: True, False, or Unknown where lists could not be read or a process on a GPU could be this kernel's.
    holds_gpu: bool | Unknown = False
    #: The mean of the last full period (a minute, or the window if shorter); None until one is over.
    cpu_cores: Reading | None = None
    io_bytes_per_second: Reading | None = None
    #: When that period ended: each is judged once, by its end.
    measured: Instant | None = None
    #: A GPU in use whose user may be this kernel: (uuid, device ratio).
    maybe_using: tuple[tuple[str, float], ...] = ()
    #: Its processes: own pid, descendants and detached ones, with how they belong.
    tree: tuple[tuple[ProcessKey, Link], ...] = ()
    #: Why GPU use that may be this kernel's could not be read at all; None where shares and maybe_using say it.
    gpu_unreadable: Reason | None = None


@dataclass(frozen=True, slots=True)
class UnattributedProcess:
    """A GPU process that belongs to no kernel: `unattributed`, `foreign` (another user's), `terminal`, `server`,
    `orphan` (carries the marker of a kernel that is gone)."""

    uuid: str
    memory_bytes: ByteReading
    sm_ratio: Reading
    owner: str
    terminal: str | None = None
    marker: str | None = None
    pid: int | None = None  # None for foreign ones: counted, never named


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who owns what, for one observation."""

    usages: Mapping[str, Usage]
    others: tuple[UnattributedProcess, ...] = ()


class VerdictKind(str, Enum):
    """What the evidence says of one kernel."""

    ACTIVE = "active"
    IDLE = "idle"
    STALLED = "stalled"  # busy, but nothing moves
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal with its value, the threshold that it is held against, and since when it has been so."""

    signal: str  # execution, gpu, codec, gpu_memory, cpu, io, presence, output
    value: float | None
    threshold: float | None
    since: datetime | None
    reason: Reason | None = None  # why it cannot be read, or what it means


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one kernel. `idle_for` is observed, awake time since `idle_since`, pauses left out."""

    kind: VerdictKind
    reason: Reason
    evidence: tuple[Evidence, ...] = ()
    idle_since: datetime | None = None
    idle_for: timedelta = timedelta(0)
    stalled_for: timedelta = timedelta(0)
    #: Good samples since idle_since, and the longest hole among them.
    good_samples: int = 0
    longest_hole: timedelta = timedelta(0)
    holds_gpu: bool | Unknown = False
    #: How long its process has held a GPU, for max_runtime; runs on through unknown rounds.
    held_for: timedelta = timedelta(0)
    #: Length of the last execution, for after_run_factor; None when there was none.
    last_run: timedelta | None = None
