"""Who owns each GPU process, and how sure we are.

Matches the driver's processes to local ones and sums them up for each kernel. A number that the driver names may come
from another pid namespace, so a match by number is held against what the local process has open; what can't be told
stays unknown and counts for every kernel that it may belong to. Whose a local process is stands in ownership.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .model import (
    Attribution,
    ByteReading,
    Gpu,
    GpuProcess,
    GpuShare,
    Instant,
    Kernel,
    Link,
    Observation,
    Process,
    ProcessKey,
    Reading,
    TelemetryState,
    UnattributedProcess,
    Unknown,
    Usage,
)
from .ownership import Family, Holding, Kind, Owner, Ownership, survey
from .reasons import Reason, because

_SURENESS = (Link.KERNEL, Link.DESCENDANT, Link.DETACHED, Link.INFERRED)

#: Why there is nothing to read although nothing failed: these say that no kernel has a GPU.
_NO_USE = frozenset({"no_gpu", "asleep", "no_samples"})


def attribute(obs: Observation, memory: AttributionMemory) -> tuple[Attribution, AttributionMemory]:
    """Split one observation among kernels, terminals and nobody. Also returns the memory for the next one."""
    ownership = _ownership(obs, memory)
    memory = replace(
        memory, ownership=ownership, sees_gpu_files=memory.sees_gpu_files or ownership.sees_gpu_files
    )
    if obs.sample.state is not TelemetryState.OK:
        return _without_sample(obs, memory, ownership), memory
    return _Split(obs, memory, ownership).done()


def _ownership(obs: Observation, memory: AttributionMemory) -> Ownership:
    """A survey for each new full scan; between them the last one stands."""
    last = memory.ownership
    if last is not None and (not obs.scan.full or last.taken == obs.scan.taken):
        return last
    return survey(obs.scan, obs.kernels, obs.terminals, last)


def _may_hold(holding: Holding, memory: AttributionMemory) -> bool:
    """Whether a kernel may have a GPU open: not where the check works and says no of all its processes."""
    return bool(holding.openers) or not memory.sees_gpu_files or not holding.tree


def _usage(kernel: Kernel, holding: Holding, measured: Instant | None) -> Usage:
    return Usage(
        kernel_id=kernel.kernel_id,
        cpu_cores=holding.cpu_cores,
        io_bytes_per_second=holding.io_bytes_per_second,
        measured=measured if holding.cpu_cores is not None else None,
        tree=holding.tree,
    )


def _out_of_sight(kernel: Kernel) -> Reason | None:
    """Why nothing on this machine can be said to be this kernel's."""
    if kernel.remote:
        return because("remote_kernel")
    return because("kernel_pid_unknown") if kernel.pid is None else None


def _holdings(obs: Observation, ownership: Ownership) -> dict[str, Holding]:
    """What each kernel has, one that is younger than the last full scan by its own process alone."""
    found = {}
    for kernel in obs.kernels:
        holding = ownership.holdings.get(kernel.kernel_id)
        process = None if kernel.pid is None or kernel.remote else obs.scan.processes.get(kernel.pid)
        if process is not None and kernel.start_ticks not in (None, process.key.start_ticks):
            process = None
        own = () if process is None or process.state in "ZX" else ((process.key, Link.KERNEL),)
        if holding is None or (own and own[0] not in holding.tree):
            openers = frozenset(key for key, _ in own if obs.scan.processes[key.pid].opens_gpu is not False)
            holding = Holding(tree=own, openers=openers)
        found[kernel.kernel_id] = holding
    return found


def _without_sample(obs: Observation, memory: AttributionMemory, ownership: Ownership) -> Attribution:
    """No reading: a kernel that may have a GPU may be using it."""
    reason = obs.sample.reason or because("no_samples")
    usages = {}
    for kernel in obs.kernels:
        holding = _holdings(obs, ownership)[kernel.kernel_id]
        usage = _usage(kernel, holding, ownership.measured_at)
        if obs.sample.state is not TelemetryState.NONE:
            maybe = _may_hold(holding, memory)
        else:
            # Nothing is read because somebody chose so; the process itself shows whether it has a GPU.
            maybe = reason.code not in _NO_USE and bool(holding.openers)
        hidden = _out_of_sight(kernel)
        if hidden is not None or maybe:
            why = hidden or reason
            usage = replace(usage, holds_gpu=Unknown(why), gpu_unreadable=why)
        usages[kernel.kernel_id] = usage
    return Attribution(usages)


def _with_sample(obs: Observation, memory: AttributionMemory, ownership: Ownership) -> tuple[Attribution, AttributionMemory]:
    placed, memory = match(obs, memory, ownership)
    split = _Split(obs, memory, placed)
    usages = {
        kernel.kernel_id: split.usage(kernel, holding, ownership.measured_at)
        for kernel, holding in _holdings(obs, ownership)
    }
    others = tuple(
        _other(uuid, p) for uuid, rows in placed.items() for p in rows if p.owner is None or p.owner.kind is not Kind.KERNEL
    )
    return Attribution(usages, others), memory


