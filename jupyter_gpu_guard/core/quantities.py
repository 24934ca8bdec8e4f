"""Reading and writing of the quantities that a person configures: durations, bytes, numbers, switches, choices.

One road for command line, config, TOML and REST, so that `90`, `"90s"` and `"1m30s"` mean the same everywhere and a
mistake reads the same everywhere. What the values are for, and whether they fit each other, is none of its business.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import TypeVar

Choice = TypeVar("Choice", bound=Enum)

#: Longer spans are taken for slips; they also keep "now + span" far from the end of the calendar.
LONGEST = timedelta(days=3650)
#: Shorter ones could vanish when they are halved or cut in three.
SHORTEST = timedelta(milliseconds=1)

_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_BARE = re.compile(_NUMBER)
_SPAN = re.compile(r"\s*".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _MICROSECONDS))
_SIZE = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[A-Za-z]*)")
_BYTES = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_BYTES |= {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_MOST_BYTES = 2**50
_MOST_SHOWN = 80


class PolicyError(Exception):
    """A setting that is wrong. `str()` is one line that names the key, the value and what would be right.

    `where` says which file, line or entry holds it, if any; `entry` is the index of the entry in its list.
    """

    def __init__(
        self, key: str, value: object, expected: str, *, where: str = "", entry: int | None = None
    ) -> None:
        super().__init__(key, value, expected)
        self.key, self.value, self.expected = key, value, expected
        self.where, self.entry = where, entry

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > _MOST_SHOWN:
            shown = shown[: _MOST_SHOWN - 1] + "…"
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.key} = {shown}: expected {self.expected}"


def parse_duration(value: object, *, key: str, zero_ok: bool = True) -> timedelta:
    """A span from seconds (`90`, `1.5`, `"90"`) or a text such as `"90s"`, `"30m"`, `"1h30m"`, `"2d"`.

    Units stand from the largest to the smallest, each at most once. Raises PolicyError for anything else, a bool,
    a negative value, nan, and for spans beyond 3650 days or (but for 0) under a millisecond.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    microseconds = _span(value)
    if microseconds is None or microseconds < 0 or (not zero_ok and microseconds == 0):
        least = "of 0 or more" if zero_ok else "longer than 0"
        raise PolicyError(
            key, value, f'a duration {least}: seconds, or a text such as "90s", "30m", "1h30m" or "2d"'
        )
    if microseconds > LONGEST / timedelta(microseconds=1):
        raise PolicyError(key, value, f"a duration of at most {format_duration(LONGEST)}")
    span = timedelta(microseconds=round(microseconds))
    if microseconds > 0 and span < SHORTEST:
        raise PolicyError(key, value, "a duration of at least 0.001 s" + (", or 0" if zero_ok else ""))
    return span


def _span(value: object) -> Decimal | None:
    """Microseconds, or None for what is no duration."""
    number = _number(value)
    if number is not None:
        return number * _MICROSECONDS["s"]
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _BARE.fullmatch(text):
        return Decimal(text) * _MICROSECONDS["s"]
    match = _SPAN.fullmatch(text)
    parts = {unit: part for unit, part in match.groupdict().items() if part} if match else {}
    if not parts:
        return None
    return sum((Decimal(part) * _MICROSECONDS[unit] for unit, part in parts.items()), Decimal(0))


def _number(value: object) -> Decimal | None:
    """The exact number; None for a bool (which Python counts among the ints), nan, infinity and everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return Decimal(value)


def format_duration(span: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same span: `0`, `1m30s`, `2d`, `0.25s`."""
    rest = span // timedelta(microseconds=1)
    text = ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _MICROSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    if rest:
        seconds = format(Decimal(rest) / _MICROSECONDS["s"], "f")
        text += f"{seconds.rstrip('0').rstrip('.') if '.' in seconds else seconds}s"
    return text or "0"


def parse_bytes(value: object, *, key: str) -> int:
    """Bytes from a number or a text: `262144`, `"256KiB"`, `"1MB"`, `"4GiB"`. KiB is 1024, kB and KB are 1000.

    Raises PolicyError for a bool, a negative or broken number, an unknown unit, and parts of a byte.
    """
    size = _number(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and match["unit"] in _BYTES:
        size = Decimal(match["number"]) * _BYTES[match["unit"]]
    if size is None or size < 0 or size > _MOST_BYTES or size != size.to_integral_value():
        raise PolicyError(
            key, value, 'whole bytes from 0 to 1024TiB: a number, or a text such as "256KiB", "1MB" or "4GiB"'
        )
    return int(size)


def format_bytes(size: int) -> str:
    """The text that `parse_bytes` reads back as the same size, in the largest binary unit that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


def parse_number(value: object, *, key: str, most: float) -> float:
    """A number from 0 to `most`. Raises PolicyError for anything else, a bool and nan among them."""
    number = _number(value)
    if number is None or not 0 <= number <= most:
        raise PolicyError(key, value, f"a number from 0 to {most:g}")
    return float(number)


def parse_flag(value: object, *, key: str) -> bool:
    """True or False and nothing that merely looks like it. Raises PolicyError."""
    if not isinstance(value, bool):
        raise PolicyError(key, value, "true or false")
    return value


def parse_choice(value: object, choices: type[Choice], *, key: str) -> Choice:
    """The member of `choices` with that value. Raises PolicyError, which lists them."""
    for choice in choices:
        if isinstance(value, str) and value == choice.value:
            return choice
    listed = ", ".join(f'"{choice.value}"' for choice in choices)
    raise PolicyError(key, value, f"one of {listed}" if len(choices) > 1 else listed)


def parse_text(value: object, *, key: str) -> str:
    """A text, stripped. Raises PolicyError."""
    if not isinstance(value, str):
        raise PolicyError(key, value, "a text")
    return value.strip()
