"""Local processes, from /proc: who descends from whom, what each uses, who has a GPU open.

A full scan walks all of /proc, at most once a period; the rounds between read only GPU processes and kernels again,
with their parents. Processes come and go while they are read: one that vanishes is left out. Doesn't cover whose a
process is (core.ownership), and ending processes (process_record). Every call blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from .core.model import ByteReading, Instant, Process, ProcessKey, ProcessScan, Reading, Unknown
from .core.ownership import Family, Kind
from .core.reasons import because
from .process_record import TreeRecord, record_tree
from .process_watch import ProcessWatch
from .procfs import GPU_FILES, ProcFiles, Stat, parse_stat

__all__ = ["GPU_FILES", "ProcessReader", "TreeRecord", "marked_processes", "means", "record_tree"]

#: An unknown GPU pid asks for a full scan, but not more often.
_RESCAN = timedelta(seconds=1)

_NONE = timedelta(0)


def _now() -> Instant:
    return Instant(time.monotonic(), datetime.now(timezone.utc))


# --- means ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Used:
    """What one process had used when a period began or ended."""

    parent_pid: int
    own: float
    reaped: float
    io: ByteReading


Counters = dict[ProcessKey, Used]


def _less_ended(used: float, ended: float) -> float:
    """What was reaped in a period, less what those who ended had used before it. Where that doesn't fit, they were
    reaped by somebody else, and nothing is taken off: work must not be hidden."""
    return used - ended if used >= ended else used


def _ended_below(before: Counters, after: Counters) -> dict[ProcessKey, tuple[float, float]]:
    """By the nearest parent that lives on: CPU seconds and bytes of those that ended, as of when the period began.

    Their parent takes over all that they ever used when it reaps them; only what is new belongs to this period.
    """
    by_pid = {key.pid: key for key in before}
    ended: dict[ProcessKey, tuple[float, float]] = {}
    for key in before.keys() - after.keys():
        used, heir = before[key], by_pid.get(before[key].parent_pid)
        for _ in range(len(before)):
            if heir is None or heir in after:
                break
            heir = by_pid.get(before[heir].parent_pid)
        if heir is None:
            continue
        cpu, io = ended.get(heir, (0.0, 0.0))
        moved = 0 if isinstance(used.io, Unknown) else used.io
        ended[heir] = (cpu + used.own + used.reaped, io + moved)
    return ended


def _io_rate(then: ByteReading, now: ByteReading, ended: float, seconds: float) -> Reading:
    for reading in (now, then):
        if isinstance(reading, Unknown):
            return reading
    assert not isinstance(then, Unknown) and not isinstance(now, Unknown)
    return max(0.0, _less_ended(now - then, ended)) / seconds


def means(
    before: Counters, after: Counters, seconds: float
) -> tuple[dict[ProcessKey, float], dict[ProcessKey, Reading]]:
    """CPU in cores and IO in bytes a second of each process over a period; new ones count from their birth, ended
    ones through the parent that reaped them."""
    ended = _ended_below(before, after)
    cpu: dict[ProcessKey, float] = {}
    io: dict[ProcessKey, Reading] = {}
    for key, now in after.items():
        then = before.get(key, Used(now.parent_pid, 0.0, 0.0, 0))
        ended_cpu, ended_io = ended.get(key, (0.0, 0.0))
        reaped = _less_ended(now.reaped - then.reaped, ended_cpu)
        cpu[key] = max(0.0, now.own - then.own + reaped) / seconds
        io[key] = _io_rate(then.io, now.io, ended_io, seconds)
    return cpu, io


# --- scans ----------------------------------------------------------------------------------------------------------


class _Laid(Mapping[int, Process]):
    """A few processes read again, laid over all of the last full scan, without copying that. None: it has ended."""

    def __init__(self, below: Mapping[int, Process], above: Mapping[int, Process | None]) -> None:
        self._below = below
        self._above = above

    def __getitem__(self, pid: int) -> Process:
        found = self._above[pid] if pid in self._above else self._below[pid]
        if found is None:
            raise KeyError(pid)
        return found

    def get(self, pid: int, default: Any = None) -> Any:
        found = self._above[pid] if pid in self._above else self._below.get(pid)
        return default if found is None else found

    def __iter__(self) -> Iterator[int]:
        yield from (pid for pid, process in self._above.items() if process is not None)
        yield from (pid for pid in self._below if pid not in self._above)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(slots=True)
class _Means:
    """The last means and the counters that the next ones start from."""

    start: Instant | None = None
    counters: Counters | None = None
    cpu: Mapping[ProcessKey, float] | None = None
    io: Mapping[ProcessKey, Reading] | None = None
    span: timedelta | None = None
    ended: Instant | None = None


class ProcessReader:
    """Reads processes. Make all calls from one thread.

    `gpu_files`: patterns of the files that give away who has a GPU open. `full_scans` counts the walks over /proc.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], Instant] = _now,
        gpu_files: Sequence[str] = GPU_FILES,
    ) -> None:
        self._files = ProcFiles(proc, gpu_files)
        #: Those read between full scans; one of them that lives on is below the same parents as before.
        self._watch = ProcessWatch() if proc == Path("/proc") else None
        self._asked: set[ProcessKey] = set()
        self._some_ended = False
        self._clock = clock
        self._pid = os.getpid()
        self._uid = os.geteuid()
        self._table: dict[int, Process] = {}
        self._settled: dict[ProcessKey, str | None] = {}
        #: By pid, the line of /proc/PID/stat that says what the table has.
        self._lines: dict[int, bytes] = {}
        #: Of each process the pages that it maps, and whether libcuda is among them.
        self._maps: dict[ProcessKey, tuple[int, bool]] = {}
        #: Of each process that has a GPU open, by which descriptor.
        self._descriptors: dict[ProcessKey, str] = {}
        self._scanned: Instant | None = None
        self._means = _Means()
        self._unmatched: frozenset[int] = frozenset()
        self._host_pids = self._files.in_first_namespace()
        self.full_scans = 0

    def read(self, pids: Collection[int], period: timedelta, roots: Collection[int]) -> ProcessScan:
        """The processes now. `pids`: those on a GPU; `roots`: those of kernels; `period`: how old the last full scan
        may be, and the span of the means. 0 scans now, and leaves the means alone.

        A pid that is unknown, or has no GPU open although the driver lists it, asks for a full scan once; if that
        doesn't help, it is remembered.
        """
        now = self._clock()
        if self._is_over(now, period):
            return self._scan(now, period, pids, roots)
        laid = self._read_again({*pids, *roots})
        for process in [laid[pid] for pid in pids if pid in laid]:
            if process is not None and process.opens_gpu is not True:
                opens = self._opens_gpu(process.key, process.uid, process.state)
                laid[process.key.pid] = replace(process, opens_gpu=opens)
        processes = _Laid(self._table, laid)
        unmatched = _unmatched(pids, roots, processes)
        recent = self._scanned is not None and now.since(self._scanned) < _RESCAN
        if unmatched - self._unmatched and not recent:
            return self._scan(now, period, pids, roots)
        self._unmatched &= unmatched
        return self._result(now, processes, full=False)

    def _is_over(self, now: Instant, period: timedelta) -> bool:
        if self._scanned is None or now.since(self._scanned) >= period:
            return True
        # By the means too: scans that leave them alone must not put off those that take them.
        return self._means.start is not None and now.since(self._means.start) >= period

    def _result(self, now: Instant, processes: Mapping[int, Process], full: bool) -> ProcessScan:
        server = processes.get(self._pid)
        return ProcessScan(
            taken=now,
            processes=processes,
            full=full,
            cpu_cores=self._means.cpu or {},
            io_rate=self._means.io or {},
            measured=self._means.span,
            server_key=None if server is None else server.key,
            server_cgroup="" if server is None else server.cgroup,
            measured_at=self._means.ended,
            host_pids=self._host_pids,
        )

    # --- all of them ---

    def _scan(
        self, now: Instant, period: timedelta, pids: Collection[int], roots: Collection[int]
    ) -> ProcessScan:
        self._scan_all(now, period)
        self._unmatched = _unmatched(pids, roots, self._table)
        return self._result(now, self._table, full=True)

    def _scan_all(self, now: Instant, period: timedelta) -> None:
        table: dict[int, Process] = {}
        counters: Counters = {}
        for pid in self._files.pids():
            stat = self._files.stat(pid)
            process = None if stat is None else self._process(pid, stat, look=True)
            if stat is None or process is None:
                continue
            table[pid] = process
            counters[process.key] = Used(
                stat.parent_pid, stat.own_seconds, stat.reaped_seconds, process.io_bytes
            )
        # A marker is trusted from the second scan on: one just forked still shows its parent's environment.
        self._settled = {p.key: p.marker for p in table.values() if self._is_known(p.key)}
        self._maps = {key: maps for key, maps in self._maps.items() if key in counters}
        self._descriptors = {key: number for key, number in self._descriptors.items() if key in counters}
        self._table = table
        self._lines.clear()
        if self._watch is not None:
            self._watch.drop_all_but({key for key in self._asked if key in counters})
            self._asked.clear()
            self._some_ended = self._watch.any_ended()
        self._scanned = now
        self.full_scans += 1
        self._measure(now, period, counters)

    def _measure(self, now: Instant, period: timedelta, counters: Counters) -> None:
        last = self._means
        if last.start is None or last.counters is None:
            self._means = _Means(now, counters)
            return
        span = now.since(last.start)
        if period > _NONE and span >= period:
            cpu, io = means(last.counters, counters, span.total_seconds())
            self._means = _Means(now, counters, cpu, io, span, now)

    # --- one of them ---

    def _is_known(self, key: ProcessKey) -> bool:
        known = self._table.get(key.pid)
        return known is not None and known.key == key

    def _process(self, pid: int, stat: Stat, look: bool = False) -> Process | None:
        """The process as all its files tell. `look`: also whether it has a GPU open; else as the last full scan saw."""
        key = ProcessKey(pid, stat.start_ticks)
        uid = self._files.uid(pid)
        if uid is None:
            return None
        ours = uid == self._uid
        if look:
            opens = self._opens_gpu(key, uid, stat.state)
        else:
            opens = self._table[pid].opens_gpu if self._is_known(key) else False
        return Process(
            key=key,
            parent_pid=stat.parent_pid,
            uid=uid,
            name=stat.name,
            state=stat.state,
            session=stat.session,
            cgroup=self._files.cgroup(pid) if ours else "",
            cpu_seconds=stat.own_seconds + stat.reaped_seconds,
            io_bytes=self._files.io_bytes(pid) if ours else Unknown(because("proc_unreadable", pid=pid)),
            marker=self._marker(key) if ours else None,
            opens_gpu=opens,
        )

    def _marker(self, key: ProcessKey) -> str | None:
        return self._settled[key] if key in self._settled else self._files.marker(key.pid)

    def _opens_gpu(self, key: ProcessKey, uid: int, state: str) -> bool | Unknown:
        """Only our own user's processes can be asked, and the dead have nothing open."""
        if uid != self._uid or state in "ZX":
            return False
        opened = self._files.gpu_descriptor(key.pid, self._descriptors.get(key))
        if isinstance(opened, str):
            self._descriptors[key] = opened
            return True
        return self._maps_libcuda(key) if opened is None else opened

    def _maps_libcuda(self, key: ProcessKey) -> bool | Unknown:
        """Looked up again when the process maps more or less than it did: the list of all mappings takes long."""
        pages = self._files.mapped_pages(key.pid)
        known = self._maps.get(key)
        if known is not None and known[0] == pages:
            return known[1]
        found = self._files.maps_libcuda(key.pid)
        if pages is not None and not isinstance(found, Unknown):
            self._maps[key] = (pages, found)
        return found

    def _again(self, pid: int) -> Process | None:
        """The process now. Of one that two full scans had, only what tells whether it lives and below whom is read:
        its cgroup seldom changes, and the next full scan sees that."""
        line = self._files.stat_line(pid)
        if not line:
            return None
        known = self._table.get(pid)
        if known is not None and line == self._lines.get(pid) and self._files.uid(pid) == known.uid:
            return known
        stat = parse_stat(line)
        same = known is not None and known.key.start_ticks == stat.start_ticks and known.key in self._settled
        if known is None or not same or self._files.uid(pid) != known.uid:
            return self._process(pid, stat)
        used = stat.own_seconds + stat.reaped_seconds
        now = (stat.name, stat.state, stat.parent_pid, stat.session, used)
        if now == (known.name, known.state, known.parent_pid, known.session, known.cpu_seconds):
            self._lines[pid] = line
            return known
        return replace(
            known,
            name=stat.name,
            state=stat.state,
            parent_pid=stat.parent_pid,
            session=stat.session,
            cpu_seconds=used,
        )

    def _read_again(self, pids: Collection[int]) -> dict[int, Process | None]:
        """These with their parents, as they are now. As long as all that are watched live on, those stay as they are;
        once one has ended, others may have got another parent, and are read until the next full scan."""
        if self._watch is not None and not self._some_ended:
            self._some_ended = self._watch.any_ended()
        trusted = not self._some_ended
        laid: dict[int, Process | None] = {}
        for pid in pids:
            self._read_chain(pid, laid)
        if trusted and self._some_ended:
            return self._read_again(pids)
        return laid

    def _lives_on(self, known: Process | None) -> Process | None:
        """The process as the last full scan saw it, where it is watched and none of those watched has ended since."""
        if self._watch is None or known is None or known.key not in self._settled:
            return None
        self._asked.add(known.key)
        if self._some_ended:
            return None
        if known.key not in self._watch:
            self._watch.add(known.key, lambda: self._is_still(known))
        return known if known.key in self._watch else None

    def _is_still(self, known: Process) -> bool:
        stat = self._files.stat(known.key.pid)
        if stat is None or stat.state in "ZX":
            return False
        return (stat.start_ticks, stat.parent_pid) == (known.key.start_ticks, known.parent_pid)

    def _read_chain(self, pid: int, laid: dict[int, Process | None]) -> None:
        """Read a process and its parents again, as far as they are not yet."""
        while pid > 0 and pid not in laid:
            known = self._table.get(pid)
            process = laid[pid] = self._lives_on(known) or self._again(pid)
            if known is not None and (process is None or process.key != known.key):
                self._some_ended = True
            if process is None:
                return
            pid = process.parent_pid


def _unmatched(
    pids: Collection[int], roots: Collection[int], processes: Mapping[int, Process]
) -> frozenset[int]:
    """Those that are no process here, and those on a GPU that have no GPU open."""
    absent = {pid for pid in (*pids, *roots) if processes.get(pid) is None}
    return frozenset(absent | {pid for pid in pids if pid not in absent and not processes[pid].opens_gpu})


def marked_processes(scan: ProcessScan, kernel_ids: Collection[str]) -> tuple[Process, ...]:
    """Live processes of ours that lost their parents and carry the marker of a kernel that is not among `kernel_ids`:
    what an earlier server left behind. Those of another server that still runs are not among them."""
    family = Family(scan, (), ())
    found = [p for p in scan.processes.values() if p.marker is not None and p.marker not in kernel_ids]
    return tuple(p for p in found if family.owner(p).kind is Kind.ORPHAN)