class _Split:
    """One sample, split among the kernels."""

    def __init__(self, obs: Observation, memory: AttributionMemory, placed: Mapping[str, Sequence[Placed]]) -> None:
        self._gpus = obs.sample.gpus
        self._memory = memory
        self._placed = placed
        self._matched = matched(placed)

    def _kernel_usage(
        self, kernel: Kernel, placed: Mapping[str, Sequence[Placed]], matched: frozenset[ProcessKey]
    ) -> Usage:
        holding = self._holdings[kernel.kernel_id]
        usage = _usage(kernel, holding, self._ownership.measured_at)
        hidden = _out_of_sight(kernel)
        shares = []
        maybe: list[tuple[str, float]] = []
        unreadable = unclear = hidden
        for gpu in self._obs.sample.gpus:
            mine = [p.row for p in placed[gpu.uuid] if _is_of(p, kernel)]
            if mine:
                shares.append(_share(gpu.uuid, [p for p in placed[gpu.uuid] if _is_of(p, kernel)]))
                if isinstance(shares[-1].sm_ratio, Unknown):
                    maybe += _as_pair(gpu.uuid, _strongest(gpu))
            why, ratio = self._unclear(gpu, placed[gpu.uuid], holding, matched, bool(mine))
            if hidden is None and why is not None:
                unclear = unclear or why
                maybe += _as_pair(gpu.uuid, ratio)
                if isinstance(gpu.processes, Unknown) or isinstance(ratio, Unknown):
                    unreadable = unreadable or why
        holds: bool | Unknown = bool(shares)
        if not shares and unclear is not None:
            holds = Unknown(unclear)
        return replace(
            usage, shares=tuple(shares), holds_gpu=holds, maybe_using=tuple(maybe), gpu_unreadable=unreadable
        )

    def _unclear(
        self, gpu: Gpu, rows: Sequence[Placed], holding: Holding, matched: frozenset[ProcessKey], mine: bool
    ) -> tuple[Reason | None, Reading]:
        """Whether something on this GPU may be this kernel's, and how much it is in use. (None, 0) if not."""
        if isinstance(gpu.processes, Unknown):
            if mine or _may_hold(holding, self._memory):
                return gpu.processes.reason, gpu.utilization_ratio
            return None, 0.0
        loose = [p for p in rows if p.owner is not None and p.owner.kind is Kind.LOOSE]
        unmatched = [p for p in rows if p.owner is None]
        if loose:
            return because("unmatched_gpu_process", uuid=gpu.uuid), _most([p.row for p in loose + unmatched], gpu)
        if not self._may_be_unlisted(holding, matched):
            return None, 0.0
        if unmatched:
            return because("unmatched_gpu_process", uuid=gpu.uuid), _most([p.row for p in unmatched], gpu)
        in_use = not isinstance(gpu.utilization_ratio, Unknown) and gpu.utilization_ratio > 0
        if not rows and (in_use or gpu.stray_samples):
            # A list leaves out processes of other namespaces (from driver 535.113 on): an empty one is no proof.
            return because("pid_namespace"), _strongest(gpu)
        return None, 0.0

    def _may_be_unlisted(self, holding: Holding, matched: frozenset[ProcessKey]) -> bool:
        """Whether a process of this kernel may be on a GPU without being matched to a row."""
        if self._memory.sees_gpu_files and holding.tree:
            return bool(holding.openers - matched)
        return not any(key in matched for key, _ in holding.tree)


def _is_of(placed: Placed, kernel: Kernel) -> bool:
    owner = placed.owner
    return owner is not None and owner.kind is Kind.KERNEL and owner.name == kernel.kernel_id


def _as_pair(uuid: str, ratio: Reading) -> list[tuple[str, float]]:
    return [] if isinstance(ratio, Unknown) else [(uuid, ratio)]


def _strongest(gpu: Gpu) -> Reading:
    """How much a GPU is in use, by whomever."""
    stray = max((ratio for _, ratio in gpu.stray_samples), default=None)
    if stray is None:
        return gpu.utilization_ratio
    return stray if isinstance(gpu.utilization_ratio, Unknown) else max(stray, gpu.utilization_ratio)


def _most(rows: Sequence[GpuProcess], gpu: Gpu) -> Reading:
    """How much rows that can't be told apart use a GPU: their largest, or the whole GPU where theirs can't be read."""
    ratios = [ratio for row in rows for ratio in (row.sm_ratio, row.codec_ratio)]
    values = [ratio for ratio in ratios if not isinstance(ratio, Unknown)]
    return max(values) if len(values) == len(ratios) else _strongest(gpu)


def _share(uuid: str, mine: Sequence[Placed]) -> GpuShare:
    rows = [p.row for p in mine]
    links = [p.owner.link for p in mine if p.owner is not None and p.owner.link is not None]
    return GpuShare(
        uuid=uuid,
        memory_bytes=_sum_bytes([row.memory_bytes for row in rows]),
        sm_ratio=_sum_ratios([row.sm_ratio for row in rows]),
        codec_ratio=_sum_ratios([row.codec_ratio for row in rows]),
        link=max(links, key=_SURENESS.index),
        pids=frozenset(row.pid for row in rows),
    )


def _sum_bytes(parts: Iterable[ByteReading]) -> ByteReading:
    total = 0
    for part in parts:
        if isinstance(part, Unknown):
            return part
        total += part
    return total


def _sum_ratios(parts: Sequence[Reading]) -> Reading:
    """At most 1: processes take turns on a GPU. One that is unknown leaves the sum unknown."""
    total = 0.0
    for part in parts:
        if isinstance(part, Unknown):
            return part
        total += part
    return min(1.0, total)


def _other(uuid: str, placed: Placed) -> UnattributedProcess:
    owner, row = placed.owner, placed.row
    kind = Kind.LOOSE if owner is None else owner.kind
    return UnattributedProcess(
        uuid=uuid,
        memory_bytes=row.memory_bytes,
        sm_ratio=row.sm_ratio,
        owner=kind.value if kind in (Kind.TERMINAL, Kind.SERVER, Kind.ORPHAN, Kind.FOREIGN) else "unattributed",
        terminal=owner.name if owner is not None and kind is Kind.TERMINAL else None,
        marker=owner.name if owner is not None and kind is Kind.ORPHAN else None,
        pid=None if kind is Kind.FOREIGN else row.pid,
    )
