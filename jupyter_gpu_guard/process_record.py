"""Ending processes, and none but those that were recorded beforehand.

Before a kernel is shut down its tree is recorded; later only members of that record can be signalled, and only as long
as they are the very same processes. Doesn't cover which of them may be ended (reclaim) and whose they are
(core.ownership).
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from .core.model import Link, ProcessKey
from .procfs import ProcFiles


@dataclass(frozen=True, slots=True)
class _Entry:
    link: Link
    pidfd: int | None  # None where the kernel has no pidfds: the start time is compared instead


class TreeRecord:
    """Processes that may be ended. `links` says how each belongs to the kernel. Close it when done."""

    def __init__(self, entries: dict[ProcessKey, _Entry], files: ProcFiles) -> None:
        self._entries = entries
        self._files = files
        self.links = {key: entry.link for key, entry in entries.items()}

    def alive(self) -> tuple[ProcessKey, ...]:
        """Those of the record that still run; a zombie doesn't."""
        return tuple(key for key, entry in self._entries.items() if self._lives(key, entry))

    def terminate(self, keys: Collection[ProcessKey]) -> tuple[ProcessKey, ...]:
        """Send SIGTERM; returns those that got it. Raises KeyError for a process that is not in the record."""
        return self._send(signal.SIGTERM, keys)

    def kill(self, keys: Collection[ProcessKey]) -> tuple[ProcessKey, ...]:
        """Send SIGKILL; returns those that got it. Raises KeyError for a process that is not in the record."""
        return self._send(signal.SIGKILL, keys)

    def close(self) -> None:
        """Give the descriptors back. Nobody can be signalled afterwards."""
        for entry in self._entries.values():
            if entry.pidfd is not None:
                os.close(entry.pidfd)
        self._entries = {}

    def _lives(self, key: ProcessKey, entry: _Entry) -> bool:
        if entry.pidfd is None:
            return _is_still(key, self._files)
        poll = select.poll()
        poll.register(entry.pidfd, select.POLLIN)
        return not poll.poll(0)  # it turns readable when the process exits

    def _send(self, number: signal.Signals, keys: Collection[ProcessKey]) -> tuple[ProcessKey, ...]:
        entries = [(key, self._entries[key]) for key in keys]  # all or none
        return tuple(key for key, entry in entries if self._signal(number, key, entry))

    def _signal(self, number: signal.Signals, key: ProcessKey, entry: _Entry) -> bool:
        # The user may have changed since (sudo, su); root could signal it all the same.
        if not self._lives(key, entry) or self._files.uid(key.pid) != os.geteuid():
            return False
        try:
            if entry.pidfd is None:
                os.kill(key.pid, number)
            else:
                signal.pidfd_send_signal(entry.pidfd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def record_tree(tree: Iterable[tuple[ProcessKey, Link]]) -> TreeRecord:
    """Record processes. Left out: those that have ended, another user's, this process, pid 1, and inferred ones,
    which are known by a guess alone."""
    files = ProcFiles(Path("/proc"), ())
    entries: dict[ProcessKey, _Entry] = {}
    for key, link in tree:
        if link is Link.INFERRED or key.pid in (1, os.getpid()) or key in entries:
            continue
        try:
            pidfd = _open(key.pid)
        except ProcessLookupError:
            continue
        # Compared after the descriptor is open: from here on it can't come to mean another process.
        if _is_still(key, files) and files.uid(key.pid) == os.geteuid():
            entries[key] = _Entry(link, pidfd)
        elif pidfd is not None:
            os.close(pidfd)
    return TreeRecord(entries, files)


def _open(pid: int) -> int | None:
    """A pidfd; None where there is none (Linux before 5.3, a sandbox). Raises ProcessLookupError."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _is_still(key: ProcessKey, files: ProcFiles) -> bool:
    stat = files.stat(key.pid)
    return stat is not None and stat.start_ticks == key.start_ticks and stat.state not in "ZX"
