"""What each kernel has on each GPU, and how sure we are.

Sums up the rows of the driver's lists by whose they are. What can't be told apart counts for every kernel that it may
belong to; what can't be read stays unknown. Which process a row is stands in matching, whose a process is in ownership.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .matching import AttributionMemory, Placed, match, matched
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
    Reading,
    TelemetryState,
    UnattributedProcess,
    Unknown,
    Usage,
)
from .ownership import Holding, Kind, Ownership, survey
from .reasons import Reason, because

_SURENESS = (Link.KERNEL, Link.DESCENDANT, Link.DETACHED, Link.INFERRED)

__all__ = ["AttributionMemory", "attribute"]

#: Why there is nothing to read although nothing failed: these say that no kernel has a GPU.
_NO_USE = frozenset({"no_gpu", "asleep", "no_samples"})
#: A card in such a state can't be used by anybody.
_OUT_OF_REACH = frozenset({"gpu_lost", "reset_required"})


def attribute(obs: Observation, memory: AttributionMemory) -> tuple[Attribution, AttributionMemory]:
    """Split one observation among kernels, terminals and nobody. Also returns the memory for the next one."""
    ownership = _ownership(obs, memory)
    memory = replace(
        memory, ownership=ownership, sees_gpu_files=memory.sees_gpu_files or ownership.sees_gpu_files
    )
    if obs.sample.state is not TelemetryState.OK:
        return _without_sample(obs, memory, ownership), memory
    return _with_sample(obs, memory, ownership)


def _ownership(obs: Observation, memory: AttributionMemory) -> Ownership:
    """A survey for each new full scan; between them the last one stands."""
    last = memory.ownership
    if last is not None and (not obs.scan.full or last.taken == obs.scan.taken):
        return last
    return survey(obs.scan, obs.kernels, obs.terminals, last)


def _may_hold(holding: Holding, memory: AttributionMemory) -> bool:
    """Whether a kernel may have a GPU open: not where the check works and says no of all its processes."""
    return bool(holding.openers) or not memory.sees_gpu_files or not holding.tree


def _usage(
    kernel: Kernel,
    holding: Holding,
    measured: Instant | None,
    shares: tuple[GpuShare, ...] = (),
    maybe_using: tuple[tuple[str, float], ...] = (),
    holds_gpu: bool | Unknown = False,
    gpu_unreadable: Reason | None = None,
) -> Usage:
    return Usage(
        kernel_id=kernel.kernel_id,
        cpu_cores=holding.cpu_cores,
        io_bytes_per_second=holding.io_bytes_per_second,
        measured=measured if holding.cpu_cores is not None else None,
        tree=holding.tree,
        shares=shares,
        maybe_using=maybe_using,
        holds_gpu=holds_gpu,
        gpu_unreadable=gpu_unreadable,
    )


def _out_of_sight(kernel: Kernel) -> Reason | None:
    """Why nothing on this machine can be said to be this kernel's."""
    if kernel.remote:
        return because("remote_kernel")
    return because("kernel_pid_unknown") if kernel.pid is None else None


def _holdings(obs: Observation, ownership: Ownership) -> list[tuple[Kernel, Holding]]:
    """What each kernel has, one that is younger than the last full scan by its own process alone."""
    found = []
    for kernel in obs.kernels:
        holding = ownership.holdings.get(kernel.kernel_id)
        process = None if kernel.pid is None or kernel.remote else obs.scan.processes.get(kernel.pid)
        if process is not None and kernel.start_ticks not in (None, process.key.start_ticks):
            process = None
        own = () if process is None or process.state in "ZX" else ((process.key, Link.KERNEL),)
        if holding is None or (own and own[0] not in holding.tree):
            openers = frozenset(key for key, _ in own if obs.scan.processes[key.pid].opens_gpu is not False)
            holding = Holding(tree=own, openers=openers)
        found.append((kernel, holding))
    return found


