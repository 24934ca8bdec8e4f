"""A real server on a stand-in driver, and kernels of it that use GPUs in every way that a kernel can.

Covers starting such a server, making threads, children and detached processes of its kernels use a GPU until they are
told to rest, and asking what became of a kernel. Doesn't cover plain servers (live) nor the driver itself (standin).
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.server.live import LiveServer
from tests.standin.driver import StandInDriver, kernel_code

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

_STARTING = threading.Semaphore(2)

#: Other extensions only make the start slower.
OTHERS = ("jupyterlab", "notebook", "notebook_shim", "jupyter_lsp")

#: What a load does: it uses a GPU until its halt file appears, and then goes on holding it.
WORK = """
import os, time
gpu = Context(gpu={gpu}, memory={memory}, sm={sm}, gi={gi}, ci={ci})
with open({ready!r} + ".new", "w") as file: file.write(str(os.getpid()))
os.rename({ready!r} + ".new", {ready!r})
while not os.path.exists({halt!r}): time.sleep(0.05)
gpu.set(sm=0)
time.sleep(1000)
"""

#: How a kernel starts a load, by whose process it becomes. The last two have a session of their own.
STARTERS: Mapping[str, str] = {
    "thread": "import threading\nthreading.Thread(target=exec, args=(code, {}), daemon=True).start()",
    "child": "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', code])",
    "session": (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)"
    ),
    "detached": (
        "import os, sys\n"
        "first = os.fork()\n"
        "if not first:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.execv(sys.executable, [sys.executable, '-c', code])\n"
        "os.waitpid(first, 0)"
    ),
}


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number that is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


@dataclass(frozen=True)
class Load:
    """Something that uses a GPU for a kernel. `pid` is the kernel's own for a thread."""

    pid: int
    halt: Path

    def rest(self) -> None:
        """Stop using the GPU, without a word to the kernel; go on holding its memory."""
        self.halt.touch()


class GpuServer(LiveServer):
    """`driver` is the machine's; `policies` become GpuGuard.policies."""

    def __init__(
        self,
        folder: Path,
        driver: StandInDriver,
        *options: str,
        policies: list[dict[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> None:
        super().__init__(
            folder,
            "GpuGuard.gpu_source=nvml",
            *[f"ServerApp.jpserver_extensions={name}=False" for name in OTHERS],
            *options,
            env={**driver.env(), "PYTHONPATH": str(ROOT), **(env or {})},
            config=f"c.GpuGuard.policies = {policies or []!r}\n",
            root=root,
        )
        self.driver = driver
        self._loads: list[Load] = []

    def start(self, timeout: float = 90) -> GpuServer:
        """Two at a time: more would only slow each other down."""
        with _STARTING:
            super().start(timeout)
        return self

    def end_loads(self) -> None:
        """End what outlived its kernel."""
        for load in self._loads:
            if is_alive(load.pid) and str(load.halt) in Path(f"/proc/{load.pid}/cmdline").read_text():
                os.kill(load.pid, signal.SIGKILL)

    def start_kernels(self, *notebooks: str) -> dict[str, str]:
        """A kernel for each of the notebooks, by notebook; several start at once."""
        with ThreadPoolExecutor(2) as pool:
            return dict(zip(notebooks, pool.map(self.start_kernel, notebooks), strict=True))

    # --- using GPUs ---

    def load(
        self,
        kernel_id: str,
        how: str = "thread",
        gpu: int = 0,
        sm: int = 50,
        memory: int | None = GIB,
        instance: tuple[int, int] = (0xFFFFFFFF, 0xFFFFFFFF),
    ) -> Load:
        """Let a kernel use a GPU by a `thread`, a `child`, a child with a `session` of its own, or a `detached`
        process. Returns when the GPU is in use and the cell that started it has ended."""
        name = f"load-{secrets.token_hex(4)}"  # not counted: scenes run side by side
        ready, halt = self.folder / f"{name}.ready", self.folder / f"{name}.halt"
        gi, ci = instance
        work = WORK.format(gpu=gpu, memory=memory, sm=sm, gi=gi, ci=ci, ready=str(ready), halt=str(halt))
        self.run(kernel_id, f"code = {kernel_code(work)!r}\n{STARTERS[how]}")
        self.until(ready.exists, 20, f"the load of kernel {kernel_id} does not start", step=0.02)
        load = Load(int(ready.read_text()), halt)
        self._loads.append(load)
        return load

    # --- what became of a kernel ---

    def happenings(self, kernel_id: str) -> list[dict[str, Any]]:
        """What the history has of a kernel, oldest first."""
        rows: list[dict[str, Any]] = self.guard(f"history?kernel_id={kernel_id}")["transitions"]
        return rows[::-1]

    def actions(self, kernel_id: str) -> list[str]:
        """The actions of a kernel's history, oldest first."""
        return [row["action"] for row in self.happenings(kernel_id)]

    def tombstones(self, kernel_id: str) -> list[dict[str, Any]]:
        """The tombstones of a kernel; more than one would be a mistake."""
        return [t for t in self.guard("tombstones")["tombstones"] if t["kernel_id"] == kernel_id]

    def has_kernel(self, kernel_id: str) -> bool:
        """Whether Jupyter still has this kernel. Not by the list of all: that fails while any of them is starting."""
        return self.request("GET", f"api/kernels/{kernel_id}?no_track_activity=1")[0] != 404

    def culled(self, kernel_id: str, timeout: float = 30) -> dict[str, Any]:
        """Wait until a kernel is gone from Jupyter and buried; returns its tombstone."""
        self.until(lambda: not self.has_kernel(kernel_id), timeout, f"kernel {kernel_id} is not culled")
        (found,) = self.until(lambda: self.tombstones(kernel_id), 20, f"kernel {kernel_id} is not buried")
        return found

    def reaches(self, kernel_id: str, timeout: float = 20, **wanted: Any) -> dict[str, Any]:
        """Wait until a kernel's status has these values (`reason` by its code); returns it."""

        def there() -> dict[str, Any] | None:
            kernel = self.kernel(kernel_id)
            found = {} if kernel is None else {key: _plain(kernel[key]) for key in wanted}
            return kernel if found == wanted else None

        kernel = self.until(
            there, timeout, f"kernel {kernel_id} never had {wanted}: {self.kernel(kernel_id)}"
        )
        assert kernel is not None
        return kernel

    def watch(self, seconds: float, look: Callable[[dict[str, Any]], None]) -> None:
        """Hand the status to `look` again and again for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            look(self.guard())
            time.sleep(0.25)


def _plain(value: Any) -> Any:
    return value["code"] if isinstance(value, dict) and "code" in value else value


def moment(text: str) -> float:
    """A time of the wire, in seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
