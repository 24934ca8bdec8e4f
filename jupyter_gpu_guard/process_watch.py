"""Which of some local processes have ended, asked in one call for all of them.

Holds a pidfd (Linux 5.3 on) of each; one shows as readable once its process has ended, reaped or not. Doesn't cover
what else changes in a process that lives on. Where there are no pidfds, or none to spare, nothing is watched.
"""

from __future__ import annotations

import os
import resource
import select
import weakref
from collections.abc import Callable, Container

from .core.model import ProcessKey

#: At most so many descriptors, and at most this share of those that the server may have open.
_MOST, _SHARE = 1024, 4


class ProcessWatch:
    """Watches processes until `drop_all_but` leaves them out. Make all calls from one thread."""

    def __init__(self) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // _SHARE)
        self._fds: dict[ProcessKey, int] = {}
        self._poll = select.poll()
        weakref.finalize(self, _close, self._fds)

    def __contains__(self, key: ProcessKey) -> bool:
        return key in self._fds

    def add(self, key: ProcessKey, is_it: Callable[[], bool]) -> None:
        """Watch a process. `is_it`: looks once more whether the pid is that process, for a pidfd only names a pid."""
        if key in self._fds or len(self._fds) >= self._room:
            return
        try:
            fd = os.pidfd_open(key.pid)
        except (AttributeError, OSError):
            return
        if not is_it():
            os.close(fd)
            return
        self._fds[key] = fd
        self._poll.register(fd, select.POLLIN)

    def any_ended(self) -> bool:
        """Whether any process that is watched has ended."""
        return bool(self._fds) and bool(self._poll.poll(0))

    def drop_all_but(self, keys: Container[ProcessKey]) -> None:
        """Watch these alone from now on."""
        for key in [key for key in self._fds if key not in keys]:
            fd = self._fds.pop(key)
            self._poll.unregister(fd)
            os.close(fd)


def _close(fds: dict[ProcessKey, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])
