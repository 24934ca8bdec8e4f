"""The life of a kernel under the guard: what may follow what, and the one function that moves it.

`TRANSITIONS` is the specification; `advance` is the only mutator, and checks every step against it. Results of actions
come back as events. Nothing here reads a clock: `now` is an argument.

Not here: what a look does (look), how long everything takes (deadline), how a save or a shutdown is done (reclaim).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from .activity import iso
from .deadline import Cause
from .life import (
    Action,
    Asked,
    AskToSave,
    Culled,
    EndKernel,
    Event,
    Judged,
    KeepEnded,
    Kept,
    Life,
    LookAgain,
    Looked,
    Phase,
    Record,
    Restarted,
    Saved,
    Step,
    Touched,
    Warn,
    asking,
    cancelled,
    moved,
    quieted,
)
from .look import judged, looked
from .model import Instant
from .policy import OnSaveFailure, Policy
from .reasons import Reason, because

__all__ = [
    "TRANSITIONS",
    "Action",
    "AskToSave",
    "Asked",
    "Culled",
    "EndKernel",
    "Event",
    "Judged",
    "KeepEnded",
    "Kept",
    "Life",
    "LookAgain",
    "Looked",
    "Phase",
    "Record",
    "Restarted",
    "Saved",
    "Touched",
    "Warn",
    "advance",
    "born",
]

P = Phase

#: phase -> event -> the phases that may follow. What is not listed cannot happen; the diagram in the docs is drawn
#: from this.
TRANSITIONS: Mapping[Phase, Mapping[str, frozenset[Phase]]] = {
    P.ACTIVE: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED}),  # warned: maximum runtime
        "Touched": frozenset({P.ACTIVE}),
        "Kept": frozenset({P.ACTIVE}),
        "KeepEnded": frozenset({P.ACTIVE}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.ACTIVE}),  # an answer that comes too late says nothing
        "Looked": frozenset({P.ACTIVE}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.IDLE: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED}),
        "Touched": frozenset({P.ACTIVE}),
        "Kept": frozenset({P.IDLE}),
        "KeepEnded": frozenset({P.IDLE}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.IDLE}),
        "Looked": frozenset({P.IDLE}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.WARNED: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED, P.SAVING}),
        "Touched": frozenset({P.ACTIVE, P.WARNED}),  # warned: maximum runtime runs on
        "Kept": frozenset({P.IDLE, P.WARNED}),
        "KeepEnded": frozenset({P.WARNED}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.WARNED}),
        "Looked": frozenset({P.WARNED}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.SAVING: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED, P.SAVING, P.CULLING}),
        "Touched": frozenset({P.ACTIVE, P.SAVING}),
        "Kept": frozenset({P.IDLE, P.SAVING}),
        "KeepEnded": frozenset({P.SAVING}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.SAVING, P.WARNED, P.IDLE}),
        "Looked": frozenset({P.SAVING}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.CULLING: {
        "Judged": frozenset({P.CULLING}),
        "Touched": frozenset({P.ACTIVE, P.CULLING}),  # culling: the shutdown has begun
        "Kept": frozenset({P.IDLE, P.CULLING}),
        "KeepEnded": frozenset({P.CULLING}),
        "Asked": frozenset({P.CULLING}),
        "Saved": frozenset({P.CULLING}),
        "Looked": frozenset({P.ACTIVE, P.WARNED, P.CULLING}),
        "Culled": frozenset({P.CULLED, P.FAILED}),
        "Restarted": frozenset({P.ACTIVE, P.CULLING}),
    },
    P.FAILED: {
        "Judged": frozenset({P.ACTIVE, P.FAILED, P.SAVING}),
        "Touched": frozenset({P.ACTIVE, P.FAILED}),
        "Kept": frozenset({P.IDLE, P.FAILED}),
        "KeepEnded": frozenset({P.FAILED}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.FAILED}),
        "Looked": frozenset({P.FAILED}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.CULLED: {},
}

#: A front end that stays silent is asked so often, so far apart; then its sleeping tab keeps what it holds.
SILENT_ASKS = 3
SILENT_SPACING = timedelta(minutes=5)
#: After a failed save it is tried again after 5, 10, 20, 40 and then every 60 minutes.
FIRST_POSTPONE, LONGEST_POSTPONE = timedelta(minutes=5), timedelta(minutes=60)
#: After a failed shutdown it is tried again after this, doubled each time up to an hour.
FIRST_RETRY = timedelta(minutes=1)


def born(kernel_id: str, started: Instant) -> Life:
    """A kernel that has just been seen: first sight counts as active."""
    return Life(kernel_id, Phase.ACTIVE, started, started, reason=because("just_started", at=iso(started.at)))


def advance(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    """The next standing and what to do about it. Raises ValueError for an event that cannot happen in this phase."""
    kind = type(event).__name__
    allowed = TRANSITIONS[life.phase].get(kind)
    if allowed is None:
        raise ValueError(f"{kind} cannot happen to a kernel that is {life.phase.value}")
    after, actions = _HANDLERS[kind](life, event, policy, now)
    if after.phase not in allowed:
        raise ValueError(f"{life.phase.value} must not become {after.phase.value} on {kind}")
    return after, actions


def holds_out(life: Life, by_execution: bool) -> bool:
    """Whether what is under way goes on although somebody acts: a shutdown that has begun, maximum runtime, and what a
    person asked for unless a cell is run after it (moving the mouse is no change of mind)."""
    if life.ending or life.cause is Cause.MAX_RUNTIME:
        return True
    return life.cause is Cause.USER and not by_execution


def _touched(life: Life, event: Touched, policy: Policy, now: Instant) -> Step:
    if holds_out(life, by_execution=event.reason.code == "executing"):
        return life, ()
    return cancelled(life, Phase.ACTIVE, now, event.reason)


def _kept(life: Life, event: Kept, policy: Policy, now: Instant) -> Step:
    if holds_out(life, by_execution=True):
        return life, ()
    until, owner = event.until, event.owner
    if life.keep_until is not None and life.keep_until > until:
        until, owner = (
            life.keep_until,
            life.keep_owner or owner,
        )  # keeping longer is never taken back by keeping
    life = replace(life, keep_until=until, keep_owner=owner)
    reason = because("kept", until=iso(until), owner=owner, note=event.note)
    record = Record("keep_alive", reason)
    if life.phase in (Phase.ACTIVE, Phase.IDLE):
        return life, (record,)
    return quieted(life, Phase.IDLE, now, reason), (record,)


def _keep_ended(life: Life, event: KeepEnded, policy: Policy, now: Instant) -> Step:
    return replace(life, keep_until=None, keep_owner=None), ()


def _asked(life: Life, event: Asked, policy: Policy, now: Instant) -> Step:
    if life.phase is Phase.CULLING:
        return life, ()
    reason = because("asked_by_user", owner=event.owner)
    asked = {"cause": Cause.USER, "reason": reason, "owner": event.owner, "not_before": None, "silences": 0}
    if not event.save:
        return moved(life, Phase.CULLING, now, ending=False, **asked), (LookAgain(),)
    # Anew, even when a request is out: what was answered to that one may have been edited since.
    life, ask = asking(life, now, **asked)
    return life, (ask, Record("save_requested", reason))


def _saved(life: Life, event: Saved, policy: Policy, now: Instant) -> Step:
    if life.phase is not Phase.SAVING or event.attempt != life.attempt:
        return life, ()
    reason = event.reason or life.reason or because("save_failed", path="?", error="no reason was given")
    if event.kind in ("saved", "nothing_open"):
        return replace(life, saved=True), (Record("saved", reason),)
    if event.kind == "silent":
        return _silent(life, reason, policy, now)
    if event.kind == "recovered" and _takes_recovery(life, policy, now):
        return replace(life, saved=True), (Record("saved", reason),)
    return _postponed(life, reason, policy, now)


def _silent(life: Life, reason: Reason, policy: Policy, now: Instant) -> Step:
    """Rule of the sleeping tab: asked three times, apart; the end of a kernel does not touch what it holds."""
    silences = life.silences + 1
    if silences >= SILENT_ASKS:
        return replace(life, saved=True, silences=silences), (Record("saved", reason),)
    if life.cause is Cause.USER:  # somebody waits for this: ask again at once
        life, ask = asking(life, now, silences=silences)
        return life, (ask,)
    spacing = min(SILENT_SPACING, policy.idle_timeout or SILENT_SPACING)
    life = moved(life, Phase.WARNED, now, silences=silences, not_before=now.plus(spacing))
    return life, (Record("save_failed", reason),)


def _takes_recovery(life: Life, policy: Policy, now: Instant) -> bool:
    if policy.on_save_failure is OnSaveFailure.RECOVERY_COPY:
        return True
    if policy.on_save_failure is OnSaveFailure.NEVER or life.first_failure is None:
        return False
    return now.since(life.first_failure) >= policy.postpone_max


def _postponed(life: Life, reason: Reason, policy: Policy, now: Instant) -> Step:
    if life.cause is Cause.USER:
        return quieted(life, Phase.IDLE, now, reason), (Record("save_failed", reason),)
    failures = life.failures + 1
    wait = min(FIRST_POSTPONE * 2 ** min(failures - 1, 10), LONGEST_POSTPONE)
    until = now.plus(min(wait, policy.idle_timeout or wait))
    first = life.first_failure or now
    life = moved(life, Phase.WARNED, now, failures=failures, first_failure=first, not_before=until)
    return life, (Record("save_failed", reason),)


def _looked(life: Life, event: Looked, policy: Policy, now: Instant) -> Step:
    if life.phase is not Phase.CULLING or life.ending:
        return life, ()
    return looked(life, event, policy, now)


def _culled(life: Life, event: Culled, policy: Policy, now: Instant) -> Step:
    reason = life.reason or because("asked_by_user", owner="")
    if event.reason is None:
        return moved(life, Phase.CULLED, now), (Record("culled", reason),)
    retries = life.retries + 1
    until = now.plus(min(FIRST_RETRY * 2 ** min(retries - 1, 10), LONGEST_POSTPONE))
    life = moved(life, Phase.FAILED, now, ending=False, saved=False, retries=retries, not_before=until)
    return life, (Record("cull_failed", event.reason),)


def _restarted(life: Life, event: Restarted, policy: Policy, now: Instant) -> Step:
    if life.ending:
        return life, ()
    after, actions = cancelled(life, Phase.ACTIVE, now, because("restarted"))
    return replace(after, started=now), actions


_HANDLERS: Mapping[str, Callable[[Life, Any, Policy, Instant], Step]] = {
    "Judged": judged,
    "Touched": _touched,
    "Kept": _kept,
    "KeepEnded": _keep_ended,
    "Asked": _asked,
    "Saved": _saved,
    "Looked": _looked,
    "Culled": _culled,
    "Restarted": _restarted,
}
