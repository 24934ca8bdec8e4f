"""When a kernel may be ended at the earliest, and what decides it.

deadline = max(idle_since + timeout, start + warm_up + first lead, each given warning + its lead, keep_until), on
observed, awake, monotonic time: the idle clock's own pauses move the first term, so it is counted from `idle_for`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from .judgement import by_other_signals
from .model import Instant, Verdict, VerdictKind
from .policy import Policy, Scope, UnknownPolicy
from .reasons import Reason, because

#: Where use is unreadable by nature and the policy judges by the other signals, every timeout is this much longer.
OTHER_SIGNALS_FACTOR = 3


class Cause(str, Enum):
    """What a kernel is ended for."""

    IDLE = "idle"
    MAX_RUNTIME = "max_runtime"
    STALLED = "stalled"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Warning_:
    """A warning: `lead` ahead of the deadline (None: stuck, with no deadline). `given` is None for a lead that was due
    together with a shorter one and therefore left out."""

    cause: Cause
    lead: timedelta | None
    given: Instant | None


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment, the rule that put it there (`reason`), and what the kernel is ended for (`basis`)."""

    at: Instant
    cause: Cause
    reason: Reason
    basis: Reason


def scoped(verdict: Verdict, policy: Policy) -> bool:
    """Whether the policy speaks of this kernel. Where it can't be told whether it holds a GPU, it may: nothing is done
    on that, but a warning that was given stays."""
    return policy.scope is Scope.ALL or verdict.holds_gpu is not False


def idle_timeout(verdict: Verdict, policy: Policy) -> tuple[timedelta, Reason]:
    """The idle timeout that holds now: longer after a long execution, longer where only other signals speak."""
    rest = min(policy.after_run_max, (verdict.last_run or timedelta(0)) * policy.after_run_factor)
    timeout = policy.idle_timeout
    reason = because("idle_timeout", seconds=timeout.total_seconds())
    if rest > timeout:
        timeout = rest
        run = (verdict.last_run or timedelta(0)).total_seconds()
        reason = because("after_run", run_seconds=run, seconds=rest.total_seconds())
    if policy.unknown_policy is UnknownPolicy.OTHER_SIGNALS and by_other_signals(verdict):
        timeout = timeout * OTHER_SIGNALS_FACTOR
    return timeout, reason


def next_deadline(
    verdict: Verdict,
    policy: Policy,
    started: Instant,
    warnings: Sequence[Warning_],
    keep_until: datetime | None,
    not_before: Instant | None,
    now: Instant,
    keep_owner: str | None = None,
) -> Deadline | None:
    """The earliest moment at which this kernel may be ended, or None where nothing would end it."""
    if not scoped(verdict, policy):
        return None
    # An extension puts off the first two; maximum runtime runs on, active or not, kept or not.
    unused = (_idle(verdict, policy, started, now), _stalled(verdict, policy, now))
    found = [_kept(due, keep_until, keep_owner, now) for due in unused if due is not None]
    longest = _max_runtime(verdict, policy, now)
    found += [] if longest is None else [longest]
    if not found:
        return None
    return min((_warned(d, policy, warnings, not_before, now) for d in found), key=lambda d: d.at)


def _idle(verdict: Verdict, policy: Policy, started: Instant, now: Instant) -> Deadline | None:
    if policy.idle_timeout <= timedelta(0) or verdict.idle_since is None:
        return None
    if verdict.kind not in (VerdictKind.IDLE, VerdictKind.ACTIVE, VerdictKind.UNKNOWN):
        return None
    timeout, reason = idle_timeout(verdict, policy)
    due = Deadline(now.plus(timeout - verdict.idle_for), Cause.IDLE, reason, reason)
    lead = policy.warn_before[0] if policy.warn_before else timedelta(0)
    warm = started.plus(policy.warm_up + lead)
    if warm > due.at:
        due = replace(due, at=warm, reason=because("warm_up", seconds=policy.warm_up.total_seconds()))
    return due


def _stalled(verdict: Verdict, policy: Policy, now: Instant) -> Deadline | None:
    if not policy.cull_stalled or verdict.kind is not VerdictKind.STALLED:
        return None
    after = policy.cull_stalled_after
    reason = because("stalled_timeout", seconds=after.total_seconds())
    return Deadline(now.plus(after - verdict.stalled_for), Cause.STALLED, reason, reason)


def _max_runtime(verdict: Verdict, policy: Policy, now: Instant) -> Deadline | None:
    """Active or not, known or not; only a failed save or the policy stops it."""
    if policy.max_runtime <= timedelta(0) or verdict.held_for <= timedelta(0):
        return None
    reason = because("max_runtime", seconds=policy.max_runtime.total_seconds())
    return Deadline(now.plus(policy.max_runtime - verdict.held_for), Cause.MAX_RUNTIME, reason, reason)


def _kept(due: Deadline, keep_until: datetime | None, owner: str | None, now: Instant) -> Deadline:
    if keep_until is None or keep_until <= due.at.at:
        return due
    until = keep_until.strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = because("kept", until=until, owner=owner or "")
    return replace(due, at=now.plus(keep_until - now.at), reason=reason)


def _warned(
    due: Deadline, policy: Policy, warnings: Sequence[Warning_], not_before: Instant | None, now: Instant
) -> Deadline:
    """Each given warning has its full lead; without one, the first lead is still to come. So a change of policy never
    brings a deadline nearer than now + the first lead."""
    given = [w for w in warnings if w.cause is due.cause and w.given is not None and w.lead is not None]
    floors = [w.given.plus(w.lead) for w in given if w.given is not None and w.lead is not None]
    if not given and policy.warn_before:
        floors.append(now.plus(policy.warn_before[0]))
    if not_before is not None:
        floors.append(not_before)
    latest = max(floors, default=due.at)
    return due if latest <= due.at else replace(due, at=latest)
