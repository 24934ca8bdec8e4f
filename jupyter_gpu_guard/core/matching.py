"""Which local process each row of the driver's lists is.

A number that the driver names may come from another pid namespace (nvidia-docker#1483, HAMi-core#112), so it is held
against what the local process of that number has open. Whose a process is stands in ownership; what a kernel's rows
come to, in attribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .model import ByteReading, Gpu, GpuProcess, Link, Observation, Process, ProcessKey, Reading, Unknown
from .ownership import Family, Kind, Owner, Ownership
from .reasons import because

#: A place in a list of the driver.
Row = tuple[str, int]  # uuid, pid


@dataclass(frozen=True, slots=True)
class AttributionMemory:
    """What one attribution hands to the next. Bounded by what the driver lists and the last full scan shows."""

    ownership: Ownership | None = None
    #: Which process each row of the lists was first seen to be. Another one that gets its pid is not it.
    identities: Mapping[Row, ProcessKey] = field(default_factory=dict)
    #: Rows whose pid was no process here last time.
    absent: frozenset[Row] = frozenset()
    #: The lists were seen to name pids of another namespace.
    foreign_pids: bool = False
    #: GPUs whose utilisation samples were seen to name pids of another namespace than their lists (HAMi-core#112).
    foreign_samples: frozenset[str] = frozenset()
    #: The check for open GPU files has found one on this platform.
    sees_gpu_files: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """One row of a GPU's list with whose it is; `owner` None: some process that can't be matched."""

    row: GpuProcess
    owner: Owner | None
    key: ProcessKey | None = None
    absent: bool = False
    innocent: bool = False  # a local process has the number, but no GPU open


def match(
    obs: Observation, memory: AttributionMemory, ownership: Ownership
) -> tuple[dict[str, list[Placed]], AttributionMemory]:
    """The rows of each GPU (by uuid) with whose they are. Work grows with the rows and the kernels."""
    matcher = _Matcher(obs, memory, ownership)
    placed = {
        gpu.uuid: [matcher.place(gpu.uuid, row) for row in matcher.rows(gpu)] for gpu in obs.sample.gpus
    }
    memory = matcher.learnt(placed)
    if not matched(placed) & ownership.openers:
        placed = {uuid: _infer(rows, obs, memory, ownership) for uuid, rows in placed.items()}
    return placed, memory


def matched(placed: Mapping[str, Sequence[Placed]]) -> frozenset[ProcessKey]:
    """The local processes that some row was found to be."""
    return frozenset(p.key for rows in placed.values() for p in rows if p.key is not None)


class _Matcher:
    def __init__(self, obs: Observation, memory: AttributionMemory, ownership: Ownership) -> None:
        self._obs = obs
        self._memory = memory
        self._ownership = ownership
        self._family = Family(obs.scan, obs.kernels, obs.terminals)
        server = obs.scan.processes.get(obs.scan.server_key.pid) if obs.scan.server_key else None
        self._uid = None if server is None else server.uid
        self._identities: dict[Row, ProcessKey] = {}
        self._foreign_samples = set(memory.foreign_samples)

    def rows(self, gpu: Gpu) -> list[GpuProcess]:
        """One row for each process; where the samples are of another namespace, their zeros are taken back."""
        if isinstance(gpu.processes, Unknown):
            return []
        rows: dict[tuple[int, str | None], GpuProcess] = {}
        for row in gpu.processes:
            seen = rows.get((row.pid, row.mig_uuid))
            rows[row.pid, row.mig_uuid] = row if seen is None else _merge(seen, row)
        if not self._samples_are_foreign(gpu, rows.values()):
            return list(rows.values())
        unknown = Unknown(because("pid_namespace"))
        return [replace(row, sm_ratio=unknown, codec_ratio=unknown) for row in rows.values()]

    def _samples_are_foreign(self, gpu: Gpu, rows: Iterable[GpuProcess]) -> bool:
        """Use that belongs to none of the listed pids, while none of those has any: it may be theirs."""
        if any(not isinstance(row.sm_ratio, Unknown) and row.sm_ratio > 0 for row in rows):
            return False
        if gpu.stray_samples:
            self._foreign_samples.add(gpu.uuid)
            return True
        # Without any sample nobody used the GPU, whatever the numbers, unless the GPU itself says otherwise.
        return gpu.uuid in self._foreign_samples and gpu.utilization_ratio != 0.0

    def place(self, uuid: str, row: GpuProcess) -> Placed:
        process = self._obs.scan.processes.get(row.pid)
        if process is None:
            return Placed(row, None, absent=True)
        if process.state in "ZX":
            return Placed(row, Owner(Kind.DEAD), process.key)
        if not self._is_it(process):
            return Placed(row, None, innocent=process.opens_gpu is False and self._is_ours(process))
        first = self._memory.identities.get((uuid, row.pid))
        if first is not None and first != process.key and process.opens_gpu is not True:
            # The row outlived its process, and the pid went to another one.
            self._identities[uuid, row.pid] = first
            return Placed(row, Owner(Kind.DEAD), first)
        self._identities[uuid, row.pid] = process.key
        return Placed(row, self._family.owner(process), process.key)

    def _is_ours(self, process: Process) -> bool:
        return self._uid is None or process.uid == self._uid

    def _is_it(self, process: Process) -> bool:
        """Whether the local process of that number is the one that the driver means."""
        memory = self._memory
        if not self._is_ours(process):
            # What another user's process has open can't be read. It is that one unless the numbers are of another
            # namespace and a kernel of ours, which has a GPU open and is in no list, may be the one that is meant.
            doubtful = memory.foreign_pids or self._unlisted_openers()
            below_a_kernel = self._family.owner(process).kind is Kind.KERNEL  # started with sudo
            return self._obs.scan.host_pids or below_a_kernel or not doubtful
        if process.opens_gpu is True or self._obs.sample.source == "simulated":
            return True
        if isinstance(process.opens_gpu, Unknown):
            return not memory.foreign_pids
        # "Has no GPU open" is believed once the check has found an open one: on a platform with other device files it
        # says no of every process, and the numbers are all there is.
        return not memory.sees_gpu_files

    def _unlisted_openers(self) -> bool:
        listed = {
            row.pid
            for g in self._obs.sample.gpus
            if not isinstance(g.processes, Unknown)
            for row in g.processes
        }
        return any(key.pid not in listed for key in self._ownership.openers)

    def learnt(self, placed: Mapping[str, Sequence[Placed]]) -> AttributionMemory:
        """A pid that is no process here once has just ended; twice in a row, or with the number of a process that has
        no GPU open, it is a number of another namespace. Who was on a card is kept while its list can't be read."""
        hidden = {gpu.uuid for gpu in self._obs.sample.gpus if isinstance(gpu.processes, Unknown)}
        kept = {row: key for row, key in self._memory.identities.items() if row[0] in hidden}
        absent = frozenset((uuid, p.row.pid) for uuid, rows in placed.items() for p in rows if p.absent)
        innocent = any(p.innocent for rows in placed.values() for p in rows)
        return replace(
            self._memory,
            identities={**kept, **self._identities},
            absent=absent,
            foreign_pids=self._memory.foreign_pids or innocent or bool(absent & self._memory.absent),
            foreign_samples=frozenset(self._foreign_samples),
        )


