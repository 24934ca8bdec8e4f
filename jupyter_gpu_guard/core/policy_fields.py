"""The per-kernel settings, one row each: how it is read, its default, and which of two values is the tighter one.

Whether the values of one kernel fit each other stands in `policy_fit`; which of several applies, in `policy`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from .quantities import (
    PolicyError,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_choice,
    parse_duration,
    parse_flag,
    parse_number,
)

#: Values by the name of their field; each has the type that `Policy` gives that field.
Values = Mapping[str, Any]


class Mode(str, Enum):
    """What is done: record only, warn people, or act."""

    OBSERVE = "observe"
    WARN = "warn"
    ENFORCE = "enforce"


class Action(str, Enum):
    """What a cull ends."""

    KERNEL = "kernel"


class Scope(str, Enum):
    """Which kernels: those that hold GPU memory or a context, or every one."""

    GPU = "gpu"
    ALL = "all"


class OnSaveFailure(str, Enum):
    """What follows when a save was answered and failed."""

    POSTPONE = "postpone"
    RECOVERY_COPY = "recovery-copy"
    NEVER = "never"


class UnknownPolicy(str, Enum):
    """What follows where GPU use is unreadable by nature: nothing, or judging by the other signals, slower."""

    NEVER = "never"
    OTHER_SIGNALS = "other-signals"


#: Settings of the whole server. In a policy they would do nothing, so they are refused there.
NOT_PER_KERNEL = frozenset(
    {
        "sample_interval",
        "history_path",
        "gpu_source",
        "recovery_dir",
        "shield_working",
        "policies",
        "policy_file",
    }
)


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One per-kernel setting.

    `default` is written as an admin would write it. `parse(value, key=...)` raises PolicyError. `looseness` orders
    values: the smaller, the tighter (the sooner, or the more surely, a kernel goes).
    """

    name: str
    default: object
    parse: Callable[..., Any]
    looseness: Callable[[Any], float]


def _seconds(span: timedelta) -> float:
    return span.total_seconds()


def _seconds_or_never(span: timedelta) -> float:
    return span.total_seconds() if span else math.inf


def _more_is_tighter(value: float) -> float:
    return -value


def _longer_is_tighter(span: timedelta) -> float:
    return -span.total_seconds()


def _longest_lead(leads: tuple[timedelta, ...]) -> float:
    """No lead counts as the loosest: it must not be the way to be left unwarned."""
    return leads[0].total_seconds() if leads else math.inf


def _rank(*loosest_last: Enum) -> Callable[[Enum], float]:
    return lambda value: float(loosest_last.index(value))


def _span(*, zero_ok: bool = True) -> Callable[..., timedelta]:
    return lambda value, key: parse_duration(value, key=key, zero_ok=zero_ok)


def _number(most: float) -> Callable[..., float]:
    return lambda value, key: parse_number(value, key=key, most=most)


def _choice(choices: type[Enum]) -> Callable[..., Enum]:
    return lambda value, key: parse_choice(value, choices, key=key)


def parse_leads(value: object, *, key: str) -> tuple[timedelta, ...]:
    """The lead times of the warnings, longest first, each once. Raises PolicyError."""
    if not isinstance(value, list | tuple):
        raise PolicyError(key, value, 'a list of durations such as ["60m", "15m", "5m"]')
    leads = {parse_duration(item, key=f"{key}[{i}]", zero_ok=False) for i, item in enumerate(value)}
    return tuple(sorted(leads, reverse=True))


FIELDS: tuple[PolicyField, ...] = (
    PolicyField("mode", "observe", _choice(Mode), _rank(Mode.ENFORCE, Mode.WARN, Mode.OBSERVE)),
    PolicyField("action", "kernel", _choice(Action), _rank(Action.KERNEL)),
    PolicyField("scope", "gpu", _choice(Scope), _rank(Scope.ALL, Scope.GPU)),
    PolicyField("idle_timeout", "2h", _span(), _seconds_or_never),
    PolicyField("after_run_factor", 0.5, _number(100), float),
    PolicyField("after_run_max", "8h", _span(), _seconds),
    PolicyField("max_runtime", 0, _span(), _seconds_or_never),
    PolicyField("stalled_timeout", "2h", _span(), _seconds_or_never),
    PolicyField("cull_stalled", False, parse_flag, _more_is_tighter),
    PolicyField("cull_stalled_after", "8h", _span(zero_ok=False), _seconds),
    PolicyField("warn_before", ("60m", "15m", "5m"), parse_leads, _longest_lead),
    PolicyField("save_timeout", "60s", _span(zero_ok=False), _seconds),
    PolicyField(
        "on_save_failure",
        "postpone",
        _choice(OnSaveFailure),
        _rank(OnSaveFailure.RECOVERY_COPY, OnSaveFailure.POSTPONE, OnSaveFailure.NEVER),
    ),
    PolicyField("postpone_max", "24h", _span(), _seconds),
    PolicyField("keep_alive_max", "16h", _span(), _seconds),
    PolicyField("keep_alive_total", "24h", _span(), _seconds),
    PolicyField("window", "10m", _span(zero_ok=False), _seconds),
    PolicyField("max_gap", "3m", _span(zero_ok=False), _longer_is_tighter),
    PolicyField("warm_up", "15m", _span(), _seconds),
    PolicyField(
        "unknown_policy",
        "never",
        _choice(UnknownPolicy),
        _rank(UnknownPolicy.OTHER_SIGNALS, UnknownPolicy.NEVER),
    ),
    PolicyField("gpu_idle_below", 0.02, _number(1), _more_is_tighter),
    PolicyField("cpu_idle_below", 0.10, _number(1024), _more_is_tighter),
    PolicyField("io_idle_below", "256KiB", parse_bytes, _more_is_tighter),
    PolicyField("end_detached", False, parse_flag, _more_is_tighter),
)
BY_NAME: Mapping[str, PolicyField] = {field.name: field for field in FIELDS}
DEFAULTS: Values = {field.name: field.parse(field.default, key=field.name) for field in FIELDS}


def parse_values(
    raw: Mapping[str, object],
    errors: list[PolicyError],
    *,
    also: Iterable[str] = (),
    where: str = "",
    entry: int | None = None,
) -> dict[str, Any]:
    """The settings in `raw`, read. Each mistake goes to `errors`; keys in `also` are somebody else's to read."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        field = BY_NAME.get(key)
        if field is None:
            if key not in also:
                errors.append(unknown_key(key, value, [*BY_NAME, *also], where=where, entry=entry))
            continue
        try:
            values[key] = field.parse(value, key=key)
        except PolicyError as error:
            error.where, error.entry = where, entry
            errors.append(error)
    return values


def unknown_key(
    key: str, value: object, known: Iterable[str], *, where: str = "", entry: int | None = None
) -> PolicyError:
    """What to say of a key that is not one of `known`: the likeliest slip, or all that is known."""
    known = list(known)
    if key in NOT_PER_KERNEL:
        expected = f"no {key} here: it is not per kernel, set GpuGuard.{key} in the server's config"
    elif close := difflib.get_close_matches(key, known, n=1):
        expected = f"a known key: did you mean {close[0]}?"
    else:
        expected = f"a known key, one of {', '.join(sorted(known))}"
    return PolicyError(key, value, expected, where=where, entry=entry)


def show(value: object) -> object:
    """A value as an admin would write it in TOML or JSON."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [show(item) for item in value]
    return value


def show_field(name: str, value: object) -> object:
    """`show`, with sizes in their unit."""
    return format_bytes(value) if name == "io_idle_below" and isinstance(value, int) else show(value)