def _without_sample(obs: Observation, memory: AttributionMemory, ownership: Ownership) -> Attribution:
    """No reading: a kernel that may have a GPU may be using it."""
    reason = obs.sample.reason or because("no_samples")
    usages = {}
    for kernel, holding in _holdings(obs, ownership):
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


def _with_sample(
    obs: Observation, memory: AttributionMemory, ownership: Ownership
) -> tuple[Attribution, AttributionMemory]:
    placed, memory = match(obs, memory, ownership)
    split = _Split(obs, memory, placed)
    usages = {
        kernel.kernel_id: split.usage(kernel, holding, ownership.measured_at)
        for kernel, holding in _holdings(obs, ownership)
    }
    rows = [(uuid, p) for uuid, ps in placed.items() for p in ps]
    others = tuple(_other(uuid, p) for uuid, p in rows if p.owner is None or p.owner.kind is not Kind.KERNEL)
    return Attribution(usages, others), memory


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Something on a GPU may be this kernel's: how much it uses, and whether the GPU's list could be read."""

    why: Reason
    ratio: Reading
    listed: bool = True
    holds: bool = True  # the kernel may hold memory there; a loose process is never its own


class _Split:
    """One sample, split among the kernels."""

    def __init__(
        self, obs: Observation, memory: AttributionMemory, placed: Mapping[str, Sequence[Placed]]
    ) -> None:
        self._gpus = obs.sample.gpus
        self._host_pids = obs.scan.host_pids
        self._memory = memory
        self._placed = placed
        self._matched = matched(placed)
        # Sorted by whose they are once, not again for each kernel.
        self._of_kernels: dict[str | None, dict[str, list[Placed]]] = {}  # by kernel_id and uuid
        self._unmatched = {uuid: [p.row for p in rows if p.owner is None] for uuid, rows in placed.items()}
        self._loose: dict[str, list[GpuProcess]] = {uuid: [] for uuid in placed}
        for uuid, rows in placed.items():
            for p in rows:
                if p.owner is not None and p.owner.kind is Kind.KERNEL:
                    self._of_kernels.setdefault(p.owner.name, {}).setdefault(uuid, []).append(p)
                elif p.owner is not None and p.owner.kind is Kind.LOOSE:
                    self._loose[uuid].append(p.row)
        #: Cards on which something may be a kernel's that isn't known to be.
        self._doubtful = {
            gpu.uuid
            for gpu in self._gpus
            if isinstance(gpu.processes, Unknown)
            or self._unmatched[gpu.uuid]
            or self._loose[gpu.uuid]
            or not placed[gpu.uuid]
        }

    def usage(self, kernel: Kernel, holding: Holding, measured: Instant | None) -> Usage:
        """What the kernel has on all GPUs, and what may be its own."""
        hidden = _out_of_sight(kernel)
        unlisted = self._may_be_unlisted(holding)
        shares: list[GpuShare] = []
        maybe: list[tuple[str, Reading]] = []
        doubts: list[_Doubt] = []
        own = self._of_kernels.get(kernel.kernel_id, {})
        for gpu in self._gpus:
            mine = own.get(gpu.uuid)
            if mine:
                shares.append(_share(gpu.uuid, mine))
                if isinstance(shares[-1].sm_ratio, Unknown):
                    maybe.append((gpu.uuid, _at_least([p.row for p in mine], gpu)))
            doubtful = not hidden and gpu.uuid in self._doubtful
            doubt = self._doubt(gpu, holding, unlisted) if doubtful else None
            if doubt is not None:
                doubts.append(doubt)
                maybe.append((gpu.uuid, doubt.ratio))
        unreadable = [d.why for d in doubts if not d.listed or isinstance(d.ratio, Unknown)]
        may_hold = [d.why for d in doubts if d.holds]
        why = hidden or next(iter(may_hold), None)
        return _usage(
            kernel,
            holding,
            measured,
            shares=tuple(shares),
            holds_gpu=True if shares else Unknown(why) if why is not None else False,
            maybe_using=tuple((uuid, ratio) for uuid, ratio in maybe if not isinstance(ratio, Unknown)),
            gpu_unreadable=hidden or next(iter(unreadable), None),
        )

    def _doubt(self, gpu: Gpu, holding: Holding, unlisted: bool) -> _Doubt | None:
        if isinstance(gpu.processes, Unknown):
            return self._doubt_without_list(gpu, gpu.processes.reason, holding)
        unmatched, loose = self._unmatched[gpu.uuid], self._loose[gpu.uuid]
        if unmatched and unlisted:
            return _Doubt(because("unmatched_gpu_process", uuid=gpu.uuid), _most(unmatched, gpu))
        if loose:
            why = because("unmatched_gpu_process", uuid=gpu.uuid)
            return _Doubt(why, _most(loose, gpu), holds=False)
        if self._placed[gpu.uuid] or not unlisted:
            return None
        # A list leaves out processes of other namespaces (from driver 535.113 on), and some containers see none at
        # all (nvidia-container-toolkit#1013): an empty one is no proof where somebody uses the GPU.
        in_use = _strongest(gpu)
        has_one_open = self._memory.sees_gpu_files and not self._host_pids
        if has_one_open or (not isinstance(in_use, Unknown) and in_use > 0):
            return _Doubt(because("pid_namespace"), in_use)
        return None

    def _doubt_without_list(self, gpu: Gpu, why: Reason, holding: Holding) -> _Doubt | None:
        """One card that fails must not hide what goes on on the others. Whoever was on it when it could be read is
        taken to be there still; of the others, those that have a GPU open and are nowhere else may be on it. For the
        rest only use of it counts that is seen."""
        was_there = {key for (uuid, _), key in self._memory.identities.items() if uuid == gpu.uuid}
        in_use = gpu.utilization_ratio
        if any(key in was_there for key, _ in holding.tree):
            return _Doubt(why, in_use, listed=False)
        if not _may_hold(holding, self._memory) or why.code in _OUT_OF_REACH:
            return None
        if not holding.openers or holding.openers - self._matched - set(self._memory.identities.values()):
            return _Doubt(why, in_use, listed=False)
        if isinstance(in_use, Unknown):
            return None if _has_no_handle(why) else _Doubt(why, in_use, listed=False)
        return _Doubt(why, in_use, holds=False) if in_use > 0 else None

    def _may_be_unlisted(self, holding: Holding) -> bool:
        """Whether a process of this kernel may be on a GPU without being matched to a row."""
        if self._memory.sees_gpu_files and holding.tree:
            return bool(holding.openers - self._matched)
        return not any(key in self._matched for key, _ in holding.tree)


def _has_no_handle(why: Reason) -> bool:
    """Whether the driver knows a card by its number alone: broken, or counted without being ours
    (nvmlDeviceGetCount_v2)."""
    return dict(why.params).get("call") == "nvmlDeviceGetHandleByIndex"


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


def _at_least(rows: Sequence[GpuProcess], gpu: Gpu) -> Reading:
    """How much a GPU was used where not all of a kernel's rows tell: what one of them tells, or the GPU itself."""
    values = [row.sm_ratio for row in rows if not isinstance(row.sm_ratio, Unknown)]
    whole = _strongest(gpu)
    return max([*values, *([] if isinstance(whole, Unknown) else [whole])], default=whole)


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
        owner=kind.value
        if kind in (Kind.TERMINAL, Kind.SERVER, Kind.ORPHAN, Kind.FOREIGN)
        else "unattributed",
        terminal=owner.name if owner is not None and kind is Kind.TERMINAL else None,
        marker=owner.name if owner is not None and kind is Kind.ORPHAN else None,
        pid=None if kind is Kind.FOREIGN else row.pid,
    )
