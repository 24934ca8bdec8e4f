"""What a fresh look does to a life: it comes to rest, is warned, is saved, or what was under way is over.

Not here: what people do and what comes of a save or a shutdown (lifecycle).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from .activity import iso
from .deadline import Cause, Deadline, Warning_, idle_timeout, next_deadline, scoped
from .life import (
    Action,
    EndKernel,
    Judged,
    Life,
    LookAgain,
    Looked,
    Phase,
    Record,
    Step,
    Warn,
    asking,
    cancelled,
    moved,
)
from .model import Instant, Verdict, VerdictKind
from .policy import Mode, Policy
from .reasons import Reason, because

#: A cull needs so many good samples since idle_since.
MIN_SAMPLES = 3

_NONE = timedelta(0)
_STRICTNESS = {Mode.OBSERVE: 0, Mode.WARN: 1, Mode.ENFORCE: 2}


def judged(life: Life, event: Judged, policy: Policy, now: Instant) -> Step:
    """One round's look."""
    verdict = event.verdict
    if life.phase is Phase.CULLING:
        return life, ()
    life = _of_this_mode(life, policy, now)
    if over(life, verdict, policy):
        idle = verdict.kind is VerdictKind.IDLE and life.phase is not Phase.FAILED
        return cancelled(life, Phase.IDLE if idle else Phase.ACTIVE, now, _why_over(life, verdict))
    if life.phase is Phase.SAVING:
        return _after_save(life, event, policy, now)
    if life.phase is Phase.FAILED:
        return _retry(life, event, policy, now)
    return _quiet_or_warned(life, event, policy, now)


def looked(life: Life, event: Looked, policy: Policy, now: Instant) -> Step:
    """The last look: what was decided goes on only if it still holds now."""
    if over(life, event.verdict, policy):
        return cancelled(life, Phase.ACTIVE, now, event.verdict.reason)
    if life.cause is not Cause.USER and not _may_end(life, event.verdict, policy, event.hold):
        return moved(life, Phase.WARNED, now, saved=False), ()
    return replace(life, ending=True), (EndKernel(),)


def over(life: Life, verdict: Verdict, policy: Policy) -> bool:
    """Whether what the kernel was warned for, or is being ended for, no longer holds. What can't be told is not over:
    it pauses."""
    if life.cause is None or life.cause is Cause.USER:
        return False
    if policy.mode is Mode.OBSERVE or (policy.mode is Mode.WARN and life.phase is not Phase.WARNED):
        return True
    if not scoped(verdict, policy):
        return True
    if life.cause is Cause.MAX_RUNTIME:
        return policy.max_runtime <= _NONE or verdict.held_for <= _NONE
    if verdict.kind is VerdictKind.ACTIVE:
        return True
    if life.cause is Cause.STALLED:
        return verdict.kind is VerdictKind.IDLE
    if not _afresh(life, verdict) or _before_the_warning(life, verdict):
        return False
    return verdict.idle_for < idle_timeout(verdict, policy)[0]


def _before_the_warning(life: Life, verdict: Verdict) -> bool:
    """An input from before the warning that was told of only now (a page tells of its last one when it saves). It moves
    the deadline by a little, and the warning, given after it, holds."""
    given = [w.given.at for w in life.warnings if w.cause is Cause.IDLE and w.given is not None]
    return bool(given) and verdict.idle_since is not None and verdict.idle_since < min(given)


def _why_over(life: Life, verdict: Verdict) -> Reason:
    if verdict.kind is VerdictKind.IDLE and verdict.idle_since is not None and _afresh(life, verdict):
        return because("counted_anew", since=iso(verdict.idle_since))
    return verdict.reason


def _of_this_mode(life: Life, policy: Policy, now: Instant) -> Life:
    """People were told what the mode does. A stricter one begins with its first lead: what was said before, or to
    nobody, is no warning of it."""
    before = life.mode
    if before is policy.mode:
        return life
    life = replace(life, mode=policy.mode)
    if before is None or _STRICTNESS[policy.mode] <= _STRICTNESS[before]:
        return life
    life = _forgetting(life)
    return moved(life, Phase.IDLE, now, cause=None) if life.phase is Phase.WARNED else life


def _afresh(life: Life, verdict: Verdict) -> bool:
    """The idle clock was started afresh (a long hole, a jump of the clock): what was counted before is void."""
    since, before = verdict.idle_since, life.idle_since
    return since is not None and before is not None and since > before


def _may_end(life: Life, verdict: Verdict, policy: Policy, hold: Reason | None) -> bool:
    """Unknown is never idle; maximum runtime alone runs on without a verdict. Nothing is ended while it is held, nor
    before its timeout is over by what is known now."""
    if hold is not None:
        return False
    if life.cause is Cause.MAX_RUNTIME:
        return True
    if life.cause is Cause.IDLE and verdict.idle_for < idle_timeout(verdict, policy)[0]:
        return False
    wanted = VerdictKind.STALLED if life.cause is Cause.STALLED else VerdictKind.IDLE
    return verdict.kind is wanted and verdict.good_samples >= MIN_SAMPLES


def _after_save(life: Life, event: Judged, policy: Policy, now: Instant) -> Step:
    """Saving is under way, or done: the look after it decides."""
    if not life.saved:
        return life, ()
    if life.cause is not Cause.USER and not _may_end(life, event.verdict, policy, event.hold):
        return moved(
            life, Phase.WARNED, now, saved=False
        ), ()  # what was saved gets old: it is saved again in time
    return moved(life, Phase.CULLING, now, ending=False), (LookAgain(),)


