"""What goes over the wire: JSON of the guard's state, for REST and stream alike.

Names, units and the `null` with its reason in `unreadable` are those of the REST reference in the docs. Pids of other
users are never among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ._version import __version__
from .commands import Commands
from .core.deadline import Warning_
from .core.model import (
    Gpu,
    GpuProcess,
    GpuShare,
    Sample,
    Terminal,
    UnattributedProcess,
    Unknown,
    VerdictKind,
)
from .core.policy import Mode, Policy, Scope
from .core.policy_fields import show_field
from .core.reasons import Reason, because
from .guard import Guard
from .labels import NotebookMetadata
from .record import evidence_to_wire, iso
from .watched import Watched

Json = dict[str, Any]


def status(commands: Commands, user: str, client_id: str | None = None) -> Json:
    """`GET status`; with the save requests to all clients, or to one. `limits` are those of a kernel for which no
    entry of a policy is; each kernel has its own."""
    guard = commands.guard
    sample = guard.state.sample
    general = guard.general_policy
    return {
        "version": __version__,
        "mode": general.mode.value,
        "gpu_source": sample.source,
        "simulated": sample.source == "simulated",
        "server_time": iso(guard.clock().at),
        "user": user,
        "telemetry": telemetry(sample),
        "policy": policy_state(guard),
        "hold": None if guard.recorder.hold is None else guard.recorder.hold.to_wire(),
        "limits": {
            "keep_alive_max_seconds": general.keep_alive_max.total_seconds(),
            "keep_alive_total_seconds": general.keep_alive_total.total_seconds(),
        },
        "gpus": [gpu_to_wire(gpu) for gpu in sample.gpus],
        "kernels": [kernel_to_wire(commands, watched) for watched in guard.state.watched.values()],
        "terminals": [terminal_to_wire(terminal, guard) for terminal in guard.state.terminals],
        "unattributed": [other_to_wire(other) for other in guard.state.attribution.others],
        "orphans": [{"pid": process.key.pid, "kernel_id": process.marker} for process in guard.state.orphans],
        "save_requests": commands.open_requests(client_id),
    }


def telemetry(sample: Sample) -> Json:
    """`{state, reason, last_success}`."""
    return {
        "state": sample.state.value,
        "reason": None if sample.reason is None else sample.reason.to_wire(),
        "last_success": None if sample.last_success is None else iso(sample.last_success.at),
    }


def policy_state(guard: Guard) -> Json:
    """`{valid, hash, error}` of the policy file."""
    file = guard.policy_file
    if file is None:
        return {"valid": True, "hash": None, "error": None}
    if file.error is None:
        return {"valid": True, "hash": file.hash, "error": None}
    observing = bool(guard.layers.observe_because)
    code = "policy_invalid" if observing else "policy_not_reloaded"
    return {"valid": False, "hash": file.hash, "error": because(code, error=str(file.error)).to_wire()}


def gpu_to_wire(gpu: Gpu) -> Json:
    """One of `gpus[]`."""
    fields = {
        "memory_total_bytes": gpu.memory_total_bytes,
        "memory_used_bytes": gpu.memory_used_bytes,
        "utilization_ratio": gpu.utilization_ratio,
        "power_watts": gpu.power_watts,
        "power_limit_watts": gpu.power_limit_watts,
        "temperature_celsius": gpu.temperature_celsius,
    }
    processes = None if isinstance(gpu.processes, Unknown) else [process_to_wire(p) for p in gpu.processes]
    values, unreadable = split(fields)
    if isinstance(gpu.processes, Unknown):
        unreadable["processes"] = gpu.processes.reason.to_wire()
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        **values,
        "mig": gpu.mig,
        "processes": processes,
        "unreadable": unreadable,
    }


def process_to_wire(process: GpuProcess) -> Json:
    """One process of a GPU: what it uses, not who it is."""
    values, unreadable = split({"memory_bytes": process.memory_bytes, "sm_ratio": process.sm_ratio})
    return {"kinds": sorted(process.kinds), **values, "mig_uuid": process.mig_uuid, "unreadable": unreadable}


def split(fields: Mapping[str, float | int | Unknown]) -> tuple[Json, Json]:
    """The values, `null` where unreadable, and the reasons of those."""
    values = {key: None if isinstance(value, Unknown) else value for key, value in fields.items()}
    reasons = {key: value.reason.to_wire() for key, value in fields.items() if isinstance(value, Unknown)}
    return values, reasons


def other_to_wire(other: UnattributedProcess) -> Json:
    """One of `unattributed[]`. Foreign processes carry no name and no pid."""
    values, unreadable = split({"memory_bytes": other.memory_bytes, "sm_ratio": other.sm_ratio})
    return {
        "uuid": other.uuid,
        "owner": other.owner,
        "terminal": other.terminal,
        "kernel_id": other.marker,
        "pid": other.pid,
        **values,
        "unreadable": unreadable,
    }


def terminal_to_wire(terminal: Terminal, guard: Guard) -> Json:
    """One of `terminals[]`, with what its processes hold on the GPUs."""
    held = [o for o in guard.state.attribution.others if o.terminal == terminal.name]
    return {
        "name": terminal.name,
        "last_activity": None if terminal.last_activity is None else iso(terminal.last_activity),
        "gpus": [other_to_wire(o) for o in held],
    }


def kernel_to_wire(commands: Commands, watched: Watched) -> Json:
    """One of `kernels[]`."""
    guard = commands.guard
    kernel, life, verdict, policy = watched.kernel, watched.life, watched.verdict, watched.policy
    kind = VerdictKind.UNKNOWN if verdict is None else verdict.kind
    reason = because("no_samples") if verdict is None else verdict.reason
    idle = verdict if verdict is not None and kind is not VerdictKind.ACTIVE else None
    return {
        "kernel_id": kernel.kernel_id,
        "name": kernel.name,
        "pid": kernel.pid,
        "started": iso(kernel.started.at),
        "notebooks": list(kernel.notebooks),
        "execution_state": kernel.execution_state,
        "executing": kernel.executing > 0,
        "waiting_for_input": kernel.waiting_for_input,
        "state": life.phase.value,
        "state_since": iso(life.since.at),
        "state_reason": None if life.reason is None else life.reason.to_wire(),
        "mode": policy.mode.value,
        "verdict": kind.value,
        "reason": reason.to_wire(),
        "evidence": [] if verdict is None else [evidence_to_wire(e) for e in verdict.evidence],
        "idle_since": None if idle is None or idle.idle_since is None else iso(idle.idle_since),
        "idle_seconds": 0.0 if idle is None else idle.idle_for.total_seconds(),
        **deadline_to_wire(guard, watched),
        "warnings": warnings_given(watched),
        "keep_alive_until": kept_until(watched, guard.clock().at),
        "keep_alive_max_seconds": policy.keep_alive_max.total_seconds(),
        "keep_alive_remaining_seconds": commands.keep_alive_left(watched).total_seconds(),
        "policy": policy_summary(policy),
        "gpus": [share_to_wire(share) for share in watched.usage.shares],
        "holds_gpu": holds(watched),
        "documents": [
            {"path": d.path, "dirty": d.dirty, "client_id": d.client_id}
            for d in watched.presence.open_documents
        ],
        "metadata": metadata_to_wire(guard.labels.of(kernel.notebooks)),
        "has_checkpoint": False,
        "recovery": commands.recovery_of(kernel.kernel_id),
    }


def warnings_given(watched: Watched) -> list[Json]:
    """The warnings that people were given; in `observe` nobody is."""
    if watched.policy.mode is Mode.OBSERVE:
        return []
    return [warning_to_wire(watched, w) for w in watched.life.warnings if w.given is not None]


def metadata_to_wire(metadata: NotebookMetadata) -> Json:
    """What the kernel's notebook says of itself, and why that counts as nothing where it is wrong."""
    error = None if metadata.error is None else metadata.error.to_wire()
    return {"label": metadata.label, "owner": metadata.owner, "project": metadata.project, "error": error}


