"""Real Jupyter servers for the benchmarks: with the guard and without, on the stand-in driver.

Covers starting them, kernels that hold a GPU, and reading a process's use from /proc.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.live import LiveServer
from tests.standin.driver import StandInDriver, kernel_code

ROOT = Path(__file__).parents[1]
STATUS = "/gpu-guard/api/v1/status"


def server(
    folder: Path, driver: StandInDriver, *options: str, guard: bool = True, app: str = "jupyter_server"
) -> LiveServer:
    """A server that isn't started yet. It takes compiled modules from a folder beside its own: compiling at the start,
    as where nothing was compiled at installation, would be counted as memory of whoever imports most."""
    folder.mkdir()
    if guard:
        options = (*options, "GpuGuard.gpu_source=nvml")
    else:
        options = (*options, "ServerApp.jpserver_extensions=jupyter_gpu_guard=False")
    env = {**driver.env(), "PYTHONPATH": str(ROOT), **compiled(folder.parent)}
    return LiveServer(folder, *options, app=app, env=env)


def compiled(folder: Path) -> dict[str, str]:
    """The variables by which Python keeps compiled modules in a folder, after those that matter are there."""
    env = {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    if not (folder / "compiled").exists():
        code = "import jupyterlab.labapp, notebook.app, pynvml, jupyter_gpu_guard.app"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, cwd=ROOT, check=True)
    return env


def start_kernels(started: LiveServer, number: int, gpus: int) -> None:
    """Kernels that hold GPU memory and do nothing."""
    for n in range(number):
        kernel_id = started.start_kernel()
        started.run(kernel_id, kernel_code(f"gpu = Context(gpu={n % gpus}, memory=1 << 30)"), timeout=120)


@contextmanager
def connection(to: LiveServer) -> Iterator[http.client.HTTPConnection]:
    """A connection that stays open, as a browser keeps it."""
    opened = http.client.HTTPConnection("127.0.0.1", to.port, timeout=60)
    try:
        yield opened
    finally:
        opened.close()


def latency(to: LiveServer, over: http.client.HTTPConnection, path: str) -> float:
    """How long one GET takes, in milliseconds."""
    began = time.perf_counter()
    over.request("GET", path, headers={"Authorization": f"token {to.token}"})
    answer = over.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}")
    return 1e3 * (time.perf_counter() - began)


def cpu_seconds(pid: int) -> float:
    """What a process has used, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """What a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")