def _retry(life: Life, event: Judged, policy: Policy, now: Instant) -> Step:
    """After a failed shutdown: not before its time, and saved anew, for its user has gone on."""
    waiting = life.not_before is not None and now < life.not_before
    allowed = life.cause is Cause.USER or _may_end(life, event.verdict, policy, event.hold)
    if waiting or not allowed or life.reason is None:
        return life, ()
    life, ask = asking(life, now, not_before=None)
    return life, (ask, Record("save_requested", event.verdict.reason))


def _quiet_or_warned(life: Life, event: Judged, policy: Policy, now: Instant) -> Step:
    verdict = event.verdict
    if life.phase is not Phase.WARNED:
        phase = Phase.IDLE if verdict.kind in (VerdictKind.IDLE, VerdictKind.STALLED) else Phase.ACTIVE
        phase = life.phase if verdict.kind is VerdictKind.UNKNOWN else phase
        life = moved(life, phase, now, reason=verdict.reason)
        if phase is Phase.ACTIVE or _afresh(life, verdict):
            life = _forgetting(life)
    given = life.shadow if policy.mode is Mode.OBSERVE else life.warnings
    due = next_deadline(
        verdict, policy, life.started, given, life.keep_until, life.not_before, now, life.keep_owner
    )
    life, actions = _stuck(life, verdict, policy, now)
    if due is None:
        return life, actions
    if policy.mode is Mode.OBSERVE:
        return _would(life, event, due, policy, now, actions)
    return _warn_or_save(life, event, due, policy, now, actions)


def _forgetting(life: Life) -> Life:
    """Without what was said of the idleness that has ended; most lives have nothing to forget."""
    if not (life.noted or life.warnings or life.shadow or life.idle_since):
        return life
    return replace(life, noted=frozenset(), warnings=(), shadow=(), idle_since=None)


def _stuck(life: Life, verdict: Verdict, policy: Policy, now: Instant) -> Step:
    """A kernel that is stuck is told so once, whether or not the policy would ever end it."""
    due = verdict.kind is VerdictKind.STALLED and verdict.stalled_for >= policy.stalled_timeout > _NONE
    if not due or "stalled" in life.noted or not scoped(verdict, policy):
        return life, ()
    life = replace(life, noted=life.noted | {"stalled"})
    if policy.mode is Mode.OBSERVE:
        return life, (Record("would_warn", verdict.reason),)
    warning = Warning_(Cause.STALLED, None, now)
    life = replace(life, warnings=(*life.warnings, warning))
    return life, (Warn(warning), Record("warned", verdict.reason))


def _would(
    life: Life, event: Judged, due: Deadline, policy: Policy, now: Instant, actions: tuple[Action, ...]
) -> Step:
    """Observe mode: write down, once each, what would have been done. The warning is kept, so that the end that would
    have followed has its full lead, but given to nobody."""
    if "would_warn" not in life.noted:
        lead = policy.warn_before[0] if policy.warn_before else _NONE
        if now < due.at.plus(-lead) or not _evident(due, event.verdict):
            return life, actions
        noted, warning = life.noted | {"would_warn"}, Warning_(due.cause, lead, now)
        life = replace(life, noted=noted, shadow=(warning,), idle_since=event.verdict.idle_since)
        return life, (*actions, Record("would_warn", due.basis))
    if "would_cull" in life.noted or now < due.at or not _evident(due, event.verdict):
        return life, actions
    return replace(life, noted=life.noted | {"would_cull"}), (*actions, Record("would_cull", due.basis))


def _evident(due: Deadline, verdict: Verdict) -> bool:
    """Unknown, or activity that has just ended, warns of nothing; maximum runtime alone needs no verdict."""
    return due.cause is Cause.MAX_RUNTIME or verdict.kind in (VerdictKind.IDLE, VerdictKind.STALLED)


def _warn_or_save(
    life: Life, event: Judged, due: Deadline, policy: Policy, now: Instant, actions: tuple[Action, ...]
) -> Step:
    given = {w.lead for w in life.warnings if w.cause is due.cause}
    leads = [lead for lead in policy.warn_before if lead not in given and now >= due.at.plus(-lead)]
    if leads and _evident(due, event.verdict):
        return _warn(life, event.verdict, due, leads, now, actions)
    if life.phase is not Phase.WARNED or now < due.at:
        return life, actions
    if policy.mode is Mode.WARN:
        if "would_cull" in life.noted:
            return life, actions
        return replace(life, noted=life.noted | {"would_cull"}), (*actions, Record("would_cull", due.basis))
    if not _may_end(life, event.verdict, policy, event.hold):
        return life, actions
    life, ask = asking(life, now, cause=due.cause, reason=due.basis, not_before=None)
    return life, (*actions, ask, Record("save_requested", due.basis))


def _warn(
    life: Life,
    verdict: Verdict,
    due: Deadline,
    leads: list[timedelta],
    now: Instant,
    actions: tuple[Action, ...],
) -> Step:
    """Of several leads that are due at once only the shortest tells the truth about the time left."""
    warning = Warning_(due.cause, leads[-1], now)
    kept = tuple(w for w in life.warnings if w.cause is due.cause)
    skipped = tuple(Warning_(due.cause, lead, None) for lead in leads[:-1])
    life = moved(
        life,
        Phase.WARNED,
        now,
        cause=due.cause,
        reason=due.basis,
        idle_since=verdict.idle_since,
        warnings=(*kept, *skipped, warning),
    )
    return life, (*actions, Warn(warning), Record("warned", due.basis))
