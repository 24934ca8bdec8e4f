"""One kernel's standing under the guard, what may happen to it, and what is asked for in return.

Not here: what follows what (lifecycle).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from .deadline import Cause, Warning_
from .model import Instant, Verdict
from .policy import Mode
from .reasons import Reason


class Phase(str, Enum):
    """Where a kernel stands; the `state` that users and dashboards see."""

    ACTIVE = "active"
    IDLE = "idle"
    WARNED = "warned"
    SAVING = "saving"
    CULLING = "culling"
    CULLED = "culled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Life:
    """One kernel's standing. Times are Instants, except `keep_until`: people mean the wall clock by it."""

    kernel_id: str
    phase: Phase
    since: Instant
    started: Instant
    cause: Cause | None = None
    reason: Reason | None = None
    owner: str | None = None  # who asked, for cause `user`
    idle_since: datetime | None = None
    warnings: tuple[Warning_, ...] = ()
    #: Observe mode's own: the warning that nobody was given.
    shadow: tuple[Warning_, ...] = ()
    mode: Mode | None = None  # the mode of the last look
    keep_until: datetime | None = None
    keep_owner: str | None = None
    not_before: Instant | None = None
    failures: int = 0
    first_failure: Instant | None = None
    silences: int = 0
    #: Which request to save is under way: an answer to an older one says nothing.
    attempt: int = 0
    saved: bool = False  # its outcome has come; the next look decides
    ending: bool = False  # in culling: the last look is over and the shutdown has begun
    retries: int = 0
    #: Of `would_warn`, `would_cull`, `stalled`: recorded once for each idle interval.
    noted: frozenset[str] = frozenset()


def moved(life: Life, phase: Phase, now: Instant, **changes: object) -> Life:
    """The life in that phase, with these changes."""
    since = life.since if life.phase is phase else now
    return replace(life, phase=phase, since=since, **changes)  # type: ignore[arg-type]


def quieted(life: Life, phase: Phase, now: Instant, reason: Reason) -> Life:
    """Back to a quiet life: warnings, postponements and the cause are forgotten; extensions stay, and so does the
    number of the last attempt."""
    fresh = Life(life.kernel_id, life.phase, life.since, life.started, attempt=life.attempt, mode=life.mode)
    kept = replace(fresh, keep_until=life.keep_until, keep_owner=life.keep_owner, reason=reason)
    return moved(kept, phase, now)


def cancelled(life: Life, phase: Phase, now: Instant, reason: Reason) -> Step:
    """End what was under way, and write that down if anybody had been told."""
    told = life.phase in (Phase.WARNED, Phase.SAVING, Phase.CULLING, Phase.FAILED)
    actions: tuple[Action, ...] = (Record("cull_cancelled", reason),) if told else ()
    return quieted(life, phase, now, reason), actions


def asking(life: Life, now: Instant, **changes: object) -> tuple[Life, Action]:
    """Begin a save: a new attempt, so that no answer to an older one counts for it."""
    life = moved(life, Phase.SAVING, now, saved=False, attempt=life.attempt + 1, **changes)
    return life, AskToSave(life.attempt)


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A fresh look. `hold`: why nothing may be ended now (policy invalid, history not writable)."""

    verdict: Verdict
    hold: Reason | None = None


@dataclass(frozen=True, slots=True)
class Touched:
    """Activity between two looks: an execution or a person (`code` of the reason tells which)."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Kept:
    """Somebody extended the kernel's time."""

    until: datetime
    owner: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class KeepEnded:
    """The extension was taken back."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A person asked for the kernel to be ended, with or without saving."""

    owner: str
    save: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A save request ended: `saved`, `nothing_open`, `recovered` (failed, but a recovery copy is verified), `failed`,
    `silent`."""

    kind: str
    reason: Reason | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Looked:
    """The last look before the shutdown: taken after everything else, with nothing between it and the shutdown."""

    verdict: Verdict
    hold: Reason | None = None


@dataclass(frozen=True, slots=True)
class Culled:
    """The shutdown ended. `reason` says what went wrong; None: the processes are gone."""

    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """The kernel has a new process."""


Event = Judged | Touched | Kept | KeepEnded | Asked | Saved | Looked | Culled | Restarted


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Warn:
    """Give this warning on every channel."""

    warning: Warning_


@dataclass(frozen=True, slots=True)
class AskToSave:
    """Ask every front end that has a document of this kernel open; `attempt` comes back with the outcome."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Look once more, and come back with `Looked`."""


@dataclass(frozen=True, slots=True)
class EndKernel:
    """Interrupt if busy, shut down, confirm."""


@dataclass(frozen=True, slots=True)
class Record:
    """Write this down, once: `action` of the event schema."""

    action: str
    reason: Reason


Action = Warn | AskToSave | LookAgain | EndKernel | Record
Step = tuple[Life, tuple[Action, ...]]
