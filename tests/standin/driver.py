"""Build, script and load the stand-in NVIDIA driver library.

Covers: compiling `libnvidia-ml.so.1`, writing its state file, reading its call counters, loading it into this process.
Doesn't cover: real processes that pose as GPU processes, which is `context.py`; the format of the state file, which is
in README.md. Memory is in bytes, power in milliwatts, use in percent, time in seconds, as NVML has them.
"""

from __future__ import annotations

import ctypes
import fnmatch
import hashlib
import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pynvml

SOURCES = Path(__file__).parent
CONTEXT_FILE = SOURCES / "context.py"
SONAME = "libnvidia-ml.so.1"
GIB = 1 << 30

# A number, a series such as "97@0,0@60", or None for "not supported".
Value: TypeAlias = int | str | None

_HANG_SECONDS = 86400.0
_RECORD = struct.Struct("56sQ")
_HEADER = struct.Struct("8sQqQ32x")


def build(directory: Path, old: bool = False) -> Path:
    """Compile the library into a folder under `directory`, unless these very sources were compiled there before.

    `old` leaves out the symbols that a driver older than 510 lacks. Returns the path of the library.
    Raises subprocess.CalledProcessError if gcc fails.
    """
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h", ".map"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = directory / f"{digest}-{'old' if old else 'new'}"
    library = folder / SONAME
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags.append(f"-Wl,-soname,{SONAME}")
    if old:
        flags.append(f"-Wl,--version-script={SOURCES / 'old_driver.map'}")
    # Several test processes may build at once: each compiles its own file, the last one to finish replaces it.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / SONAME
        files = [str(path) for path in sources if path.suffix == ".c"]
        subprocess.run(["gcc", *flags, "-o", str(target), *files, "-lpthread", "-lm"], check=True)
        target.replace(library)
    return library


def kernel_code(expression: str) -> str:
    """Code for a kernel or `python -c` that makes `Context` available, then runs `expression`."""
    return (
        "import importlib.util as _u\n"
        f"_s = _u.spec_from_file_location('standin_context', {str(CONTEXT_FILE)!r})\n"
        "_m = _u.module_from_spec(_s); _s.loader.exec_module(_m); Context = _m.Context\n"
        f"{expression}\n"
    )


@dataclass(frozen=True)
class Counters:
    """What all processes together have called since the last reset."""

    by_function: Mapping[str, int]
    held_inits: int
    """Successful inits less successful shutdowns; a process that ended without shutting down still counts."""
    shutdowns_while_inside: int
    """How often NVML was shut down while a call was inside, where the real library crashes."""


