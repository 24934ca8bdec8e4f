"""The guard of a server that is built but not started: every part is the real one, only the kernels are a list.

Covers building it on a clock of the benchmark's own. Doesn't cover starting it: the benchmark makes the rounds itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from jupyter_server.serverapp import ServerApp

from jupyter_gpu_guard import app
from jupyter_gpu_guard.config import GpuGuard
from jupyter_gpu_guard.core.model import Instant, Kernel
from jupyter_gpu_guard.nvml import NvmlReader
from jupyter_gpu_guard.processes import ProcessReader

__all__ = ["assembly"]


@contextmanager
def assembly(
    folder: Path, kernels: tuple[Kernel, ...], clock: Callable[[], Instant]
) -> Iterator[tuple[app.Assembly, ProcessReader]]:
    """All parts of a guard with these kernels, and its reader of processes. Call it where an event loop runs."""
    processes = ProcessReader(clock=clock)
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}

    async def listed() -> tuple[Kernel, ...]:
        return kernels

    with (
        patch.dict(os.environ, {**places, "HOME": str(folder), "JUPYTER_PLATFORM_DIRS": "0"}),
        patch.multiple(
            app, instant=clock, NvmlReader=partial(NvmlReader, clock), ProcessReader=lambda **_: processes
        ),
    ):
        server = ServerApp(root_dir=str(folder), allow_root=True, log_level="WARN")
        server.initialize(argv=[], find_extensions=False, new_httpserver=False)
        for kernel in kernels:
            for notebook in kernel.notebooks:
                (folder / notebook).write_text("{}")
        built = app.Assembly(server, GpuGuard(gpu_source="nvml").settings())
        built.watch.kernels = listed  # type: ignore[method-assign]
        built.guard.observer.viewers = lambda: 1
        yield built, processes
