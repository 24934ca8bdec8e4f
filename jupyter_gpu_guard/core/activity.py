"""When each signal last showed that a kernel is being used.

One `Signal` for each: executions, GPU, video coding, GPU memory, CPU, IO, output, people. A signal is above its
threshold, below it, or can't be read; the three are never mixed. What they mean together stands in judgement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from .model import (
    Gpu,
    GpuShare,
    Instant,
    Kernel,
    Observation,
    Presence,
    Reading,
    TelemetryState,
    Unknown,
    Usage,
    known,
)
from .policy import Policy
from .reasons import Reason, because

#: By uuid, the bytes that a kernel was last seen to hold.
Memory = tuple[tuple[str, int], ...]

#: A mean that is older than so many periods says nothing about now: the scans have stopped.
_STALE_PERIODS = 3

#: A process that waits in a loop for another (a collective operation whose partner hangs) keeps a GPU fully in use at
#: the power of an idle card: horovod#3611 saw 100 % at 47 W of 250 W.
SPIN_SM_RATIO = 0.9
SPIN_POWER_RATIO = 0.3


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal. `active`: the latest moment at which it showed use, and `why`; both None if it never did."""

    name: str
    value: float | None
    threshold: float | None = None
    active: Instant | None = None
    why: Reason | None = None
    #: Why it can't be read, where idleness needs it.
    unreadable: Reason | None = None
    #: What the value means, or why there is none, where idleness doesn't need it.
    note: Reason | None = None


def iso(moment: datetime) -> str:
    """As reasons carry it: ISO 8601, UTC, whole seconds."""
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")[:19] + "Z"


@lru_cache(maxsize=4096)
def _at(code: str, at: datetime) -> Reason:
    """Remembered, since what happened last is told again in every round."""
    return because(code, at=iso(at))


def is_busy(kernel: Kernel) -> bool:
    """A cell runs and doesn't just wait for an answer from a person."""
    return kernel.executing > 0 and not kernel.waiting_for_input and kernel.execution_state != "dead"


def read_signals(
    kernel: Kernel, usage: Usage, presence: Presence, obs: Observation, policy: Policy, memory: Memory | None
) -> tuple[Signal, ...]:
    """All signals of one kernel in one observation, the most telling first and always in the same order."""
    stale = _STALE_PERIODS * policy.period()
    return (
        _execution(kernel, obs.now),
        _gpu(usage, obs, policy, stale),
        _codec(usage, obs, policy),
        _gpu_memory(usage, obs, memory),
        _io(usage, obs.now, policy, stale),
        _cpu(usage, obs.now, policy, stale),
        _output(kernel, obs.now),
        _presence(presence, obs.now),
    )


def _latest(now: Instant, *moments: Instant | None) -> Instant | None:
    """The latest of the moments that have come; a client's clock may run ahead."""
    latest = None
    for moment in moments:
        if moment is not None and (latest is None or moment.monotonic > latest.monotonic):
            latest = moment
    return now if latest is not None and latest.monotonic > now.monotonic else latest


def _execution(kernel: Kernel, now: Instant) -> Signal:
    waiting = because("waiting_for_input", seconds=0.0) if kernel.waiting_for_input else None
    hidden = None if kernel.watched else because("watch_not_attached")
    if is_busy(kernel):
        since = kernel.executing_since or kernel.last_execution_start or now
        why = because("executing", since=iso(since.at))
        return Signal("execution", float(kernel.executing), 1.0, now, why, hidden)
    last = _latest(now, kernel.last_execution_start, kernel.last_execution_end)
    why_then = None if last is None else _at("executed", last.at)
    return Signal("execution", float(kernel.executing), 1.0, last, why_then, hidden, waiting)


def _gpu(usage: Usage, obs: Observation, policy: Policy, stale: timedelta) -> Signal:
    limit = policy.gpu_idle_below
    ratios = [share.sm_ratio for share in usage.shares]
    own = [ratio for ratio in ratios if not isinstance(ratio, Unknown)]
    shared = max(usage.maybe_using, key=lambda pair: pair[1], default=None)
    value = max([*own, *([] if shared is None else [shared[1]])], default=None)
    hidden = _gpu_hidden(usage, obs, stale, ratios)
    note = obs.sample.reason if obs.sample.state is TelemetryState.NONE else None
    if value is None and hidden is None and note is None:
        value = 0.0
    active, why = None, None
    if own and max(own) >= limit:
        active, why = obs.now, because("gpu_in_use", ratio=max(own), at=iso(obs.now.at))
    elif shared is not None and shared[1] >= limit:
        active, why = obs.now, because("device_in_use_owner_unclear", uuid=shared[0], ratio=shared[1])
    return Signal("gpu", value, limit, active, why, hidden, note)