class StandInDriver:
    """A driver whose GPUs, processes and failures a test sets; each change is in force at the next call.

    Lives in `directory`, which holds the state file, the process table and the call counters.
    """

    def __init__(self, directory: Path, library: Path, gpus: int = 2) -> None:
        self.directory = directory
        self.library = library
        self.origin = time.time()
        self._gpus: dict[int, dict[str, Value]] = {}
        self._migs: dict[tuple[int, int], dict[str, Value]] = {}
        self._processes: dict[tuple[int, int, str], dict[str, Value]] = {}
        self._samples: list[dict[str, Value]] = []
        self._rules: dict[int, str] = {}
        self._driver: dict[str, Value] = {"version": "570.86.15", "nvml": "12.570.86.15", "cuda": 12080}
        self._pid_offsets: dict[str, Value] = {}
        self._frozen_at: float | None = None
        self._next_rule = 0
        self._batches = 0
        directory.mkdir(parents=True, exist_ok=True)
        with self.batch():
            for index in range(gpus):
                self.add_gpu(index)

    @property
    def state_file(self) -> Path:
        return self.directory / "state"

    @property
    def table_file(self) -> Path:
        return self.directory / "table"

    @property
    def calls_file(self) -> Path:
        return self.directory / "calls"

    def env(self) -> dict[str, str]:
        """The variables that make a new process, and its children, load this driver."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(dict.fromkeys(path for path in ":".join(paths).split(":") if path)),
            "NVML_STANDIN_STATE": str(self.state_file),
            "NVML_STANDIN_TABLE": str(self.table_file),
            "NVML_STANDIN_CALLS": str(self.calls_file),
        }

    # GPUs and MIG devices

    def add_gpu(self, index: int, **settings: Value) -> None:
        """A GPU of 80 GiB with a board of 700 W, changed by `settings` (the keys of a `gpu` line)."""
        defaults: dict[str, Value] = {
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": f"GPU-5aaad1{index:02d}-0000-4000-8000-0000000000{index:02d}",
            "pci": f"00000000:{0x18 + index:02X}:00.0",
            "serial": f"16500230000{index:02d}",
            "memory_total": 80 * GIB,
            "memory_reserved": 512 << 20,
            "memory_base": 0,
            "power": 90_000,
            "power_limit": 700_000,
            "temperature": 34,
            "fan": None,
            "energy": None,
            "clock": 1980,
            "performance_state": 0,
        }
        self._gpus[index] = {**defaults, **settings}
        self._write()

    def set_gpu(self, index: int, **settings: Value) -> None:
        self._gpus[index].update(settings)
        self._write()

    def remove_gpu(self, index: int) -> None:
        """The GPU is gone; handles to it, and its index while a higher one exists, answer "GPU is lost"."""
        del self._gpus[index]
        self._write()

    def add_mig(
        self, gpu: int, index: int, gi: int, ci: int = 0, memory: int = 10 * GIB, slices: int = 1
    ) -> str:
        """Put the GPU into MIG mode and give it a MIG device; returns the UUID of that."""
        uuid = f"MIG-5aaad1{gpu:02d}-0000-4000-8000-0000000001{index:02d}"
        self._gpus[gpu]["mig"] = 1
        self._migs[gpu, index] = {"gi": gi, "ci": ci, "memory": memory, "slices": slices, "uuid": uuid}
        self._write()
        return uuid

    def remove_mig(self, gpu: int, index: int) -> None:
        del self._migs[gpu, index]
        self._write()

    # Processes that are only told of: pids of other namespaces, other users, the past

    def add_process(self, pid: int, gpu: int = 0, kind: str = "C", **settings: Value) -> None:
        """A row of the process list: memory, sm, mem, enc, dec, gi, ci, sample_pid (the pid in the samples)."""
        self._processes[pid, gpu, kind] = {"memory": 0, **settings}
        self._write()

    def remove_process(self, pid: int) -> None:
        """Take the process off all GPUs."""
        self._processes = {key: value for key, value in self._processes.items() if key[0] != pid}
        self._write()

    def add_sample(self, pid: int, gpu: int = 0, **settings: Value) -> None:
        """A utilisation sample of any content, of a pid in no list if need be; `at` sets its time stamp."""
        self._samples.append({"pid": pid, "gpu": gpu, **settings})
        self._write()

    def clear_samples(self) -> None:
        self._samples.clear()
        self._write()

    def shift_pids(self, listed: int = 0, samples: int = 0) -> None:
        """Report real processes under other pids, as a driver does that counts them in another namespace."""
        self._pid_offsets = {"list": listed, "samples": samples}
        self._write()

    def set_versions(self, **settings: Value) -> None:
        """`version`, `nvml` (texts), `cuda` (12080 = 12.8)."""
        self._driver.update(settings)
        self._write()

    # The clock

    def freeze(self, at: float = 0.0) -> None:
        """Stop the driver's clock `at` seconds after the origin of all series."""
        self._frozen_at = at
        self._write()

    def advance(self, seconds: float) -> None:
        """Move the frozen clock; raises RuntimeError where it isn't frozen."""
        if self._frozen_at is None:
            raise RuntimeError("the stand-in's clock is not frozen")
        self.freeze(self._frozen_at + seconds)

    def thaw(self) -> None:
        self._frozen_at = None
        self._write()

    # Rules

    def fail(
        self, fn: str, code: int, gpu: int | None = None, after: int | None = None, count: int | None = None
    ) -> int:
        """Calls whose name matches `fn` (with or without its version suffix) return `code`.

        Only for GPU `gpu` if given; not before the call number `after`; at most `count` times. Each process counts
        for itself. Returns a number for remove_rule().
        """
        return self._add_rule(f"fail fn={fn} code={code}", gpu, after, count)

    def delay(
        self,
        fn: str,
        seconds: float,
        gpu: int | None = None,
        after: int | None = None,
        count: int | None = None,
    ) -> int:
        """Calls that match take `seconds` longer, or until the rule is removed."""
        return self._add_rule(f"delay fn={fn} us={round(seconds * 1e6)}", gpu, after, count)

    def hang(
        self, fn: str, gpu: int | None = None, after: int | None = None, count: int | None = None
    ) -> int:
        """Calls that match don't return until the rule is removed."""
        return self.delay(fn, _HANG_SECONDS, gpu, after, count)

    def remove_rule(self, rule: int) -> None:
        del self._rules[rule]
        self._write()

    def clear_rules(self) -> None:
        self._rules.clear()
        self._write()

    def _add_rule(self, line: str, gpu: int | None, after: int | None, count: int | None) -> int:
        self._next_rule += 1
        bounds = {"id": self._next_rule, "gpu": gpu, "after": after, "count": count}
        self._rules[self._next_rule] = f"{line} " + _pairs({k: v for k, v in bounds.items() if v is not None})
        self._write()
        return self._next_rule

    # Call counters

    def counters(self) -> Counters:
        """All counters; zeros while no process has initialised the driver."""
        data = self.calls_file.read_bytes() if self.calls_file.exists() else b""
        if len(data) < _HEADER.size:
            return Counters({}, 0, 0)
        _, functions, held, shutdowns = _HEADER.unpack_from(data)
        records = [_RECORD.unpack_from(data, _HEADER.size + i * _RECORD.size) for i in range(functions)]
        return Counters({name.rstrip(b"\0").decode(): n for name, n in records if n}, held, shutdowns)

    def calls(self, name: str | None = None) -> int:
        """How many calls any process has made: all, or those whose name, with or without version, matches."""
        return sum(n for fn, n in self.counters().by_function.items() if name is None or _matches(name, fn))

    @property
    def held_inits(self) -> int:
        return self.counters().held_inits

    def reset_calls(self) -> None:
        """Set the counts of calls to 0; held_inits stays what it is."""
        if not self.calls_file.exists():
            return
        functions = _HEADER.unpack_from(self.calls_file.read_bytes())[1]
        with self.calls_file.open("r+b", buffering=0) as file:
            for i in range(functions):
                os.pwrite(file.fileno(), bytes(8), _HEADER.size + i * _RECORD.size + 56)
            os.pwrite(file.fileno(), bytes(8), 24)

    # Loading and writing

    @contextmanager
    def load_in_process(self) -> Iterator[ctypes.CDLL]:
        """Make nvidia-ml-py in this process use this driver; the variables of env() have to be set already.

        At the end nvidia-ml-py is as if it had never been initialised. The library itself can't be unloaded: a later
        `nvmlInit` without another load_in_process() may find it again by its name.
        """
        library = ctypes.CDLL(str(self.library))
        _point_pynvml_at(library)
        try:
            yield library
        finally:
            self.clear_rules()  # releases calls that hang
            while library.nvmlShutdown() == pynvml.NVML_SUCCESS:
                pass
            _point_pynvml_at(None)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Put several changes in force at once."""
        self._batches += 1
        try:
            yield
        finally:
            self._batches -= 1
            self._write()

    def _lines(self) -> Iterator[str]:
        yield f"origin {self.origin:.6f}"
        if self._frozen_at is not None:
            yield f"now {self._frozen_at:.6f}"
        yield "driver " + _pairs(self._driver)
        if self._pid_offsets:
            yield "pids " + _pairs(self._pid_offsets)
        for index, gpu in self._gpus.items():
            yield "gpu " + _pairs({"index": index, **gpu})
        for (index, mig_index), mig in self._migs.items():
            yield "mig " + _pairs({"gpu": index, "index": mig_index, **mig})
        for (pid, index, kind), process in self._processes.items():
            yield "process " + _pairs({"gpu": index, "pid": pid, "type": kind, **process})
        for sample in self._samples:
            yield "sample " + _pairs(sample)
        yield from self._rules.values()

    def _write(self) -> None:
        """Replace the state file in one step, so that the library never sees half of it."""
        if self._batches:
            return
        fresh = self.directory / "state.new"
        fresh.write_text("\n".join(self._lines()) + "\n")
        fresh.replace(self.state_file)


def _pairs(settings: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={_text(value)}" for key, value in settings.items())


def _text(value: Value) -> str:
    if value is None:
        return "ns"
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


def _matches(pattern: str, function: str) -> bool:
    return fnmatch.fnmatchcase(function, pattern) or fnmatch.fnmatchcase(
        re.sub(r"_v\d$", "", function), pattern
    )


def _point_pynvml_at(library: ctypes.CDLL | None) -> None:
    """nvidia-ml-py keeps the library, its own count of inits and each function it has looked up."""
    module: Any = pynvml
    with module.libLoadLock:
        module.nvmlLib = library
        module._nvmlLib_refcount = 0
        module._nvmlGetFunctionPointer_cache.clear()
