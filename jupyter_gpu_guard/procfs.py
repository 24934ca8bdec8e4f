"""What /proc tells of one process.

Each method reads one file and says None or Unknown where the process has vanished or may not be read. Doesn't cover
which processes are read when (processes).

`environ` and `maps` take a lock of the process that they are read from and can hang with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from .core.model import ByteReading, Unknown
from .core.reasons import because

MARKER = b"JUPYTER_GPU_GUARD_KERNEL_ID="

#: Files that only a process with a GPU has open.
GPU_FILES = ("/dev/nvidia*",)
#: Every CUDA program maps the driver's own library, whatever the device files are called (Jetson, WSL).
_LIBCUDA = b"/libcuda.so"

#: The first pid namespace of a machine has this inode.
_FIRST_NAMESPACE = "pid:[4026531836]"

_TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter."""

    name: str
    state: str
    parent_pid: int
    session: int
    own_seconds: float
    reaped_seconds: float  # of children that ended and were waited for, with what those had reaped
    start_ticks: int


def parse_stat(data: bytes) -> Stat:
    """Read /proc/PID/stat. The name stands in parentheses and may itself hold parentheses and blanks."""
    opening, closing = data.index(b"("), data.rindex(b")")
    fields = data[closing + 2 :].split(None, 20)
    return Stat(
        name=data[opening + 1 : closing].decode(errors="replace"),
        state=fields[0].decode(),
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        own_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        reaped_seconds=(int(fields[13]) + int(fields[14])) / _TICKS,
        start_ticks=int(fields[19]),
    )


class ProcFiles:
    """Reads the files of one process below `root`; None or Unknown where it is gone or may not be read."""

    def __init__(self, root: Path, gpu_files: Sequence[str]) -> None:
        self._root = str(root)
        # Nothing matches no pattern.
        self._is_gpu_file = re.compile("|".join(map(translate, gpu_files)) or r"(?!)").match

    def _read_record(self, pid: int | str, name: str) -> bytes | None:
        """A file that holds one record: the kernel gives it whole, so there is no need to look for its end."""
        try:
            fd = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, 16384)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _read(self, pid: int | str, name: str) -> bytes | None:
        # Plain calls: a path and a file object for each take longer than the kernel takes to answer.
        try:
            fd = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            parts = []
            while part := os.read(fd, 65536):
                parts.append(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(fd)

    def pids(self) -> Iterator[int]:
        return (int(entry) for entry in os.listdir(self._root) if entry.isdigit())

    def stat(self, pid: int | str) -> Stat | None:
        data = self.stat_line(pid)
        return parse_stat(data) if data else None

    def stat_line(self, pid: int | str) -> bytes | None:
        """What `stat` is read from: equal lines say the same of a process."""
        return self._read_record(pid, "stat")

    def uid(self, pid: int) -> int | None:
        """The effective user. It owns the folder, also of a process that may not be traced, whose files are root's.
        To read `status` for it takes five times as long."""
        try:
            return os.stat(f"{self._root}/{pid}").st_uid
        except OSError:
            return None

    def cgroup(self, pid: int | str) -> str:
        return (self._read(pid, "cgroup") or b"").decode(errors="replace").strip()

    def marker(self, pid: int) -> str | None:
        for entry in (self._read(pid, "environ") or b"").split(b"\0"):
            if entry.startswith(MARKER):
                return entry[len(MARKER) :].decode(errors="replace")
        return None

    def io_bytes(self, pid: int) -> ByteReading:
        """What went through read and write calls.

        Not read_bytes and write_bytes, which leave out the page cache and network file systems. Kernels exchange
        their messages by send and recv, which rchar and wchar leave out, so a chatting kernel moves nothing here;
        neither does a download that is never written to disk, but that takes CPU.
        """
        data = self._read_record(pid, "io")
        if not data:
            return Unknown(because("proc_unreadable", pid=pid))
        values = data.split(None, 4)  # rchar: N wchar: N ...
        return int(values[1]) + int(values[3])

    def opens_gpu(self, pid: int) -> bool | Unknown:
        """Whether the process has a GPU's file open or maps libcuda."""
        opened = self.gpu_descriptor(pid)
        if isinstance(opened, Unknown):
            return opened
        return self.maps_libcuda(pid) if opened is None else True

    def gpu_descriptor(self, pid: int, last: str | None = None) -> str | Unknown | None:
        """The number of a descriptor by which the process has a GPU's file open; None without one. `last`: the one to
        try first, since a process at work may have thousands."""
        try:
            folder = os.open(f"{self._root}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return Unknown(because("proc_unreadable", pid=pid))
        try:
            if last is not None and self._links_to_gpu(last, folder):
                return last
            return next((entry for entry in os.listdir(folder) if self._links_to_gpu(entry, folder)), None)
        except OSError:
            return Unknown(because("proc_unreadable", pid=pid))
        finally:
            os.close(folder)

    def _links_to_gpu(self, entry: str, folder: int) -> bool:
        try:
            return self._is_gpu_file(os.readlink(entry, dir_fd=folder)) is not None
        except OSError:
            return False

    def maps_libcuda(self, pid: int) -> bool | Unknown:
        """Whether the process maps libcuda. The kernel writes out every mapping for that: thousands in some."""
        maps = self._read(pid, "maps")
        return Unknown(because("proc_unreadable", pid=pid)) if maps is None else _LIBCUDA in maps

    def mapped_pages(self, pid: int) -> int | None:
        """How many pages all mappings of the process have together; None where that can't be read."""
        data = self._read_record(pid, "statm")
        return int(data.split(None, 1)[0]) if data else None

    def in_first_namespace(self) -> bool:
        try:
            return os.readlink(f"{self._root}/self/ns/pid") == _FIRST_NAMESPACE
        except OSError:
            return False
