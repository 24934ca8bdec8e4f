"""What the guard needs of the machine: its own processes in /proc, the devices, folders that it can write to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.model import Unknown
from ..history_file import MEMORY, on_local_disk
from ..procfs import GPU_FILES, MARKER, ProcFiles
from .finding import Finding, fail, ok, warn


def processes(proc: Path = Path("/proc")) -> Finding:
    """Whether a child of ours shows in /proc all that is read of kernels."""
    name = "/proc"
    environment = {**os.environ, MARKER.decode().rstrip("="): name}
    # It says when it runs: before that its environment may not be there to read.
    code, pipe = "print(flush=True); input()", subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=pipe, stdout=pipe, env=environment)
    files, pid = ProcFiles(proc, GPU_FILES), child.pid
    try:
        assert child.stdout is not None
        child.stdout.readline()
        readable = {
            "parents and CPU time (stat)": files.stat(pid) is not None,
            "owners (status)": files.uid(pid) is not None,
            "disk use (io)": not isinstance(files.io_bytes(pid), Unknown),
            "open GPUs (fd, maps)": not isinstance(files.opens_gpu(pid), Unknown),
            "the marks of detached children (environ)": files.marker(pid) == name,
        }
    finally:
        child.communicate(b"\n")
    missing = [what for what, known in readable.items() if not known]
    if not missing:
        return ok(name, "the processes of this user can be looked at")
    remedy = (
        "Mount a full /proc and start the server without setuid; a sandbox such as gVisor, or a Linux without task "
        "accounting, lacks some of it, and without it kernels are not judged."
    )
    return fail(name, f"cannot be read of a process of our own: {', '.join(missing)}", remedy)


def devices(dev: Path = Path("/dev")) -> Finding:
    """Whether the NVIDIA devices can be opened."""
    name = "GPU devices"
    nodes = sorted([*dev.glob("nvidia[0-9]*"), *dev.glob("nvidiactl"), *dev.glob("nvidia-uvm")])
    if not nodes:
        return ok(
            name, f"no {dev}/nvidia*", "Nothing to do, if there is no GPU; else pass it into the container."
        )
    errors = [f"{node} ({error})" for node in nodes if (error := _opening(node))]
    if not errors:
        return ok(name, f"{len(nodes)} device files can be opened")
    remedy = (
        "Give the server's user read and write access to them (group video or a udev rule), and in a container allow "
        "the devices in its cgroup."
    )
    return fail(name, f"cannot be opened: {', '.join(errors)}", remedy)


def _opening(node: Path) -> str:
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def history(path: Path | None) -> Finding:
    """Whether the history can be written, and safely. None: it is kept in memory."""
    name = "history"
    if path is None or str(path) == MEMORY:
        return warn(
            name,
            "kept in memory only",
            "Set GpuGuard.history_path to a file, so that it outlives the server.",
        )
    error = unwritable(path.parent)
    if error:
        remedy = (
            "Set GpuGuard.history_path to a place that can be written to: until then nothing is shut down."
        )
        return fail(name, f"{path} cannot be written: {error}", remedy)
    if not on_local_disk(path):
        remedy = (
            "Set GpuGuard.history_path to a local disk: on a network file system it is slower and may block."
        )
        return warn(name, f"{path} is not on a disk that is known to be local", remedy)
    return ok(name, f"{path} can be written, on a local disk")


def recovery(folders: Sequence[str], roots: Sequence[str]) -> Iterator[Finding]:
    """Whether recovery copies find a place. `roots`: the folders that running servers show; relative places lie there
    beside the notebooks."""
    name = "recovery copies"
    good, bad = [], []
    for folder in folders:
        for root in [""] if os.path.isabs(folder) else roots:
            place = Path(root, folder)
            error = unwritable(place)
            if error:
                bad.append(f"{place}: {error}")
            else:
                good.append(str(place))
    if bad:
        remedy = (
            "Make it writable, or change GpuGuard.recovery_dir: what cannot be saved elsewhere is kept there."
        )
        level = warn if good else fail
        yield level(name, f"cannot be written: {'; '.join(bad)}", remedy)
    if good:
        yield ok(name, f"can be written: {', '.join(good)}")


def unwritable(folder: Path) -> str:
    """Why nothing can be written in `folder`, or where it is to be made; empty when it can. Leaves nothing behind."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return error.strerror or str(error)