def holds(watched: Watched) -> bool | None:
    """Whether the kernel holds a GPU; null where that can't be told."""
    held = watched.usage.holds_gpu
    return None if isinstance(held, Unknown) else held


def kept_until(watched: Watched, now: datetime) -> str | None:
    """Until when a person has kept the kernel; null when nobody has, or when it is over."""
    until = watched.life.keep_until
    return iso(until) if until is not None and until > now else None


def deadline_to_wire(guard: Guard, watched: Watched) -> Json:
    """`deadline`, its source and reason, and `would_act`: when it would be shut down if the mode were `enforce`."""
    own, mode = watched.due, watched.policy.mode
    stock = guard.watch.stock_deadline(watched.kernel.kernel_id)
    shown = own if mode is Mode.ENFORCE and own is not None else None
    if own is None:
        why = no_deadline_reason(watched)
    else:
        why = {Mode.OBSERVE: because("observing"), Mode.WARN: because("only_warning")}.get(mode, own.reason)
    result: Json = {
        "deadline": None if shown is None else iso(shown.at.at),
        "deadline_source": None if shown is None else "guard",
        "deadline_reason": why.to_wire(),
        "would_act": None if own is None else iso(own.at.at),
    }
    if stock is not None and (shown is None or stock < shown.at.at):
        seconds = guard.watch.cull_idle_timeout
        result.update(
            deadline=iso(stock),
            deadline_source="cull_idle_timeout",
            deadline_reason=because("stock_culler", seconds=seconds).to_wire(),
        )
    return result


def no_deadline_reason(watched: Watched) -> Reason:
    """Why nothing would end this kernel now."""
    verdict = watched.verdict
    if verdict is None:
        return because("no_samples")
    held = watched.usage.holds_gpu
    if watched.policy.scope is Scope.GPU and held is not True:
        return held.reason if isinstance(held, Unknown) else because("out_of_scope")
    if watched.policy.idle_timeout <= timedelta(0):
        return because("no_timeout")
    return verdict.reason


def warning_to_wire(watched: Watched, warning: Warning_) -> Json:
    """One of `warnings[]`."""
    assert warning.given is not None
    return {
        "at": iso(warning.given.at),
        "lead_seconds": None if warning.lead is None else warning.lead.total_seconds(),
        "cause": warning.cause.value,
        "channel": "stream",
        **watched.reaches.of(warning).to_wire(),
    }


def policy_to_wire(policy: Policy) -> Json:
    """`GET policies`: every value of one kernel's policy, and where it came from."""
    values = {field: show_field(field, getattr(policy, field)) for field in policy.sources}
    return {"name": policy.name, "values": values, "sources": dict(policy.sources), "reason": policy.reason}


def share_to_wire(share: GpuShare) -> Json:
    """One of a kernel's `gpus[]`."""
    values, unreadable = split({"memory_bytes": share.memory_bytes, "sm_ratio": share.sm_ratio})
    return {"uuid": share.uuid, **values, "attribution": share.link.value, "unreadable": unreadable}


def policy_summary(policy: Policy) -> Json:
    """What a screen needs of the policy; `GET policies` has all of it."""
    return {
        "name": policy.name,
        "idle_timeout_seconds": policy.idle_timeout.total_seconds(),
        "warn_before_seconds": [lead.total_seconds() for lead in policy.warn_before],
        "max_runtime_seconds": policy.max_runtime.total_seconds(),
    }
