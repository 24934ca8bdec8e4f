"""The driver: whether it can be read, what it can't tell, and whether its process numbers mean something here.

Covers one reading, as the server would take it. Doesn't cover devices and /proc (machine) nor what a running server
makes of its readings (servers).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from ..core.judgement import BY_NATURE
from ..core.model import Gpu, Instant, Sample, TelemetryState, Unknown
from ..core.reasons import because
from ..nvml import NvmlReader, gpu_present
from ..worker import Hung, Worker
from .finding import Finding, fail, ok, warn

#: Seconds that the driver gets; a server waits as long.
PATIENCE = 5.0

_RELOADED = (
    "Restart the container, or the server if there is none: its devices went away with the driver that was there "
    "when it started."
)
REMEDIES = {
    "library_not_found": "Install the NVIDIA driver, or pass it into the container (docker run --gpus all; a request "
    "for nvidia.com/gpu in Kubernetes).",
    "driver_not_loaded": "Load the driver's module (modprobe nvidia, as root) and read in dmesg why it was not.",
    "version_mismatch": "Restart the machine: the driver was upgraded while the old one was in use.",
    "no_permission": "Give the server's user access to /dev/nvidia*, and run without a sandbox that forbids it.",
    "uninitialized": _RELOADED,
    "gpu_lost": "Restart the machine, and look for Xid messages in dmesg: a card has fallen off the bus.",
    "reset_required": "Reset the card while nobody uses it: nvidia-smi --gpu-reset, as root.",
    "function_not_found": "Update the NVIDIA driver.",
    "corrupt_process_list": "Update the NVIDIA driver: this version damages its own lists.",
    "driver_timeout": "Look for Xid messages in dmesg; a driver that hangs needs a restart of the machine.",
    "pynvml_unusable": "Uninstall every package that brings a module pynvml, then install nvidia-ml-py again.",
    "mig_no_utilization": "Set unknown_policy to other-signals for these kernels, or leave them alone: a MIG device "
    "does not tell its use.",
    "not_supported": "Set unknown_policy to other-signals for these kernels, or leave them alone: this card does not "
    "tell which processes use it (none does under WSL).",
    "no_gpu": "Nothing to do, if there should be none; to try the guard, start the server with "
    "--GpuGuard.gpu_source=simulated.",
    "gpu_disabled": "Set GpuGuard.gpu_source to auto to have the GPUs read.",
}
OTHERWISE = "Run nvidia-smi on the same machine, in the same container; what it says is what the driver says."


def take_reading(source: str) -> Sample:
    """One reading as a server with that gpu_source would take it. A driver that hangs gives a stale sample."""
    now = Instant(time.monotonic(), datetime.now(timezone.utc))
    if source == "none" or (source == "auto" and not gpu_present()):
        reason = because("gpu_disabled" if source == "none" else "no_gpu")
        return Sample(now, "none", TelemetryState.NONE, reason=reason)
    if source == "simulated":
        return Sample(now, "simulated", TelemetryState.OK, last_success=now)
    try:
        return asyncio.run(_read())
    except Hung as hung:
        reason = because("driver_timeout", seconds=round(hung.seconds, 1))
        return Sample(now, "nvml", TelemetryState.STALE, reason=reason)


async def _read() -> Sample:
    reader = NvmlReader()

    def once() -> Sample:
        try:
            return reader.read()
        finally:
            reader.close()

    worker = Worker("gpu-guard-doctor")
    try:
        return await worker.call(once, PATIENCE)
    finally:
        worker.stop()


def driver(sample: Sample) -> Iterator[Finding]:
    """Whether the driver could be read, and each card that could not be."""
    name = "driver"
    if sample.state is TelemetryState.OK:
        what = "simulated GPUs" if sample.source == "simulated" else f"NVIDIA driver {sample.driver_version}"
        cards = f", {len(sample.gpus)} GPU{'s' if len(sample.gpus) != 1 else ''}" if sample.gpus else ""
        yield ok(name, what + cards)
        for gpu in sample.gpus:
            yield from _card(gpu)
        return
    code = "" if sample.reason is None else sample.reason.code
    found = "no reading" if sample.reason is None else sample.reason.text
    if code == "suspended":
        yield ok(name, found, "Nothing to do: a card is read once a kernel has it open.")
    elif sample.state is TelemetryState.NONE:
        yield warn(name, found, REMEDIES.get(code, OTHERWISE))
    else:
        yield fail(name, found, REMEDIES.get(code, OTHERWISE))


def _card(gpu: Gpu) -> Iterator[Finding]:
    """A card whose processes can't be listed judges nobody; one that hides their use judges few."""
    name = f"GPU {gpu.index}"
    if isinstance(gpu.processes, Unknown):
        reason = gpu.processes.reason
        level = warn if reason.code in BY_NATURE else fail
        yield level(
            name, f"its processes cannot be listed: {reason.text}", REMEDIES.get(reason.code, OTHERWISE)
        )
        return
    hidden = [p.sm_ratio.reason for p in gpu.processes if isinstance(p.sm_ratio, Unknown)]
    if gpu.mig and not hidden:
        hidden = [because("mig_no_utilization")]
    if hidden:
        found = f"the use of its processes cannot be read: {hidden[0].text}"
        yield warn(name, found, REMEDIES.get(hidden[0].code, OTHERWISE))


def is_here(pid: int) -> bool:
    """Whether a process has that number in our namespace."""
    return os.path.exists(f"/proc/{pid}")


def pid_namespace(sample: Sample, first: bool, here: Callable[[int], bool]) -> Finding:
    """Whether the pids that the driver names can be matched to processes. `first`: we run in the machine's first pid
    namespace; `here`: whether a process of that number is visible."""
    name = "process numbers"
    if first:
        return ok(name, "this is the machine's own pid namespace")
    listed = {p.pid for g in sample.gpus if not isinstance(g.processes, Unknown) for p in g.processes}
    stray = {pid for g in sample.gpus for pid, _ in g.stray_samples}
    foreign = {pid for pid in listed | stray if not here(pid)}
    if foreign:
        found = f"the driver names {len(foreign)} of {len(listed | stray)} processes that are not to be seen from here"
        remedy = (
            "Run the server with the host's pids (docker run --pid=host; hostPID in Kubernetes), or with driver 570 or "
            "newer; if the processes are those of other containers, give each its own GPU."
        )
        return fail(name, found, remedy)
    if listed:
        return ok(
            name, f"all {len(listed)} processes that the driver names are to be seen from this pid namespace"
        )
    if sample.source != "nvml":
        return ok(name, "a pid namespace of its own, and no driver to compare with")
    remedy = "Run this again while a kernel uses the GPU: only then can the driver's numbers be compared."
    return warn(name, "a pid namespace of its own, and no process on a GPU to compare with", remedy)
