"""`jupyter gpu-guard doctor`: what stands in the guard's way on this machine, and the remedy for each finding.

Changes nothing, and every check has an end: the driver, a kernel's Python and a server each get a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from ..config import Settings
from ..core.policy_vain import find_vain
from ..kernel.servers import Server
from ..policies import check_file, vain_in
from ..procfs import GPU_FILES, ProcFiles
from . import gpu, jupyter, machine, servers
from .finding import Finding, Level, fail, ok, warn

__all__ = ["Finding", "Level", "examine", "misconfigured"]


def examine(settings: Settings, running: Sequence[Server]) -> Iterator[Finding]:
    """Every finding, in the order in which a person would look. `running`: the servers of this user."""
    sample = gpu.take_reading(settings.gpu_source)
    yield from gpu.driver(sample)
    first = ProcFiles(Path("/proc"), GPU_FILES).in_first_namespace()
    yield gpu.pid_namespace(sample, first, gpu.is_here)
    yield machine.processes()
    yield machine.devices()
    yield jupyter.server_extension()
    yield jupyter.lab_extension()
    yield from jupyter.kernel_halves()
    yield ok("configuration", f"mode {settings.mode.value}, gpu_source {settings.gpu_source}")
    yield from policy_file(settings)
    yield from vain(settings)
    yield machine.history(_history(settings))
    roots = [server.root_dir for server in running if server.root_dir] or ["."]
    yield from machine.recovery(settings.recovery_dir, roots)
    yield from servers.running(running)


def misconfigured(error: str) -> Finding:
    """A server with this configuration would not start."""
    return fail("configuration", error, "Correct it: a server does not start with a wrong option.")


def policy_file(settings: Settings) -> Iterator[Finding]:
    """Whether the policy file is good, by itself and together with the configuration: each mistake by itself."""
    name, path = "policy file", settings.policy_file
    if not path:
        yield ok(name, "none is set")
        return
    errors = check_file(path, settings.layers)
    for error in errors:
        if error.key == "policy_file":
            remedy = "Make it such a file, or set GpuGuard.policy_file to one"
        else:
            remedy = f"Correct {error.key} there"
        yield fail(name, str(error), f"{remedy}: a server that starts with a wrong file observes only.")
    if not errors:
        yield ok(name, f"{path} is good")


def vain(settings: Settings) -> Iterator[Finding]:
    """What is configured, in the policy file or beside it, and never has an effect."""
    now = datetime.now(timezone.utc)
    file = settings.policy_file
    for one in vain_in(file, settings.layers, now) if file else find_vain(settings.layers, now):
        yield warn("policy file" if one.in_file else "policies", str(one), one.remedy)


def _history(settings: Settings) -> Path:
    """Where the history lies; its name in Jupyter's data folder differs from server to server, the folder does not."""
    if settings.history_path is not None:
        return Path(settings.history_path)
    return Path(jupyter_data_dir()) / "gpu_guard" / "history.sqlite"