def _infer(
    rows: list[Placed], obs: Observation, memory: AttributionMemory, ownership: Ownership
) -> list[Placed]:
    """The one process on a GPU is the one local process that has a GPU open, where numbers can't be matched."""
    if not memory.foreign_pids or ownership.openers_unsure or len(ownership.openers) != 1:
        return rows
    if len(rows) != 1 or rows[0].owner is not None:
        return rows
    (key,) = ownership.openers
    process = obs.scan.processes.get(key.pid)
    owner = ownership.owners.get(key)
    if process is None or process.key != key or owner is None:
        return rows
    if owner.kind is Kind.KERNEL:
        owner = replace(owner, link=Link.INFERRED)
    return [Placed(rows[0].row, owner, key)]


def _larger(one: Reading, two: Reading) -> Reading:
    if isinstance(one, Unknown):
        return two
    return one if isinstance(two, Unknown) else max(one, two)


def _merge(one: GpuProcess, two: GpuProcess) -> GpuProcess:
    """Two rows of the same process (compute and graphics, or listed twice): the larger of each value."""
    return replace(
        one,
        kinds=one.kinds | two.kinds,
        memory_bytes=_larger_bytes(one.memory_bytes, two.memory_bytes),
        sm_ratio=_larger(one.sm_ratio, two.sm_ratio),
        codec_ratio=_larger(one.codec_ratio, two.codec_ratio),
    )


def _larger_bytes(one: ByteReading, two: ByteReading) -> ByteReading:
    if isinstance(one, Unknown):
        return two
    return one if isinstance(two, Unknown) else max(one, two)
