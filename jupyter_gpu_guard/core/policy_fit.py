"""How the values of one kernel fit each other: defaults follow what was set, and what was set must not contradict.

One function, `complete`, knows both: it fills in what is missing and pulls into place what does not fit. Where it
would have to change a value that one author set, that is a contradiction and is refused when it is read. Where two
authors meet (an entry of the policy file and one of the config, or a choice of the user that tightens), the values
are pulled into place, so that what comes out is always consistent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from .policy_fields import DEFAULTS, Mode, Values, show, show_field
from .quantities import PolicyError, format_duration

NOTHING = timedelta(0)
#: As many rounds fit into the window at least: one sample proves nothing.
ROUNDS_PER_WINDOW = 3
#: A hole of fewer rounds is no hole: one round that comes late must not start the idle clock afresh.
ROUNDS_PER_GAP = 2


def complete(given: Values, interval: timedelta = NOTHING) -> dict[str, Any]:
    """All values of a kernel. `given`: what was set; `interval`: the sample_interval that was set, 0 if none was."""
    full = {**DEFAULTS, **given}
    if "cull_stalled_after" not in given:
        full["cull_stalled_after"] = max(full["cull_stalled_after"], full["stalled_timeout"])
    full["stalled_timeout"] = _fitted_stall(full)
    if "keep_alive_total" not in given:
        full["keep_alive_total"] = max(full["keep_alive_total"], full["keep_alive_max"])
    full["keep_alive_max"] = min(full["keep_alive_max"], full["keep_alive_total"])
    full["window"] = _fitted_window(given.get("window"), full["idle_timeout"], interval)
    full["max_gap"] = max(full["max_gap"], ROUNDS_PER_GAP * interval)
    if "warm_up" not in given and full["idle_timeout"]:
        full["warm_up"] = min(full["warm_up"], full["idle_timeout"])
    full["warn_before"] = _fitted_leads("warn_before" in given, full)
    return full


def _fitted_stall(full: Values) -> timedelta:
    """Warned before it is culled. 0, never warned, goes only with never culled."""
    stalled: timedelta = full["stalled_timeout"]
    after: timedelta = full["cull_stalled_after"]
    if not stalled:
        return after if full["cull_stalled"] else stalled
    return min(stalled, after)


def _fitted_window(given: timedelta | None, idle: timedelta, interval: timedelta) -> timedelta:
    """A window that was set may be as long as idle_timeout; else it is at most half, but holds a few rounds."""
    least = ROUNDS_PER_WINDOW * interval
    if given is not None and given >= least and (not idle or given <= idle):
        return given
    window: timedelta = DEFAULTS["window"] if given is None else given
    if idle:
        window = min(window, idle / 2)
    return max(window, least)


def limits(full: Values) -> dict[str, timedelta]:
    """The spans at whose end a kernel is culled, by setting: every warning has to come before."""
    spans = {"idle_timeout": full["idle_timeout"], "max_runtime": full["max_runtime"]}
    if full["cull_stalled"]:
        spans["cull_stalled_after"] = full["cull_stalled_after"]
    return {name: span for name, span in spans.items() if span}


def _fitted_leads(were_given: bool, full: Values) -> tuple[timedelta, ...]:
    """Leads that were set are shorter than the shortest limit; else those at most half of it, or one of half."""
    leads: tuple[timedelta, ...] = full["warn_before"]
    if not leads:
        if full["mode"] is Mode.OBSERVE:
            return leads
        leads = DEFAULTS["warn_before"]
        were_given = False
    shortest = min(limits(full).values(), default=None)
    if shortest is None or (were_given and leads[0] < shortest):
        return leads
    return tuple(lead for lead in leads if lead <= shortest / 2) or (shortest / 2,)


def contradictions(
    given: Values, sources: Mapping[str, str], interval: timedelta = NOTHING
) -> list[PolicyError]:
    """What was set and does not fit what else was set, one error for each such setting, naming both."""
    full = complete(given, interval)
    errors = [
        PolicyError(
            key, show_field(key, value), _clash(key, given, full, sources, interval), where=sources[key]
        )
        for key, value in given.items()
        if full[key] != value
    ]
    idle = full["idle_timeout"]
    if idle and ROUNDS_PER_WINDOW * interval > idle and not errors:
        most = format_duration(idle / ROUNDS_PER_WINDOW)
        expected = f"at most a third of {_named('idle_timeout', full, sources)}, {most}"
        errors.append(PolicyError("sample_interval", format_duration(interval), expected))
    return errors


def _clash(key: str, given: Values, full: Values, sources: Mapping[str, str], interval: timedelta) -> str:
    """What would be right for `key`, and because of which other setting."""
    if key == "max_gap":
        return f"at least twice sample_interval ({format_duration(interval)})"
    if key == "window" and given[key] < ROUNDS_PER_WINDOW * interval:
        return f"at least three times sample_interval ({format_duration(interval)})"
    if key == "window":
        return f"at most {_named('idle_timeout', full, sources)}"
    if key == "keep_alive_max":
        return f"at most {_named('keep_alive_total', full, sources)}"
    if key == "stalled_timeout" and not given[key]:
        return f"more than 0 with {_named('cull_stalled', full, sources)}"
    if key == "stalled_timeout":
        return f"at most {_named('cull_stalled_after', full, sources)}"
    if not given[key]:
        return f"at least one lead time with {_named('mode', full, sources)}"
    spans = limits(full)
    return f"lead times shorter than {_named(min(spans, key=spans.__getitem__), full, sources)}"


def _named(key: str, full: Values, sources: Mapping[str, str]) -> str:
    return f"{key} = {show(full[key])} ({sources.get(key, 'default')})"
