"""The closed list of reason codes, each with its parameters and its English text.

The same code travels to log, event, REST, metric label and screen. Screens render code and params in the
user's language; the text here is English for logs and the command line. Params are in base units (seconds, bytes,
ratios from 0 to 1, ISO 8601 times).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Param = str | int | float | None

#: code -> English text; the fields in braces are the params that the code carries.
TEXTS: Mapping[str, str] = {
    # why a kernel counts as active
    "executing": "a cell has been running since {since}",
    "executed": "a cell ran until {at}",
    "printing": "code started by a cell printed output at {at}",
    "gpu_in_use": "its processes used the GPU: {ratio:.1%} at {at}",
    "codec_in_use": "its processes used the video encoder or decoder: {ratio:.1%} at {at}",
    "gpu_memory_changed": "its GPU memory changed at {at}",
    "cpu_in_use": "its processes used {cores:.2f} cores in the minute before {at}",
    "io_in_use": "its processes moved {bytes_per_second:.0f} bytes a second in the minute before {at}",
    "present": "somebody was at the notebook at {at}",
    "just_started": "the kernel started at {at}",
    "device_in_use_owner_unclear": "GPU {uuid} is {ratio:.1%} in use and the user may be this kernel",
    # why it counts as idle or stalled
    "idle": "unused for {seconds:.0f} s: GPU peak {ratio:.1%}",
    "idle_by_other_signals": "unused for {seconds:.0f} s by CPU, disk and messages; its GPU use cannot be read",
    "waiting_for_input": "waits for an answer in the notebook, unused for {seconds:.0f} s",
    "settling": "quiet for {seconds:.0f} s; idle after {window_seconds:.0f} s without use",
    "busy_nothing_moves": "a cell has been running since {since}, but nothing has moved for {seconds:.0f} s",
    "spinning": "the GPU is fully in use at the power of an idle card since {since}",
    # why nothing can be told
    "no_samples": "no reading of the GPU yet",
    "hole_in_samples": "no reading for {seconds:.0f} s",
    "clock_jumped": "the clock jumped by {seconds:.0f} s, or the machine slept",
    "not_measured_yet": "the first full minute is not over",
    "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver or pass it into the container",
    "driver_not_loaded": "the NVIDIA kernel driver is not loaded",
    "version_mismatch": "the NVIDIA library and the loaded driver differ in version: restart after the upgrade",
    "no_permission": "the driver refused permission ({call})",
    "not_supported": "this GPU or driver cannot tell ({call})",
    "gpu_lost": "the GPU has fallen off the bus ({call})",
    "reset_required": "the GPU needs a reset ({call})",
    "uninitialized": "the driver was reloaded or its devices were taken away; trying again",
    "function_not_found": "this driver is too old for {call}",
    "driver_error": "the driver answered {nvml_error} ({call})",
    "driver_timeout": "the driver has not answered for {seconds:.0f} s",
    "not_available": "the driver gives no value ({call})",
    "mig_no_utilization": "use cannot be read on a MIG device",
    "corrupt_process_list": "driver {driver_version} returned a damaged process list",
    "pid_namespace": "the driver names processes of another pid namespace: run with the host's pids to attribute them",
    "unmatched_gpu_process": "a process on GPU {uuid} cannot be matched to a kernel",
    "proc_unreadable": "/proc of process {pid} cannot be read",
    "remote_kernel": "the kernel runs on another machine",
    "watch_not_attached": "its messages are not watched yet",
    "kernel_pid_unknown": "the kernel's process is not known",
    "no_gpu": "there is no NVIDIA GPU on this machine",
    "gpu_disabled": "GPU readings are switched off (gpu_source = none)",
    "asleep": "no kernel has a GPU open, so the driver is left alone",
    "suspended": "every NVIDIA card sleeps to save power, and reading it would wake it",
    "pynvml_unusable": "the Python module pynvml cannot be used ({error}): reinstall nvidia-ml-py",
    "damaged_value": "the driver returned an impossible value ({call})",
    "simulation_unreadable": "the folder of the simulated GPUs cannot be read: {error}",
    # what decides the deadline, or holds it back
    "idle_timeout": "kernels that are unused for {seconds:.0f} s are shut down (idle_timeout)",
    "after_run": "after a run of {run_seconds:.0f} s it may rest for {seconds:.0f} s",
    "max_runtime": "kernels that hold a GPU for {seconds:.0f} s are shut down (max_runtime)",
    "stalled_timeout": "kernels that are stuck for {seconds:.0f} s are shut down (cull_stalled_after)",
    "warm_up": "the kernel is younger than warm_up ({seconds:.0f} s)",
    "kept": "kept until {until} by {owner}",
    "asked_by_user": "{owner} asked for it",
    "stock_culler": "Jupyter's own cull_idle_timeout ({seconds:.0f} s)",
    "observing": "observing: nothing will be shut down",
    "only_warning": "mode is warn: nothing will be shut down",
    "out_of_scope": "the kernel holds no GPU",
    "no_timeout": "idle_timeout is 0: never",
    "policy_invalid": "the policy file is wrong, so nothing is shut down: {error}",
    "policy_not_reloaded": "the policy file is wrong, so the last good one stays in force: {error}",
    "cannot_record": "the history cannot be written, so nothing is shut down: {error}",
    "save_failed": "saving {path} failed: {error}",
    "save_unanswered": "{count} open tabs did not answer",
    "survivors": "{count} processes outlived the shutdown",
    "memory_not_released": "{bytes} bytes of GPU memory are still held",
    "shutdown_failed": "the shutdown failed: {error}",
    "counted_anew": "it was in use later than was known, or the readings had a hole: counted anew from {since}",
    "warning_delivered": "the warning of {at} was sent to a page that shows it",
    "warning_seen": "the warning of {at} stood on a visible page that had the focus",
    "restarted": "the kernel was restarted",
    "server_restarted": "the server stopped while this was under way",
    # mistakes of a caller
    "unknown_kernel": "there is no kernel {kernel_id}",
    "unknown_client": "there is no client {client_id}",
    "not_allowed": "you are not signed in, or may not do this",
    "shutting_down": "it is too late: the kernel is being shut down",
    "not_extendable": "an extension does not move this deadline (max_runtime)",
    "old_nonce": "this save request is no longer open",
    "bad_request": "{key}: {error}",
    "bad_metadata": "the notebook's metadata counts as absent: {key}: {error}",
    "keep_alive_off": "extensions are switched off (keep_alive_max = 0)",
    "keep_alive_too_long": "one extension may last {limit_seconds:.0f} s at most",
    "keep_alive_used_up": "only {limit_seconds:.0f} s of extensions are left for this notebook",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why: a code of `TEXTS` and its params in base units. Hashable, so that reasons can be counted."""

    code: str
    params: tuple[tuple[str, Param], ...] = ()

    @property
    def text(self) -> str:
        """The English sentence; a param that is missing shows as `?`."""
        values = dict(self.params)
        try:
            return TEXTS[self.code].format(**values)
        except (KeyError, ValueError, TypeError):
            return f"{self.code} {values}" if values else self.code

    def to_wire(self) -> dict[str, object]:
        """`{code, params, text}` as REST, stream and events carry it."""
        return {"code": self.code, "params": dict(self.params), "text": self.text}


def because(code: str, **params: Param) -> Reason:
    """Make a reason. Raises KeyError for a code that is not in the list: the list is closed."""
    if code not in TEXTS:
        raise KeyError(code)
    return Reason(code, tuple(sorted(params.items())))
