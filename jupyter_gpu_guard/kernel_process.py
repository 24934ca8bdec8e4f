"""The process behind a kernel manager, and whether it still is the one that was launched.

Covers kernels that a local provisioner started. Not here: the tree below it, which processes.py reads.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from .core.model import ProcessKey


def behind_gateway(km: Any) -> bool:
    """Whether Jupyter reaches the kernel through a gateway: it then has no ports and no process here."""
    return hasattr(km, "kernel_url") or hasattr(km, "kernels_url")


def runs_elsewhere(km: Any) -> bool:
    """Whether the kernel runs where local telemetry cannot see it: behind a gateway, or by another provisioner."""
    provisioner = getattr(km, "provisioner", None)
    if behind_gateway(km):
        return True
    return provisioner is not None and not isinstance(provisioner, LocalProvisioner)


def process_of(km: Any) -> ProcessKey | None:
    """The live process that a local provisioner started; None for a zombie, a dead one, or none known.

    From /proc/PID/stat: state is field 3, start time field 22. Reading it takes no lock of the process' memory, so it
    cannot hang as cmdline and environ can.
    """
    provisioner = getattr(km, "provisioner", None)
    pid = provisioner.pid if isinstance(provisioner, LocalProvisioner) else None
    if pid is None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in "ZX" else ProcessKey(pid, int(fields[19]))


def age_seconds(process: ProcessKey) -> float:
    """Seconds since the process began."""
    begun = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun)
