"""Single calls to the NVIDIA driver through nvidia-ml-py: which version of a call, how often, what the answer means.

Covers loading the Python module, the return codes, calls that changed with the driver, and answers that can't be true.
Doesn't cover which calls make up a reading of a card (nvml_card) nor when the driver is asked at all (nvml).
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from .core.reasons import Reason, because


class Code(IntEnum):
    """The return codes of NVML that something here depends on."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


#: What each return code means to a person; every code that isn't here is a `driver_error` with its name.
REASONS: Mapping[int | None, str] = {
    Code.UNINITIALIZED: "uninitialized",
    Code.NOT_SUPPORTED: "not_supported",
    Code.NO_PERMISSION: "no_permission",
    Code.DRIVER_NOT_LOADED: "driver_not_loaded",
    Code.LIBRARY_NOT_FOUND: "library_not_found",
    Code.FUNCTION_NOT_FOUND: "function_not_found",
    Code.GPU_IS_LOST: "gpu_lost",
    Code.RESET_REQUIRED: "reset_required",
    Code.LIB_RM_VERSION_MISMATCH: "version_mismatch",
}

#: The process lists that a card may have.
LISTS: Mapping[str, str] = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}

#: The first call tells how many rows there are; a process that starts in between makes the array too small again.
SIZE_RETRIES = 5

