"""One kernel's standing under the guard, what may happen to it, and what is asked for in return.

Not here: what follows what (lifecycle).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from .deadline import Cause, Warning_
from .model import Instant, Verdict
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
    keep_until: datetime | None = None
    keep_owner: str | None = None
    not_before: Instant | None = None
    failures: int = 0
    first_failure: Instant | None = None
    silences: int = 0
    #: The save's outcome has come; the next look decides.
    saved: bool = False
    retries: int = 0
    #: Of `would_warn`, `would_cull`, `stalled`: recorded once for each idle interval.
    noted: frozenset[str] = frozenset()


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A fresh look. `hold`: why nothing may be ended now (policy invalid, history not writable)."""

    verdict: Verdict
    hold: Reason | None = None


@dataclass(frozen=True, slots=True)
class Touched:
    """Activity between two looks: an execution or a person."""

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


@dataclass(frozen=True, slots=True)
class Culled:
    """The shutdown ended. `reason` says what went wrong; None: the processes are gone."""

    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """The kernel has a new process."""


Event = Judged | Touched | Kept | KeepEnded | Asked | Saved | Culled | Restarted


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Warn:
    """Give this warning on every channel."""

    warning: Warning_


@dataclass(frozen=True, slots=True)
class AskToSave:
    """Ask every front end that has a document of this kernel open."""


@dataclass(frozen=True, slots=True)
class EndKernel:
    """Interrupt if busy, shut down, confirm."""


@dataclass(frozen=True, slots=True)
class Record:
    """Write this down, once: `action` of the event schema."""

    action: str
    reason: Reason


Action = Warn | AskToSave | EndKernel | Record
