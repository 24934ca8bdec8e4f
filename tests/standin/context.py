"""Make the calling process look like a GPU process to the stand-in driver.

Covers: taking a place in the shared process table and changing what it says. Doesn't cover: loading the driver.
Needs the standard library alone and can be loaded by its path, so that it works inside any kernel or child process:

    gpu = Context(memory=2 << 30, sm=80)   # this process now uses GPU 0
    gpu.set(sm=0)                          # it still holds memory, but computes nothing
    gpu.close()                            # it is gone from the list, as if the process had ended

The place belongs to the process: it is lost when the process ends in whatever way, and a forked child doesn't have it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading

SLOTS = 1024
HEADER_BYTES = SLOT_BYTES = 64
NO_INSTANCE = 0xFFFFFFFF
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF

_SLOT = struct.Struct("@10IQ16x")
_FLOCK = struct.Struct("@hhqqi4x")
# Linux's numbers; fcntl names them from Python 3.9 on.
_F_OFD_GETLK = 36

# A descriptor of the table is never closed: closing any would drop every place this process holds in that table.
_descriptors: dict[str, int] = {}
_taking = threading.Lock()


def _open_table(path: str) -> int:
    if path not in _descriptors:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.truncate(fd, HEADER_BYTES + SLOTS * SLOT_BYTES)
        _descriptors[path] = fd
    return _descriptors[path]


def _map_libcuda(folder: str) -> mmap.mmap:
    """Map a file of CUDA's name: a real GPU process is told from a namesake by its mapped libcuda."""
    path = os.path.join(folder, "libcuda.so.1")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(fd, mmap.PAGESIZE)
        return mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def _is_taken(fd: int, slot: int) -> bool:
    """Whether any process, this one included, holds the slot (a plain F_GETLK would leave out our own locks)."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
    answer: int = _FLOCK.unpack(fcntl.fcntl(fd, _F_OFD_GETLK, query))[0]
    return answer != fcntl.F_UNLCK


def _take_slot(fd: int) -> int:
    with _taking:
        for slot in range(SLOTS):
            if _is_taken(fd, slot):
                continue
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot, os.SEEK_SET)
            except OSError:  # another process was faster
                continue
            return slot
    raise RuntimeError("the stand-in driver's process table is full")


class Context:
    """One use of one GPU by this process.

    `memory` in bytes (None = the driver doesn't tell), `sm`, `mem`, `enc` and `dec` in percent; `kind` is "C" for
    compute, "G" for graphics, "M" for a client of MPS; `gi` and `ci` name the MIG instance. `table` defaults to the
    file that the environment variable NVML_STANDIN_TABLE names.
    """

    def __init__(
        self,
        gpu: int = 0,
        memory: int | None = 0,
        sm: int = 0,
        mem: int = 0,
        enc: int = 0,
        dec: int = 0,
        kind: str = "C",
        gi: int = NO_INSTANCE,
        ci: int = NO_INSTANCE,
        table: str | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._fixed = (gpu, ord(kind), gi, ci)
        self._use = {"sm": sm, "mem": mem, "enc": enc, "dec": dec}
        self.memory = memory
        path = os.path.realpath(table or os.environ["NVML_STANDIN_TABLE"])
        self._fd = _open_table(path)
        self._slot: int | None = _take_slot(self._fd)
        self._libcuda: mmap.mmap | None = _map_libcuda(os.path.dirname(path))
        self._write(self._pid)

    def alloc(self, amount: int) -> None:
        """Take `amount` more bytes of GPU memory."""
        self.memory = (self.memory or 0) + amount
        self._write(self._pid)

    def free(self, amount: int | None = None) -> None:
        """Give `amount` bytes back; all of them without an amount."""
        self.memory = 0 if amount is None else max(0, (self.memory or 0) - amount)
        self._write(self._pid)

    def set(
        self, sm: int | None = None, mem: int | None = None, enc: int | None = None, dec: int | None = None
    ) -> None:
        """Change the percentages that are given; leave the others."""
        given = {"sm": sm, "mem": mem, "enc": enc, "dec": dec}
        self._use.update({name: value for name, value in given.items() if value is not None})
        self._write(self._pid)

    def close(self) -> None:
        """Leave the list of GPU processes. Closing twice, or in a forked child, does nothing."""
        if self._slot is None or os.getpid() != self._pid:
            return
        self._write(0)
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._slot, os.SEEK_SET)
        self._slot = None
        if self._libcuda is not None:
            self._libcuda.close()
            self._libcuda = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, pid: int) -> None:
        if self._slot is None:
            raise RuntimeError("this context is closed")
        if os.getpid() != self._pid:
            raise RuntimeError("this context belongs to the parent process")
        gpu, kind, gi, ci = self._fixed
        memory = NOT_AVAILABLE if self.memory is None else self.memory
        use = (self._use["sm"], self._use["mem"], self._use["enc"], self._use["dec"])
        record = _SLOT.pack(pid, gpu, kind, gi, ci, *use, 0, memory)
        os.pwrite(self._fd, record, HEADER_BYTES + self._slot * SLOT_BYTES)