# Linux gives out no pid from 2**22 on, so anything above is another field read as a pid.
_PID_LIMIT = 1 << 22
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
#: Up to so many rows, there is room for twice as many as there are.
_MOST_SPARE = 4096
# Other packages install a module of the same name; these tell nvidia-ml-py from them (nvitop#4, gpustat#153).
_NEEDED = ("NVMLError", "_nvmlGetFunctionPointer", "nvmlInit", "nvmlShutdown", "nvmlMemory_v2", "nvmlDeviceGetMigMode",
           "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that gave no value. `code`: what the driver returned; None where something else went wrong."""

    code: int | None
    reason: Reason


#: The rows of the process lists, newest version of the call first: pid, bytes, and in all but the oldest (drivers
#: before 450.66) the MIG instance.
_LIST_ROWS = (("_v3", struct.Struct("@IQII")), ("_v2", struct.Struct("@IQII")), ("", struct.Struct("@IQ")))
_SAMPLE_ROW = struct.Struct("@IQIIII")


class UseSample(NamedTuple):
    """One utilisation sample: the driver's microseconds, and percentages."""

    pid: int
    time_us: int
    sm: int
    memory: int
    encoder: int
    decoder: int


def connect() -> Nvml | Reason:
    """NVML, loaded and initialised, or why it can't be."""
    nvml = _load()
    failure = nvml if isinstance(nvml, Reason) else nvml.start()
    return nvml if failure is None else failure


def _load() -> Nvml | Reason:
    try:
        module = importlib.import_module("pynvml")
    except Exception as error:
        return because("pynvml_unusable", error=str(error))
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        found = getattr(module, "__file__", None)
        return because("pynvml_unusable", error=f"{found} is another package, without {missing[0]}")
    return Nvml(module)


class Nvml:
    """The driver's calls. None of the methods raises: each returns the value or `Failed`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._room: dict[str, int] = {}  # by call, the rows for which there is room
        self.driver_version: str | None = None

    def start(self) -> Reason | None:
        """Initialise NVML and learn the driver's version; the reason if that fails."""
        answer = self.ask("nvmlInit")
        mismatch = isinstance(answer, Failed) and answer.code == Code.LIB_RM_VERSION_MISMATCH
        if mismatch and self._reload_library():
            answer = self.ask("nvmlInit")
        if isinstance(answer, Failed):
            return answer.reason
        version = self.ask("nvmlSystemGetDriverVersion")
        self.driver_version = None if isinstance(version, Failed) else version
        return None

    def ask(self, call: str, *arguments: object, version: str = "") -> Any:
        """What `call` of nvidia-ml-py returns, or that version of it; reasons name it without."""
        function = getattr(self._module, call + version, None)
        if function is None:
            return Failed(Code.FUNCTION_NOT_FOUND, because("function_not_found", call=call))
        return self._attempt(call, function, *arguments)

    def memory(self, handle: object) -> Any:
        """`total` and `used` in bytes. The older form counts what the driver keeps for itself as used (gpustat#141)."""
        call = "nvmlDeviceGetMemoryInfo"
        answer = self.ask(call, handle, self._module.nvmlMemory_v2)
        return self.ask(call, handle) if is_missing(answer) else answer

    def temperature(self, handle: object) -> Any:
        """Of the chip, in degrees Celsius. NVIDIA drops the first form with CUDA 14; older drivers lack the other."""
        answer = self.ask("nvmlDeviceGetTemperature", handle, 0)
        return self.ask("nvmlDeviceGetTemperatureV", handle, 0) if is_missing(answer) else answer

    def listed(self, kind: str, handle: object) -> list[tuple[int, int | None]] | Failed:
        """The list `kind` of `LISTS`: a pid and its bytes of memory (None = not told) for each row."""
        call = LISTS[kind]
        rows: Any = ()
        for version, row in _LIST_ROWS:
            rows = self._attempt(call, self._list, call + version, row, handle)
            if not is_missing(rows):
                break
        if isinstance(rows, Failed):
            return rows
        # Drivers 535.43 to 535.86 have longer rows, so that every other one is read from the wrong place (nvitop#75).
        if any(not 0 < row[0] < _PID_LIMIT for row in rows):
            return Failed(None, because("corrupt_process_list", driver_version=self.driver_version))
        return [(row[0], None if row[1] == _NOT_AVAILABLE else row[1]) for row in rows]

    def samples(self, handle: object, since_us: int) -> Sequence[UseSample] | Failed:
        """The utilisation samples newer than `since_us`; none of them is an answer, and means no use."""
        call = "nvmlDeviceGetProcessUtilization"
        answer = self._attempt(call, self._samples, call, handle, since_us)
        if isinstance(answer, Failed):
            return () if answer.code == Code.NOT_FOUND else answer
        return [UseSample._make(row) for row in answer]

    def _list(self, symbol: str, row: struct.Struct, handle: object) -> list[Any]:
        function = self._module._nvmlGetFunctionPointer(symbol)
        return self._rows(symbol, row, lambda count, array: function(handle, count, array))

    def _samples(self, symbol: str, handle: object, since_us: int) -> list[Any]:
        function = self._module._nvmlGetFunctionPointer(symbol)
        since = ctypes.c_ulonglong(since_us)
        return self._rows(symbol, _SAMPLE_ROW, lambda count, array: function(handle, array, count, since))

    def _rows(self, symbol: str, row: struct.Struct, call: Callable[[Any, Any], int]) -> list[Any]:
        """What a call writes into an array, which has room for what it had to hold last time.

        nvidia-ml-py asks for the number of rows each time before it asks for the rows; but lists are the slowest
        calls there are, 2 ms and more each (MangoHud#2104), and hold the driver's lock meanwhile.
        """
        room = self._room.get(symbol, 0)
        count = ctypes.c_uint(room)
        array = ctypes.create_string_buffer(room * row.size) if room else None
        code = call(ctypes.byref(count), array)
        if code == Code.INSUFFICIENT_SIZE:
            self._room[symbol] = max(count.value, min(2 * count.value, _MOST_SPARE), 16)
        if code != Code.SUCCESS:
            raise self._module.NVMLError(code)
        return [] if array is None else list(row.iter_unpack(memoryview(array)[: count.value * row.size]))

    def _attempt(self, call: str, function: Callable[..., Any], *arguments: object) -> Any:
        for _ in range(1 + SIZE_RETRIES):
            try:
                return function(*arguments)
            except Exception as error:
                failed = self._failed(call, error)
            if failed.code != Code.INSUFFICIENT_SIZE:
                break
        return failed

    def _failed(self, call: str, error: Exception) -> Failed:
        code = error.value if isinstance(error, self._module.NVMLError) else None
        if code in REASONS:
            return Failed(code, because(REASONS[code], call=call))
        # Not str(error): for a code it doesn't know, that is one more call to the driver.
        name = type(error).__name__.removeprefix("NVMLError_")
        return Failed(
            code, because("driver_error", call=call, nvml_error=name if code is None else f"{name} ({code})")
        )

    def _reload_library(self) -> bool:
        """Load the library file that an upgrade of the driver put in the place of the loaded one; False without one.

        The old one stays in memory: it can't be told whether other code of this process is inside it.
        """
        loaded = getattr(getattr(self._module, "nvmlLib", None), "_handle", None)
        try:
            libraries = [ctypes.CDLL(str(path)) for path in _library_places()]
        except OSError:
            return False
        for library in libraries:
            if library._handle != loaded:
                self._module.nvmlLib = library
                # nvidia-ml-py keeps each function that it has looked up, and would go on calling the old ones.
                getattr(self._module, "_nvmlGetFunctionPointer_cache", {}).clear()
                return True
        return False


def is_missing(answer: object) -> bool:
    """Whether the driver lacks the function that was called."""
    return isinstance(answer, Failed) and answer.code == Code.FUNCTION_NOT_FOUND


def _library_places() -> list[Path]:
    """Where the libraries that are loaded, or what replaced them, can be found.

    Files of a driver have its version in their name, and the usual name is a link to one. By the usual name, with or
    without a folder, the loader would find the old library again.
    """
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = [Path(line.split(maxsplit=5)[5]) for line in lines if "/libnvidia-ml.so" in line]
    return [
        (folder / "libnvidia-ml.so.1").resolve() for folder in dict.fromkeys(path.parent for path in paths)
    ]
