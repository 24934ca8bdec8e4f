"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOTHING_TO_DO = "Nothing to do."


class Level(str, Enum):
    """`fail`: the guard can't do its work here. `warn`: a part of it, or something that may be as it should."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, in one line, and the remedy in a sentence."""

    name: str
    status: Level
    found: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        """`{name, status, found, remedy}`."""
        return {"name": self.name, "status": self.status.value, "found": self.found, "remedy": self.remedy}


def ok(name: str, found: str, remedy: str = NOTHING_TO_DO) -> Finding:
    """All is well; a remedy is for those who expected otherwise."""
    return Finding(name, Level.OK, found, remedy)


def warn(name: str, found: str, remedy: str) -> Finding:
    """Worth a look, no failure."""
    return Finding(name, Level.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> Finding:
    """A failed check."""
    return Finding(name, Level.FAIL, found, remedy)
