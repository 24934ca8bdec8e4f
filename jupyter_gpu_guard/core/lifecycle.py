"""The life of a kernel under the guard: what may follow what, and the one function that moves it.

`TRANSITIONS` is the specification; `advance` is the only mutator, and checks every step against it. Results of actions
come back as events. Nothing here reads a clock: `now` is an argument.

Not here: who is idle (judgement), how long everything takes (deadline), how a save or a shutdown is done (guard).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from .activity import iso
from .deadline import Cause, Deadline, Warning_, next_deadline, scoped
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
    Phase,
    Record,
    Restarted,
    Saved,
    Touched,
    Warn,
)
from .model import Instant, Verdict, VerdictKind
from .policy import Mode, OnSaveFailure, Policy
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
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.IDLE: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED}),
        "Touched": frozenset({P.ACTIVE}),
        "Kept": frozenset({P.IDLE}),
        "KeepEnded": frozenset({P.IDLE}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.WARNED: {
        "Judged": frozenset({P.ACTIVE, P.IDLE, P.WARNED, P.SAVING}),
        "Touched": frozenset({P.ACTIVE, P.WARNED}),  # warned: maximum runtime runs on
        "Kept": frozenset({P.IDLE, P.WARNED}),
        "KeepEnded": frozenset({P.WARNED}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.SAVING: {
        "Judged": frozenset({P.ACTIVE, P.SAVING, P.CULLING, P.IDLE, P.WARNED}),
        "Touched": frozenset({P.ACTIVE, P.SAVING}),
        "Kept": frozenset({P.IDLE, P.SAVING}),
        "KeepEnded": frozenset({P.SAVING}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
        "Saved": frozenset({P.SAVING, P.WARNED, P.IDLE}),
        "Restarted": frozenset({P.ACTIVE}),
    },
    P.CULLING: {
        "Judged": frozenset({P.CULLING}),
        "Touched": frozenset({P.CULLING}),
        "Kept": frozenset({P.CULLING}),
        "KeepEnded": frozenset({P.CULLING}),
        "Asked": frozenset({P.CULLING}),
        "Saved": frozenset({P.CULLING}),
        "Culled": frozenset({P.CULLED, P.FAILED}),
        "Restarted": frozenset({P.CULLING}),
    },
    P.FAILED: {
        "Judged": frozenset({P.ACTIVE, P.FAILED, P.CULLING}),
        "Touched": frozenset({P.ACTIVE, P.FAILED}),
        "Kept": frozenset({P.IDLE, P.FAILED}),
        "KeepEnded": frozenset({P.FAILED}),
        "Asked": frozenset({P.SAVING, P.CULLING}),
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
#: A cull needs so many good samples since idle_since.
MIN_SAMPLES = 3

Step = tuple[Life, tuple[Action, ...]]


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


def _to(life: Life, phase: Phase, now: Instant, **changes: object) -> Life:
    since = life.since if life.phase is phase else now
    return replace(life, phase=phase, since=since, **changes)  # type: ignore[arg-type]


def _cleared(life: Life, phase: Phase, now: Instant, reason: Reason) -> Life:
    """Back to a quiet life: warnings, postponements and the cause are forgotten, extensions stay."""
    return _to(
        life,
        phase,
        now,
        cause=None,
        owner=None,
        reason=reason,
        idle_since=None,
        warnings=(),
        not_before=None,
        failures=0,
        first_failure=None,
        silences=0,
        saved=False,
        retries=0,
        noted=frozenset(),
    )


def _cancelled(life: Life, phase: Phase, now: Instant, reason: Reason) -> Step:
    """End what was under way, and write that down if anybody had been told."""
    told = life.phase in (Phase.WARNED, Phase.SAVING, Phase.FAILED)
    actions: tuple[Action, ...] = (Record("cull_cancelled", reason),) if told else ()
    return _cleared(life, phase, now, reason), actions


# --- a fresh look -------------------------------------------------------------------------------------------------


def _judged(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Judged)
    verdict = event.verdict
    if life.phase is Phase.CULLING:
        return life, ()
    if _over(life, verdict, policy):
        phase = Phase.ACTIVE if verdict.kind is not VerdictKind.IDLE else Phase.IDLE
        phase = Phase.ACTIVE if life.phase is Phase.FAILED else phase
        return _cancelled(life, phase, now, verdict.reason)
    if life.phase is Phase.SAVING:
        return _after_save(life, event, now)
    if life.phase is Phase.FAILED:
        return _retry(life, event, now)
    return _quiet_or_warned(life, event, policy, now)


def _over(life: Life, verdict: Verdict, policy: Policy) -> bool:
    """Whether what the kernel was warned for (or is being ended for) no longer holds."""
    if life.cause is None or life.cause is Cause.USER:
        return False
    if policy.mode is Mode.OBSERVE or (policy.mode is Mode.WARN and life.phase is Phase.SAVING):
        return True
    if not scoped(verdict, policy):
        return True
    if life.cause is Cause.MAX_RUNTIME:
        return policy.max_runtime <= timedelta(0)
    if verdict.kind is VerdictKind.ACTIVE:
        return True
    if life.cause is Cause.STALLED:
        return verdict.kind is VerdictKind.IDLE
    return _afresh(life, verdict)


def _afresh(life: Life, verdict: Verdict) -> bool:
    """The idle clock was started afresh (a long hole, a jump of the clock): what was counted before is void."""
    return (
        verdict.idle_since is not None
        and life.idle_since is not None
        and verdict.idle_since > life.idle_since
    )


def _after_save(life: Life, event: Judged, now: Instant) -> Step:
    """Saving is under way, or done: the look after it decides."""
    if not life.saved:
        return life, ()
    if life.cause is not Cause.USER and (event.hold is not None or not _sure(life, event.verdict)):
        return _to(life, Phase.WARNED, now, saved=False), ()  # what was saved gets old: it is saved again in time
    return _to(life, Phase.CULLING, now), (EndKernel(),)


def _sure(life: Life, verdict: Verdict) -> bool:
    """Unknown is never idle; maximum runtime alone runs on without a verdict."""
    if life.cause is Cause.MAX_RUNTIME:
        return True
    wanted = VerdictKind.STALLED if life.cause is Cause.STALLED else VerdictKind.IDLE
    return verdict.kind is wanted and verdict.good_samples >= MIN_SAMPLES


def _retry(life: Life, event: Judged, now: Instant) -> Step:
    waiting = life.not_before is not None and now < life.not_before
    if waiting or event.hold is not None or not (life.cause is Cause.USER or _sure(life, event.verdict)):
        return life, ()
    return _to(life, Phase.CULLING, now, not_before=None), (EndKernel(),)


def _quiet_or_warned(life: Life, event: Judged, policy: Policy, now: Instant) -> Step:
    verdict = event.verdict
    if life.phase is not Phase.WARNED:
        phase = Phase.IDLE if verdict.kind in (VerdictKind.IDLE, VerdictKind.STALLED) else Phase.ACTIVE
        if verdict.kind is VerdictKind.UNKNOWN:
            phase = life.phase
        life = _to(life, phase, now, reason=verdict.reason)
        if phase is Phase.ACTIVE or _afresh(life, verdict):
            life = replace(life, noted=frozenset(), warnings=(), idle_since=None)
    due = next_deadline(
        verdict,
        policy,
        life.started,
        life.warnings,
        life.keep_until,
        life.not_before,
        now,
        life.keep_owner,
    )
    life, actions = _stalled_notice(life, verdict, policy, now)
    if due is None:
        return life, actions
    if policy.mode is Mode.OBSERVE:
        return _would(life, event, due, policy, now, actions)
    return _warn_or_save(life, event, due, policy, now, actions)


def _stalled_notice(life: Life, verdict: Verdict, policy: Policy, now: Instant) -> Step:
    """A kernel that is stuck is told so once, whether or not the policy would ever end it."""
    due = verdict.kind is VerdictKind.STALLED and verdict.stalled_for >= policy.stalled_timeout > timedelta(0)
    if not due or "stalled" in life.noted or not scoped(verdict, policy):
        return life, ()
    life = replace(life, noted=life.noted | {"stalled"})
    if policy.mode is Mode.OBSERVE:
        return life, (Record("would_warn", verdict.reason),)
    warning = Warning_(Cause.STALLED, None, now)
    return life, (Warn(warning), Record("warned", verdict.reason))


def _would(
    life: Life, event: Judged, due: Deadline, policy: Policy, now: Instant, actions: tuple[Action, ...]
) -> Step:
    """Observe mode: write down, once each, what would have been done. The warning is kept, so that the end that would
    have followed has its full lead, but given to nobody."""
    if "would_warn" not in life.noted:
        lead = policy.warn_before[0] if policy.warn_before else timedelta(0)
        if now < due.at.plus(-lead) or not _evident(due, event.verdict):
            return life, actions
        noted, warning = life.noted | {"would_warn"}, Warning_(due.cause, lead, now)
        life = replace(life, noted=noted, warnings=(warning,), idle_since=event.verdict.idle_since)
        return life, (*actions, Record("would_warn", due.reason))
    if "would_cull" in life.noted or now < due.at or not _evident(due, event.verdict):
        return life, actions
    return replace(life, noted=life.noted | {"would_cull"}), (*actions, Record("would_cull", due.reason))


def _evident(due: Deadline, verdict: Verdict) -> bool:
    """Unknown, or activity that has just ended, warns of nothing; maximum runtime alone needs no verdict."""
    return due.cause is Cause.MAX_RUNTIME or verdict.kind in (VerdictKind.IDLE, VerdictKind.STALLED)


def _warn_or_save(
    life: Life, event: Judged, due: Deadline, policy: Policy, now: Instant, actions: tuple[Action, ...]
) -> Step:
    given = {w.lead for w in life.warnings if w.cause is due.cause}
    leads = [lead for lead in policy.warn_before if lead not in given and now >= due.at.plus(-lead)]
    leads = leads if _evident(due, event.verdict) else []
    if leads:
        # Of several leads that are due at once only the shortest tells the truth about the time left.
        warning = Warning_(due.cause, leads[-1], now)
        kept = tuple(w for w in life.warnings if w.cause is due.cause)
        skipped = tuple(Warning_(due.cause, lead, None) for lead in leads[:-1])
        life = _to(
            life,
            Phase.WARNED,
            now,
            cause=due.cause,
            reason=due.reason,
            idle_since=event.verdict.idle_since,
            warnings=(*kept, *skipped, warning),
        )
        return life, (*actions, Warn(warning), Record("warned", due.reason))
    if life.phase is not Phase.WARNED or now < due.at:
        return life, actions
    if policy.mode is Mode.WARN:
        if "would_cull" in life.noted:
            return life, actions
        return replace(life, noted=life.noted | {"would_cull"}), (*actions, Record("would_cull", due.reason))
    if event.hold is not None or not _sure(life, event.verdict):
        return life, actions
    life = _to(life, Phase.SAVING, now, cause=due.cause, reason=due.reason, saved=False, not_before=None)
    return life, (*actions, AskToSave(), Record("save_requested", due.reason))


# --- everything else ----------------------------------------------------------------------------------------------


def _touched(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Touched)
    if life.phase is Phase.CULLING or life.cause in (Cause.MAX_RUNTIME, Cause.USER):
        return life, ()
    return _cancelled(life, Phase.ACTIVE, now, event.reason)


def _kept(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Kept)
    life = replace(life, keep_until=event.until, keep_owner=event.owner)
    reason = because("kept", until=iso(event.until), owner=event.owner, note=event.note)
    record = Record("keep_alive", reason)
    if life.phase is Phase.CULLING or life.cause in (Cause.MAX_RUNTIME, Cause.USER) or life.cause is None:
        return life, (record,)
    return _cleared(life, Phase.IDLE, now, reason), (record,)


def _keep_ended(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    return replace(life, keep_until=None, keep_owner=None), ()


def _asked(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Asked)
    if life.phase is Phase.CULLING or (
        life.phase is Phase.SAVING and life.cause is Cause.USER and event.save
    ):
        return life, ()
    reason = because("asked_by_user", owner=event.owner)
    phase = Phase.SAVING if event.save else Phase.CULLING
    asking = (
        life.phase is Phase.SAVING
    )  # a request to save is out already; its answer counts for this one too
    life = _to(
        life, phase, now, cause=Cause.USER, reason=reason, owner=event.owner, not_before=None, silences=0
    )
    if not event.save:
        return life, (EndKernel(),)
    if asking:
        return life, ()
    return replace(life, saved=False), (AskToSave(), Record("save_requested", reason))


def _saved(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Saved)
    if life.phase is Phase.CULLING:
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
        return replace(life, silences=silences), (AskToSave(),)
    spacing = min(SILENT_SPACING, policy.idle_timeout or SILENT_SPACING)
    life = _to(life, Phase.WARNED, now, silences=silences, not_before=now.plus(spacing))
    return life, (Record("save_failed", reason),)


def _takes_recovery(life: Life, policy: Policy, now: Instant) -> bool:
    if policy.on_save_failure is OnSaveFailure.RECOVERY_COPY:
        return True
    if policy.on_save_failure is OnSaveFailure.NEVER or life.first_failure is None:
        return False
    return now.since(life.first_failure) >= policy.postpone_max


def _postponed(life: Life, reason: Reason, policy: Policy, now: Instant) -> Step:
    failures = life.failures + 1
    if life.cause is Cause.USER:
        return _cleared(life, Phase.IDLE, now, reason), (Record("save_failed", reason),)
    wait = min(FIRST_POSTPONE * 2 ** min(failures - 1, 10), LONGEST_POSTPONE)
    until = now.plus(
        min(wait, max(policy.idle_timeout, timedelta(seconds=1)) if policy.idle_timeout else wait)
    )
    first = life.first_failure or now
    life = _to(life, Phase.WARNED, now, failures=failures, first_failure=first, not_before=until)
    return life, (Record("save_failed", reason),)


def _culled(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    assert isinstance(event, Culled)
    reason = life.reason or because("asked_by_user", owner="")
    if event.reason is None:
        return _to(life, Phase.CULLED, now), (Record("culled", reason),)
    retries = life.retries + 1
    until = now.plus(min(FIRST_RETRY * 2 ** min(retries - 1, 10), LONGEST_POSTPONE))
    life = _to(life, Phase.FAILED, now, reason=event.reason, retries=retries, not_before=until)
    return life, (Record("cull_failed", event.reason),)


def _restarted(life: Life, event: Event, policy: Policy, now: Instant) -> Step:
    if life.phase is Phase.CULLING:
        return life, ()
    after, actions = _cancelled(life, Phase.ACTIVE, now, because("restarted"))
    return replace(after, started=now), actions


_HANDLERS: Mapping[str, Callable[[Life, Event, Policy, Instant], Step]] = {
    "Judged": _judged,
    "Touched": _touched,
    "Kept": _kept,
    "KeepEnded": _keep_ended,
    "Asked": _asked,
    "Saved": _saved,
    "Culled": _culled,
    "Restarted": _restarted,
}
