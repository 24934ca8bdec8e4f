"""A pretended GPU for a server that was started with `--GpuGuard.gpu_source=simulated`.

    from jupyter_gpu_guard.kernel.simulated_gpu import SimulatedGpu

    gpu = SimulatedGpu(memory="4GiB")   # this process now holds 4 GiB of simulated GPU 0
    gpu.use(0.8, seconds=30)            # and computes on it for half a minute
    gpu.close()                         # and gives it back, as the end of the process would

Covers what a process says of itself: one file for each `SimulatedGpu`, in the folder that the server named in the
environment. Computes nothing and takes no real memory. Doesn't cover how the server reads these files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import numbers
import os
import re
import threading
import time
import uuid
import weakref
from typing import Any, Iterator

ENVIRONMENT = "JUPYTER_GPU_GUARD_SIMULATED"
SUFFIX = ".gpu"
#: The cards that a server simulates: how many, and the bytes of memory of each.
GPUS = 2
CARD_BYTES = 16 << 30

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


class SimulatedGpu:
    """What this process has on one simulated GPU, until `close`, the end of a `with`, or the end of the process.

    `memory`: bytes, or text such as "4GiB"; `utilization`: the share of the GPU's time that the process takes, from 0
    to 1; `gpu`: which of the simulated GPUs, counted from 0. It belongs to the process that made it: a forked child
    has to make its own. May be used from several threads.

    Raises RuntimeError where the server has no simulated GPUs and after `close`. A wrong argument is a ValueError that
    names it, and what would be right; it changes nothing.
    """

    def __init__(self, memory: int | str = 0, utilization: float = 0.0, gpu: int = 0) -> None:
        folder = os.environ.get(ENVIRONMENT)
        if not folder:
            raise RuntimeError(
                "this server has no simulated GPU: start it with --GpuGuard.gpu_source=simulated"
            )
        self._gpu = _index(gpu)
        self._memory = _bytes(memory, CARD_BYTES, f"simulated GPU {self._gpu} has")
        self._utilization = _ratio(utilization)
        self._uses: dict[object, float] = {}
        self._published = 0.0
        self._last_use = (0.0, 0.0)  # ratio and end of the last use that is over
        self._changing = threading.Lock()
        self._file = _HeldFile(folder)
        self._give_back = weakref.finalize(self, self._file.close)
        with self._change():
            pass

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self._memory

    @property
    def utilization(self) -> float:
        """The share of the GPU's time that is taken now; set it to change what is taken between uses."""
        return self._published

    @utilization.setter
    def utilization(self, ratio: float) -> None:
        ratio = _ratio(ratio)
        with self._change():
            self._utilization = ratio

    def allocate(self, memory: int | str) -> None:
        """Hold so much more memory."""
        with self._change():
            left = CARD_BYTES - self._memory
            self._memory += _bytes(memory, left, f"are left of simulated GPU {self._gpu}")

    def free(self, memory: int | str | None = None) -> None:
        """Give so much memory back; all of it without an amount."""
        with self._change():
            self._memory -= self._memory if memory is None else _bytes(memory, self._memory, "are held")

    def use(self, utilization: float = 1.0, seconds: float = 1.0) -> None:
        """Be busy for so long, then go back to what it was before. Uses in several threads add up."""
        use, ratio, seconds = object(), _ratio(utilization), _seconds(seconds)
        try:
            with self._change():
                self._uses[use] = ratio
            time.sleep(seconds)
        finally:  # however an interrupt ended it
            if use in self._uses and self._give_back.alive:
                with self._change():
                    del self._uses[use]

    def close(self) -> None:
        """Give all of it back. A second time, or in a forked child, it does nothing."""
        with self._changing:
            self._give_back()

    def __enter__(self) -> SimulatedGpu:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Publish what the block changes."""
        self._file.check_owner()
        with self._changing:
            if not self._give_back.alive:
                raise RuntimeError("this simulated GPU was closed")
            if self._taken() > 0:
                # It may have begun and ended between two readings of the server.
                self._last_use = (self._taken(), time.monotonic())
            yield
            self._file.write(json.dumps(self._content()).encode())
            self._published = self._taken()

    def _taken(self) -> float:
        return min(1.0, self._utilization + sum(self._uses.values()))

    def _content(self) -> dict[str, float]:
        return {
            "gpu": self._gpu,
            "memory_bytes": self._memory,
            "utilization_ratio": self._taken(),
            "last_use_ratio": self._last_use[0],
            "last_use_end": self._last_use[1],
        }


class _HeldFile:
    """A file that counts for as long as this process holds a lock on it, so that no end of the process is missed.

    The lock is of the POSIX kind, which a forked child doesn't inherit. Each content is a new file, locked before it
    takes the name, so that nobody sees half of one or one without its owner. The descriptor stays open: it shows who
    has a simulated GPU open, as the descriptors of /dev/nvidia* do for real ones.
    """

    def __init__(self, folder: str) -> None:
        self._pid = os.getpid()
        self._path = os.path.join(folder, f"{self._pid}-{uuid.uuid4().hex}{SUFFIX}")
        self._descriptor = -1

    def check_owner(self) -> None:
        """Raises RuntimeError in a forked child, whose writing would speak for its parent."""
        if os.getpid() != self._pid:
            raise RuntimeError("this simulated GPU belongs to the parent process: make one in this process")

    def write(self, content: bytes) -> None:
        fresh = self._path + ".new"
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, content)
            os.replace(fresh, self._path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            raise
        before, self._descriptor = self._descriptor, descriptor
        if before >= 0:
            os.close(before)

    def close(self) -> None:
        if os.getpid() != self._pid or self._descriptor < 0:
            return
        with contextlib.suppress(FileNotFoundError):  # the server may have gone, and its folder with it
            os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = -1


def _wrong(key: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{key} = {value!r}: expected {expected}")


def _number(value: Any) -> float | None:
    """None for what is no number, a bool and nan among them."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    return None if math.isnan(number) else number


def _index(value: Any) -> int:
    number = _number(value)
    if number is None or number not in range(GPUS):
        raise _wrong("gpu", value, f"a whole number from 0 to {GPUS - 1}: there are {GPUS} simulated GPUs")
    return int(number)


def _bytes(value: Any, most: int, whose: str) -> int:
    """Bytes from a number, or from text with a unit from KB to GiB, up to `most`, which are what `whose` says."""
    amount = _number(value)
    match = re.match(
        r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$", value if isinstance(value, str) else "", re.IGNORECASE
    )
    if match is not None and match.group(2).upper() in _UNITS:
        amount = float(match.group(1)) * _UNITS[match.group(2).upper()]
    if amount is None or not 0 <= amount <= most:
        text = f"{most / (1 << 30):g} GiB" if most >= 1 << 30 else f"{most} bytes"
        right = f"bytes from 0, or a text such as '4GiB', and at most the {text} that {whose}"
        raise _wrong("memory", value, right)
    return int(amount)


def _ratio(value: Any) -> float:
    number = _number(value)
    if number is None or not 0 <= number <= 1:
        raise _wrong("utilization", value, "a share of the time, a number from 0 to 1")
    return number


def _seconds(value: Any) -> float:
    number = _number(value)
    if number is None or not 0 <= number <= threading.TIMEOUT_MAX:
        raise _wrong("seconds", value, "a number from 0")
    return number
