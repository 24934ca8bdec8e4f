"""How far the warnings of a kernel came: sent to a page that shows them, and seen on one.

For the record alone. A warning is given when it is offered on every channel; no decision asks what became of it.

Not here: how a warning travels (stream), how a page tells that it was seen (routes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from .core.deadline import Warning_
from .presence import MAX_ID_LENGTH, BadReport
from .record import iso

#: So many warnings may be told of in one report.
MAX_SEEN = 100
_KEYS = ("kernel_id", "given_at")
_GIVEN_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Seen:
    """A page says that it showed the warning of this kernel that has this `at`."""

    kernel_id: str
    given_at: str


@dataclass(frozen=True, slots=True)
class Reach:
    """When a warning was first sent to a page that shows it, and when a page first told that it was seen; None: not
    that we know."""

    delivered: datetime | None = None
    seen: datetime | None = None

    def to_wire(self) -> dict[str, str | None]:
        """`{delivered_at, seen_at}`."""
        return {
            "delivered_at": None if self.delivered is None else iso(self.delivered),
            "seen_at": None if self.seen is None else iso(self.seen),
        }


class Reaches:
    """Of the warnings of one kernel. The first delivery and the first sight count."""

    def __init__(self) -> None:
        self._known: dict[Warning_, Reach] = {}

    def of(self, warning: Warning_) -> Reach:
        """How far this warning came."""
        return self._known.get(warning, Reach())

    def forget_all_but(self, warnings: Iterable[Warning_]) -> None:
        """Only these stand now."""
        standing = set(warnings)
        self._known = {warning: reach for warning, reach in self._known.items() if warning in standing}

    def delivered(self, warning: Warning_, now: datetime) -> bool:
        """It was sent to a page that shows it. False when that was known."""
        reach = self.of(warning)
        if reach.delivered is not None:
            return False
        self._known[warning] = replace(reach, delivered=now)
        return True

    def seen(self, warning: Warning_, now: datetime) -> bool:
        """A page that somebody had before them showed it. False when that was known."""
        reach = self.of(warning)
        if reach.seen is not None:
            return False
        self._known[warning] = replace(reach, seen=now)
        return True


def parse_seen(value: object) -> tuple[Seen, ...]:
    """`warnings_seen` of a report, as it came from JSON. Raises BadReport, which names the key."""
    if not isinstance(value, list):
        raise BadReport("warnings_seen", "a list is needed")
    if len(value) > MAX_SEEN:
        raise BadReport("warnings_seen", f"at most {MAX_SEEN} are taken")
    return tuple(_seen(item, f"warnings_seen[{index}]") for index, item in enumerate(value))


def _seen(value: object, key: str) -> Seen:
    if not isinstance(value, Mapping):
        raise BadReport(key, "an object is needed")
    for name in _KEYS:
        if name not in value:
            raise BadReport(f"{key}.{name}", "it is missing")
    for name in value:
        if name not in _KEYS:
            raise BadReport(f"{key}.{name}", "there is no such key")
    kernel_id, given_at = value["kernel_id"], value["given_at"]
    if not isinstance(kernel_id, str) or not 0 < len(kernel_id) <= MAX_ID_LENGTH:
        raise BadReport(f"{key}.kernel_id", f"a text of 1 to {MAX_ID_LENGTH} characters is needed")
    if not _is_moment(given_at):
        raise BadReport(
            f"{key}.given_at", "the `at` of a warning is needed, such as 2026-03-02T13:00:00.000Z"
        )
    return Seen(kernel_id, given_at)


def _is_moment(value: object) -> bool:
    if not isinstance(value, str) or _GIVEN_AT.fullmatch(value) is None:
        return False
    try:
        datetime.fromisoformat(value[:-1])
    except ValueError:  # a 13th month
        return False
    return True
