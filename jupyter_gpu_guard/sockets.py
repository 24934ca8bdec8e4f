"""TCP connections of given processes, from the kernel's sock_diag: how many bytes they moved.

What counts are live connections of a kernel's processes with something outside its tree: a download, a database, an
API, NCCL over sockets, a server on this machine. What doesn't: connections with a process that the caller excludes
(the Jupyter server: the kernel's own messages, also what is shown through a proxy in the server), and those within one
tree, whose work its CPU shows.

A connection takes its counters along when it closes, so what ended between two readings is lost; UDP, unix sockets,
MPTCP and RDMA aren't seen at all. Traffic is therefore evidence of use, and its absence evidence of nothing.

Doesn't cover which processes belong to a kernel (core.ownership). No call raises for what the system refuses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from .core.model import ByteReading, Instant, Unknown
from .core.reasons import Reason, because
from .procfs import ProcFiles
from .sock_diag import Diagnosed, dump_tcp, parse_message, unreadable

Name = TypeVar("Name", bound=Hashable)


def _now() -> Instant:
    return Instant(time.monotonic(), datetime.now(timezone.utc))


# --- what a reading tells -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a live connection."""

    moved: ByteReading  # payload that the other end acknowledged, and that came in; never falling
    peer: int | None  # the cookie of the other end, where that is on this machine too
    excluded: bool  # the other end belongs to a process that the caller excluded


@dataclass(frozen=True, slots=True)
class NetworkReading:
    """All connections of our network namespace at one moment, by cookie: unlike inodes, never given out twice."""

    taken: Instant
    connections: Mapping[int, Connection] | Unknown
    #: Of each pid asked for, the cookies that it holds.
    held: Mapping[int, frozenset[int] | Unknown]


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """Bytes a second, sent and received, over a period: at least so many. `unread`: why some could not be read."""

    bytes_per_second: float
    unread: Reason | None = None


def rates(
    before: NetworkReading, after: NetworkReading, trees: Mapping[Name, Collection[int]]
) -> dict[Name, NetworkUse]:
    """What each tree of pids moved between two readings. A pid that `after` did not look at is unread.

    A connection that is new counts from 0, one that several processes share counts once, one that is gone not at all.
    """
    seconds = after.taken.since(before.taken).total_seconds()
    return {name: _use(before, after, pids, seconds) for name, pids in trees.items()}


def _use(before: NetworkReading, after: NetworkReading, pids: Collection[int], seconds: float) -> NetworkUse:
    then, now = before.connections, after.connections
    if isinstance(now, Unknown):
        return NetworkUse(0.0, now.reason)
    if isinstance(then, Unknown):
        return NetworkUse(0.0, then.reason)
    if seconds <= 0:
        return NetworkUse(0.0, because("not_measured_yet"))
    own, unread = _held(after, pids)
    total = 0
    for cookie in sorted(own):
        moved = _moved(then.get(cookie), now[cookie], own)
        if isinstance(moved, Unknown):
            unread = unread or moved.reason
        else:
            total += moved
    return NetworkUse(total / seconds, unread)


def _held(reading: NetworkReading, pids: Collection[int]) -> tuple[set[int], Reason | None]:
    """The cookies that these processes hold together, and why there may be more."""
    own: set[int] = set()
    unread = None
    for pid in sorted(pids):
        held = reading.held.get(pid, Unknown(because("proc_unreadable", pid=pid)))
        if isinstance(held, Unknown):
            unread = unread or held.reason
        else:
            own |= held
    return own, unread


def _moved(then: Connection | None, now: Connection, own: Collection[int]) -> ByteReading:
    for end in (now, then):  # also as it was: the other end may have closed since
        if end is not None and (end.excluded or end.peer in own):
            return 0
    if isinstance(now.moved, Unknown):
        return now.moved
    if then is None:
        return now.moved
    return then.moved if isinstance(then.moved, Unknown) else max(0, now.moved - then.moved)


# --- whose they are --------------------------------------------------------------------------------------------------


class SocketReader:
    """Reads the connections of processes. `seconds`: how long the kernel's answer may take."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], Instant] = _now,
        dump: Callable[[float], list[bytes]] = dump_tcp,
        seconds: float = 2.0,
    ) -> None:
        self._root = str(proc)
        self._files = ProcFiles(proc, ())
        self._clock = clock
        self._dump = dump
        self._seconds = seconds

    def read(self, pids: Collection[int], excluded_peer_pids: Collection[int]) -> NetworkReading:
        """Who of `pids` holds which connections now. `excluded_peer_pids`: what goes to and from these doesn't count.

        Takes longer with the open files of the processes named, and with the connections of the network namespace.
        """
        inodes = {pid: self._inodes_here(pid) for pid in pids}
        # After the others: whoever has accepted a connection by then finds its other end here.
        excluded: set[int] = set()
        for pid in excluded_peer_pids:
            found = self._inodes(pid)
            if isinstance(found, Unknown):
                return NetworkReading(self._clock(), found, {})
            excluded |= found
        taken = self._clock()
        try:
            diagnosed = [parse_message(message) for message in self._dump(self._seconds)]
        except (OSError, ValueError) as error:
            return NetworkReading(taken, unreadable(error), {})
        return NetworkReading(taken, _connections(diagnosed, excluded), _holders(diagnosed, inodes))

    def _inodes_here(self, pid: int) -> frozenset[int] | Unknown:
        """The same, of a process in our own network namespace: what belongs to another isn't listed here."""
        try:
            ours = os.readlink(f"{self._root}/self/ns/net")
            if os.readlink(f"{self._root}/{pid}/ns/net") != ours:
                return Unknown(because("network_namespace", pid=pid))
        except OSError:
            return self._nothing_of(pid)
        return self._inodes(pid)

    def _inodes(self, pid: int) -> frozenset[int] | Unknown:
        """The sockets that a process has open."""
        try:
            folder = os.open(f"{self._root}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return self._nothing_of(pid)
        try:
            links = [_link(entry, folder) for entry in os.listdir(folder)]
        except OSError:
            return self._nothing_of(pid)
        finally:
            os.close(folder)
        return frozenset(int(link[8:-1]) for link in links if link.startswith("socket:["))

    def _nothing_of(self, pid: int) -> frozenset[int] | Unknown:
        """What a process has open that can't be looked into: nothing if it has ended."""
        stat = self._files.stat(pid)
        ended = stat is None or stat.state in "ZX"
        return frozenset() if ended else Unknown(because("proc_unreadable", pid=pid))


def _link(entry: str, folder: int) -> str:
    """Where a descriptor points to; nowhere if it was closed meanwhile."""
    try:
        return os.readlink(entry, dir_fd=folder)
    except FileNotFoundError:
        return ""


def _connections(diagnosed: Collection[Diagnosed], excluded: Collection[int]) -> dict[int, Connection]:
    by_ends = {(one.near, one.far): one for one in diagnosed}
    found = {}
    for one in diagnosed:
        peer = by_ends.get((one.far, one.near))
        found[one.cookie] = Connection(
            moved=one.moved,
            peer=None if peer is None else peer.cookie,
            excluded=peer is not None and peer.inode in excluded,
        )
    return found


def _holders(
    diagnosed: Collection[Diagnosed], inodes: Mapping[int, frozenset[int] | Unknown]
) -> dict[int, frozenset[int] | Unknown]:
    cookies = {one.inode: one.cookie for one in diagnosed if one.inode}
    return {
        pid: held if isinstance(held, Unknown) else frozenset(cookies[n] for n in held & cookies.keys())
        for pid, held in inodes.items()
    }