def _gpu_hidden(usage: Usage, obs: Observation, stale: timedelta, ratios: Iterable[Reading]) -> Reason | None:
    """Why GPU use that the kernel may have can't be read."""
    for ratio in ratios:
        if isinstance(ratio, Unknown):
            return ratio.reason
    if usage.gpu_unreadable is not None:
        return usage.gpu_unreadable
    if isinstance(usage.holds_gpu, Unknown) and not usage.maybe_using:
        return usage.holds_gpu.reason
    age = obs.now.since(obs.sample.taken)
    if obs.sample.state is TelemetryState.OK and age > stale:
        return because("hole_in_samples", seconds=age.total_seconds())
    return None


def _codec(usage: Usage, obs: Observation, policy: Policy) -> Signal:
    """Encoder and decoder: a video pipeline may leave the rest of the GPU at 0 %."""
    limit = policy.gpu_idle_below
    hidden = next((s.codec_ratio.reason for s in usage.shares if isinstance(s.codec_ratio, Unknown)), None)
    values = [s.codec_ratio for s in usage.shares if not isinstance(s.codec_ratio, Unknown)]
    value = max(values, default=None if hidden is not None else 0.0)
    if value is None or value < limit:
        return Signal("codec", value, limit, unreadable=hidden)
    return Signal(
        "codec", value, limit, obs.now, because("codec_in_use", ratio=value, at=iso(obs.now.at)), hidden
    )


def _gpu_memory(usage: Usage, obs: Observation, before: Memory | None) -> Signal:
    """Memory shows use only by its change: what is held says nothing of whether anybody uses it."""
    total = sum(known(share.memory_bytes) or 0.0 for share in usage.shares)
    if before is None or held_memory(usage, obs, before) == before:
        return Signal("gpu_memory", total)
    return Signal("gpu_memory", total, active=obs.now, why=_at("gpu_memory_changed", obs.now.at))


def held_memory(usage: Usage, obs: Observation, before: Memory | None) -> Memory:
    """What the kernel holds by this observation; where that can't be read, what it was last seen to hold."""
    if obs.sample.state is not TelemetryState.OK:
        return before or ()
    last = dict(before or ())
    found = last if usage.gpu_unreadable is not None else {}
    for share in usage.shares:
        if not isinstance(share.memory_bytes, Unknown):
            found[share.uuid] = share.memory_bytes
        elif share.uuid in last:
            found[share.uuid] = last[share.uuid]
    return tuple(sorted(found.items()))


def _cpu(usage: Usage, now: Instant, policy: Policy, stale: timedelta) -> Signal:
    return _mean("cpu", usage.cpu_cores, policy.cpu_idle_below, usage, now, stale)


def _io(usage: Usage, now: Instant, policy: Policy, stale: timedelta) -> Signal:
    return _mean("io", usage.io_bytes_per_second, float(policy.io_idle_below), usage, now, stale)


def _mean(
    name: str, reading: Reading | None, limit: float, usage: Usage, now: Instant, stale: timedelta
) -> Signal:
    """A mean counts once, for the end of its period, so no minute is judged twice or dated back."""
    if isinstance(reading, Unknown):
        return Signal(name, None, limit, unreadable=reading.reason)
    if reading is None or usage.measured is None:
        return Signal(name, None, limit, note=because("not_measured_yet"))
    age = now.since(usage.measured)
    hidden = None
    if age > stale:
        hidden = because("hole_in_samples", seconds=age.total_seconds())
    if reading < limit:
        return Signal(name, reading, limit, unreadable=hidden)
    at = iso(usage.measured.at)
    why = because("cpu_in_use", cores=reading, at=at)
    if name == "io":
        why = because("io_in_use", bytes_per_second=reading, at=at)
    return Signal(name, reading, limit, _latest(now, usage.measured), why, hidden)


def _output(kernel: Kernel, now: Instant) -> Signal:
    last = _latest(now, kernel.last_output)
    return _moment("output", last, None if last is None else _at("printing", last.at), now)


def _presence(presence: Presence, now: Instant) -> Signal:
    last = _latest(now, presence.last_input)
    return _moment("presence", last, None if last is None else _at("present", last.at), now)


def _moment(name: str, last: Instant | None, why: Reason | None, now: Instant) -> Signal:
    """A signal that is a moment: its value is the age in seconds."""
    return Signal(name, None if last is None else now.since(last).total_seconds(), None, last, why)


def is_spinning(usage: Usage, gpus: Iterable[Gpu], policy: Policy) -> bool:
    """Whether every GPU that the kernel uses is fully in use at the power of an idle card."""
    cards = {gpu.uuid: gpu for gpu in gpus}
    used = [s for s in usage.shares if (known(s.sm_ratio) or 0.0) >= policy.gpu_idle_below]
    return bool(used) and all(_spins(share, cards.get(share.uuid)) for share in used)


def _spins(share: GpuShare, card: Gpu | None) -> bool:
    sm = known(share.sm_ratio)
    power = None if card is None else known(card.power_watts)
    limit = None if card is None else known(card.power_limit_watts)
    if sm is None or power is None or not limit:
        return False
    return sm >= SPIN_SM_RATIO and power < SPIN_POWER_RATIO * limit


def recent(period: timedelta) -> timedelta:
    """How long what a signal showed last holds: a period and half of one, since periods end between rounds."""
    return 1.5 * period
