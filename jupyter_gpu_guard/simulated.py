"""Simulated GPUs, for machines without one: the readings of `gpu_source = simulated`.

Covers the cards, which processes hold them (as those say of themselves, see kernel/simulated_gpu), and what follows
from that for each card. Doesn't cover failures: a simulated driver always answers. Everything it gives is labelled as
simulated, in the sample's `source` and in the names of the cards.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from .core.model import Gpu, GpuProcess, Instant, Sample, TelemetryState
from .core.reasons import because

#: What a process holds is a file with this ending; half-written ones have another.
SUFFIX = ".gpu"
#: A half-written file this old (seconds) was left by a process that was killed.
ABANDONED_AFTER = 60.0

# Such a file has about 150 bytes; whatever is longer is no such file.
_LONGEST_FILE = 4096
# How often a file may be replaced while it is being looked at; more often, it is taken to be gone.
_REPLACED_AT_MOST = 100
_FLOCK = struct.Struct("@hhqqi4x")


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """One card: its memory in bytes, and its power in watts when unused and when fully used."""

    name: str = "Simulated GPU"
    memory_total_bytes: int = 16 << 30
    idle_watts: float = 25.0
    full_watts: float = 250.0


@dataclass(frozen=True, slots=True)
class _Holder:
    """What one file says, and who holds it."""

    pid: int
    gpu: int
    memory_bytes: int
    ratio: float


class SimulatedReader:
    """Reads the simulated cards. `folder` is created, for this user alone, if it isn't there; kernels find it by the
    environment variable JUPYTER_GPU_GUARD_SIMULATED. Holds nothing open between readings."""

    def __init__(
        self,
        folder: Path,
        cards: Sequence[SimulatedCard] = (SimulatedCard(), SimulatedCard()),
        clock: Callable[[], Instant] = lambda: Instant(time.monotonic(), datetime.now(timezone.utc)),
    ) -> None:
        self._folder = folder
        self._cards = tuple(cards)
        self._clock = clock
        self._last: Sample | None = None

    def read(self) -> Sample:
        """One reading. Never raises: a folder that can't be read gives a sample with the state `unavailable`."""
        now = self._clock()
        since = self._last.taken.monotonic if self._last else now.monotonic
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            holders = list(self._holders(since))
        except OSError as error:
            return self._unavailable(now, error)
        gpus = tuple(self._gpu(index, holders) for index in range(len(self._cards)))
        self._last = Sample(now, "simulated", TelemetryState.OK, gpus, last_success=now)
        return self._last

    def release(self) -> None:
        """Nothing to let go of: no handle outlives a reading, and a simulated card doesn't sleep."""

    def _unavailable(self, now: Instant, error: OSError) -> Sample:
        reason = because("simulation_unreadable", error=str(error))
        gpus, seen = (self._last.gpus, self._last.taken) if self._last else ((), None)
        return Sample(now, "simulated", TelemetryState.UNAVAILABLE, gpus, reason, seen)

    def _gpu(self, index: int, holders: list[_Holder]) -> Gpu:
        card = self._cards[index]
        processes = _processes([holder for holder in holders if holder.gpu == index])
        ratio = min(1.0, sum(holder.ratio for holder in holders if holder.gpu == index))
        return Gpu(
            uuid=f"GPU-simulated-{index}",
            index=index,
            name=card.name,
            memory_total_bytes=card.memory_total_bytes,
            memory_used_bytes=sum(holder.memory_bytes for holder in holders if holder.gpu == index),
            utilization_ratio=ratio,
            power_watts=card.idle_watts + ratio * (card.full_watts - card.idle_watts),
            power_limit_watts=card.full_watts,
            temperature_celsius=35.0 + 40.0 * ratio,
            mig=False,
            processes=processes,
        )

    def _holders(self, since: float) -> Iterator[_Holder]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.endswith(SUFFIX):
                    _remove_if_abandoned(entry)
                    continue
                holder = _holder_of(entry.path, since)
                if holder is not None:
                    yield holder


def _processes(holders: list[_Holder]) -> tuple[GpuProcess, ...]:
    """A process may hold a card more than once: the driver would show that as one process."""
    processes = []
    for pid in sorted({holder.pid for holder in holders}):
        own = [holder for holder in holders if holder.pid == pid]
        ratio = min(1.0, sum(holder.ratio for holder in own))
        memory = sum(holder.memory_bytes for holder in own)
        processes.append(GpuProcess(pid, frozenset({"compute"}), memory, ratio, codec_ratio=0.0))
    return tuple(processes)


def _holder_of(path: str, since: float) -> _Holder | None:
    """Who holds the file and with what content; None for what is no such file. One that nobody holds is removed."""
    with contextlib.suppress(OSError):
        for _ in range(_REPLACED_AT_MOST):
            with _opened(path) as descriptor:
                status = os.fstat(descriptor)
                plain = stat.S_ISREG(status.st_mode) and status.st_size <= _LONGEST_FILE
                if not plain or status.st_uid != os.getuid():
                    return None
                pid = _locked_by(descriptor)
                if pid is not None:
                    return _parsed(pid, os.read(descriptor, _LONGEST_FILE), since)
                if os.stat(path).st_ino == status.st_ino:
                    os.unlink(path)
                    return None
            # Its owner replaced it after it was opened here, and held on to the new one: look at that.
    return None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    # Not through links, and without waiting for the other end of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked_by(descriptor: int) -> int | None:
    """The process that holds a lock on the file: asked of the system, as the file could name any."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else pid


def _parsed(pid: int, content: bytes, since: float) -> _Holder | None:
    """None for a content that makes no sense.

    Use that ended since the last reading counts, as it does with a driver, which keeps samples until it is asked.
    """
    try:
        said = json.loads(content)
        gpu, memory, ratio = said["gpu"], said["memory_bytes"], float(said["utilization_ratio"])
        if said["last_use_end"] > since:
            ratio = max(ratio, float(said["last_use_ratio"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(gpu) is not int or type(memory) is not int or memory < 0 or not 0 <= ratio <= 1:
        return None
    return _Holder(pid, gpu, memory, ratio)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        ours = status.st_uid == os.getuid() and entry.name.endswith(f"{SUFFIX}.new")
        if ours and time.time() - status.st_mtime > ABANDONED_AFTER:
            os.unlink(entry.path)
