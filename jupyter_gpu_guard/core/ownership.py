"""Which kernel or terminal each local process belongs to, and what the processes of a kernel use together.

Works on parents, start times, environments (our marker), users and cgroups alone. Not here: processes on a GPU, which
attribution matches to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from .model import Instant, Kernel, Link, Process, ProcessKey, ProcessScan, Reading, Terminal, Unknown
from .reasons import Reason, because

#: Deeper than any real chain of parents; ends a walk over a scan that contradicts itself.
_DEEPEST = 512


class Kind(str, Enum):
    """Whom a process belongs to."""

    KERNEL = "kernel"
    TERMINAL = "terminal"
    SERVER = "server"
    ORPHAN = "orphan"  # re-parented, with the marker of a kernel process that is gone
    LOOSE = "loose"  # ours, re-parented, started after the server, and nothing tells by whom
    STRANGER = (
        "stranger"  # ours, but not started from here: the shell, browser or test that started the server
    )
    FOREIGN = "foreign"  # another user's
    DEAD = "dead"  # a zombie: it uses nothing and is nobody's


@dataclass(frozen=True, slots=True)
class Owner:
    """`name` is the kernel_id, the terminal's name, or an orphan's marker; `link` is for kernels only."""

    kind: Kind
    name: str | None = None
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What one kernel has on this machine. CPU in cores and IO in bytes a second are None until a period is over."""

    tree: tuple[tuple[ProcessKey, Link], ...] = ()
    cpu_cores: Reading | None = None
    io_bytes_per_second: Reading | None = None
    #: Those of the tree that have a GPU open, or may have.
    openers: frozenset[ProcessKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Ownership:
    """What one full scan showed; it holds until the next, so that the rounds between need not walk all processes."""

    taken: Instant
    owners: Mapping[ProcessKey, Owner] = field(default_factory=dict)
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    measured_at: Instant | None = None
    #: Processes of ours that have a GPU open, the server left out: it holds the driver itself.
    openers: frozenset[ProcessKey] = frozenset()
    #: Some process of ours could not be asked whether it has a GPU open.
    openers_unsure: bool = False
    #: A process was seen to have a GPU open, so the check works on this platform and its "no" can be believed.
    sees_gpu_files: bool = False


class Family:
    """The roots that processes are traced back to. Built anew each round, in time that grows with the kernels."""

    def __init__(self, scan: ProcessScan, kernels: Sequence[Kernel], terminals: Sequence[Terminal]) -> None:
        self._processes = scan.processes
        self._server = scan.processes.get(scan.server_key.pid) if scan.server_key else None
        self._cgroup = scan.server_cgroup
        self._born = {k.kernel_id: k.start_ticks or 0 for k in kernels if not k.remote}
        self._roots: dict[int, tuple[int | None, Owner]] = {}
        for terminal in terminals:
            if terminal.pid is not None:
                self._roots[terminal.pid] = (None, Owner(Kind.TERMINAL, terminal.name))
        for kernel in kernels:
            if kernel.pid is not None and not kernel.remote:
                self._roots[kernel.pid] = (
                    kernel.start_ticks,
                    Owner(Kind.KERNEL, kernel.kernel_id, Link.KERNEL),
                )
        above = list(self._chain(self._server))[1:] if self._server else []
        self._above = frozenset(process.key for process in above)

    def owner(self, process: Process) -> Owner:
        """Whom the process belongs to: the nearest kernel or terminal above it, else by its marker, else by its user,
        cgroup and parents."""
        if process.state in "ZX":
            return Owner(Kind.DEAD)
        found = self._root(process)
        if found is not None:
            return found
        walked: list[Process] = []
        for node in self._chain(process):
            root = self._root(node)
            if root is not None:
                below = root.kind is Kind.KERNEL
                return Owner(Kind.KERNEL, root.name, Link.DESCENDANT) if below else root
            if self._server is not None and node.key == self._server.key:
                return self._below_server(walked)
            if node.key.pid == 1 or node.key in self._above:
                break
            walked.append(node)
        return self._marked(walked) or self._unclaimed(process, walked)

    def _root(self, node: Process) -> Owner | None:
        found = self._roots.get(node.key.pid)
        if found is None or found[0] not in (None, node.key.start_ticks):
            return None
        return found[1]

    def _chain(self, process: Process | None) -> Iterator[Process]:
        """The process and its parents. A "parent" that is younger than its child has only got the parent's pid."""
        for _ in range(_DEEPEST):
            if process is None:
                return
            yield process
            parent = self._processes.get(process.parent_pid)
            if parent is None or parent.key.start_ticks > process.key.start_ticks:
                return
            process = parent

    def _below_server(self, walked: Sequence[Process]) -> Owner:
        # Where the server is pid 1 of its container, whatever loses its parent becomes a child of the server.
        marked = self._marked(walked)
        if marked is not None and (
            marked.kind is Kind.KERNEL or (self._server and self._server.key.pid == 1)
        ):
            return marked
        return Owner(Kind.SERVER)

    def _marked(self, walked: Sequence[Process]) -> Owner | None:
        """By the marker in the environment, that of the process or the nearest above. The server's own marker (it may
        have been started from a kernel of another server) says nothing, because all below inherit it."""
        inherited = self._server.marker if self._server else None
        marked = next((p for p in walked if p.marker is not None and p.marker != inherited), None)
        if marked is None or marked.marker is None:
            return None
        born = self._born.get(marked.marker)
        if born is not None and marked.key.start_ticks >= born:
            return Owner(Kind.KERNEL, marked.marker, Link.DETACHED)
        # Kernels of another live server carry markers that we don't know, but below a parent without one. An orphan
        # has lost its parents: the topmost of its chain carries the marker itself.
        if walked[-1].marker == marked.marker and self._is_reparented(walked[-1]):
            return Owner(Kind.ORPHAN, marked.marker)
        return None

    def _is_reparented(self, process: Process) -> bool:
        """Children of the dead go to pid 1, to a subreaper outside our pid namespace, or to a user's systemd."""
        parent = self._processes.get(process.parent_pid)
        return process.parent_pid in (0, 1) or (parent is not None and parent.name == "systemd")

    def _unclaimed(self, process: Process, walked: Sequence[Process]) -> Owner:
        server = self._server
        if server is None or process.uid != server.uid:
            return Owner(Kind.FOREIGN if server is not None else Kind.STRANGER)
        # Whatever stands beside the server under a parent of the server started the server, or was started with it.
        # So was whatever stands below a process that is older than the server.
        top = walked[-1] if walked else process
        adrift = top.parent_pid in (0, 1) and top.key.start_ticks >= server.key.start_ticks
        return Owner(Kind.LOOSE if adrift and process.cgroup == self._cgroup else Kind.STRANGER)


def survey(
    scan: ProcessScan,
    kernels: Sequence[Kernel],
    terminals: Sequence[Terminal],
    before: Ownership | None = None,
) -> Ownership:
    """Trace every process of a full scan and add up what each kernel's processes use.

    A kernel's CPU and IO is its tree's, its detached children's, and that of loose processes: ours, in the server's
    cgroup, started after it, of no other owner. Loose ones count for every kernel, since any may have started them.
    Sums that `before` has for the same period stand: processes may have ended since.
    """
    family = Family(scan, kernels, terminals)
    owners = {process.key: family.owner(process) for process in scan.processes.values()}
    trees: dict[str, dict[ProcessKey, Link]] = {kernel.kernel_id: {} for kernel in kernels}
    loose = []
    for key, owner in owners.items():
        if owner.kind is Kind.KERNEL and owner.name is not None and owner.link is not None:
            trees[owner.name][key] = owner.link
        elif owner.kind is Kind.LOOSE:
            loose.append(key)
    holdings = {
        kernel.kernel_id: _holding(kernel, trees[kernel.kernel_id], loose, scan) for kernel in kernels
    }
    if before is not None and before.measured_at == scan.measured_at:
        holdings = {
            kernel_id: _same_sums(new, before.holdings.get(kernel_id)) for kernel_id, new in holdings.items()
        }
    return _with_openers(scan, owners, holdings)


def _holding(
    kernel: Kernel, tree: Mapping[ProcessKey, Link], loose: Sequence[ProcessKey], scan: ProcessScan
) -> Holding:
    cpu: Reading | None = None
    io: Reading | None = None
    if scan.measured_at is not None:
        root = _root_of(tree.items())
        if root is None:
            cpu = io = Unknown(_why_no_process(kernel))
        elif root in scan.cpu_cores:  # else it was born after the period, and its first one is yet to end
            keys = [*tree, *loose]
            cpu = _total(keys, scan.cpu_cores.get)
            io = _total(keys, scan.io_rate.get)
    return Holding(
        tree=tuple(sorted(tree.items())),
        cpu_cores=cpu,
        io_bytes_per_second=io,
        openers=frozenset(key for key in tree if scan.processes[key.pid].opens_gpu is not False),
    )


def _root_of(tree: Iterable[tuple[ProcessKey, Link]]) -> ProcessKey | None:
    return next((key for key, link in tree if link is Link.KERNEL), None)


def _same_sums(new: Holding, old: Holding | None) -> Holding:
    if old is None or _root_of(old.tree) != _root_of(new.tree):
        return new
    return replace(new, cpu_cores=old.cpu_cores, io_bytes_per_second=old.io_bytes_per_second)


def _why_no_process(kernel: Kernel) -> Reason:
    if kernel.remote:
        return because("remote_kernel")
    if kernel.pid is None:
        return because("kernel_pid_unknown")
    return because("proc_unreadable", pid=kernel.pid)


def _total(keys: Sequence[ProcessKey], value: Callable[[ProcessKey], Reading | None]) -> Reading:
    total = 0.0
    for key in keys:
        part = value(key)
        if isinstance(part, Unknown):
            return part
        total += part or 0.0
    return total


def _with_openers(
    scan: ProcessScan, owners: Mapping[ProcessKey, Owner], holdings: Mapping[str, Holding]
) -> Ownership:
    ours = [
        (scan.processes[key.pid], owner.kind)
        for key, owner in owners.items()
        if owner.kind not in (Kind.FOREIGN, Kind.DEAD)
    ]
    others = [(process, kind) for process, kind in ours if process.key != scan.server_key]
    return Ownership(
        taken=scan.taken,
        owners=owners,
        holdings=holdings,
        measured_at=scan.measured_at,
        openers=frozenset(process.key for process, _ in others if process.opens_gpu is True),
        # Among strangers there is always some agent that keeps itself closed.
        openers_unsure=any(
            isinstance(p.opens_gpu, Unknown) for p, kind in others if kind is not Kind.STRANGER
        ),
        sees_gpu_files=any(process.opens_gpu is True for process, _ in ours),
    )
