"""Which policy applies to which kernel: the layers of configuration, their precedence, and what users may choose.

Precedence, for each setting by itself: command line and config, the entry of the policy file that matches, the policy
file's own top level, the entry of `policies` that matches, what code has set on the traits, defaults. In each list the
first entry that matches wins. An entry that matches by what the person at the kernel chooses (kernel name, path,
label) is held against the policy that would apply without it and may only tighten that, unless it is trusted.

How one setting is read stands in `policy_fields`, which kernels an entry is for in `policy_rules`, the layers in
`policy_layers`, and how the values of one kernel fit each other in `policy_fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from .policy_fields import BY_NAME, DEFAULTS, Action, Mode, OnSaveFailure, Scope, UnknownPolicy, Values
from .policy_fit import NOTHING, complete
from .policy_layers import PolicyLayers, parse_layers, stack
from .policy_rules import KernelFacts, Rule
from .quantities import PolicyError, parse_bytes, parse_duration

__all__ = [
    "Action",
    "KernelFacts",
    "Mode",
    "OnSaveFailure",
    "Policy",
    "PolicyError",
    "PolicyLayers",
    "Scope",
    "UnknownPolicy",
    "parse_bytes",
    "parse_duration",
    "parse_layers",
    "resolve",
]

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Policy:
    """The effective values for one kernel, consistent with each other. `name` is that of the entry that matched.

    A duration of 0 means never in `idle_timeout` and `stalled_timeout`, no limit in `max_runtime`, and none at all
    elsewhere. Ratios are from 0 to 1, CPU in cores, IO in bytes a second.
    """

    name: str
    mode: Mode
    action: Action
    scope: Scope
    idle_timeout: timedelta
    after_run_factor: float
    after_run_max: timedelta
    max_runtime: timedelta
    stalled_timeout: timedelta
    cull_stalled: bool
    cull_stalled_after: timedelta
    warn_before: tuple[timedelta, ...]  # longest first; shorter than what ends the kernel
    save_timeout: timedelta
    on_save_failure: OnSaveFailure
    postpone_max: timedelta
    keep_alive_max: timedelta
    keep_alive_total: timedelta
    window: timedelta
    max_gap: timedelta
    warm_up: timedelta
    unknown_policy: UnknownPolicy
    gpu_idle_below: float
    cpu_idle_below: float
    io_idle_below: int
    end_detached: bool = False  # whether a cull may end what detached itself but carries the kernel's marker
    #: Where each value came from, by the name of its field.
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    reason: str = ""
    expires: datetime | None = None

    def period(self) -> timedelta:
        """The "full minute" that CPU and IO are averaged over; shorter where the window is."""
        return min(_MINUTE, self.window)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What one list has for a kernel: the entry that holds in any case, and a user's choice that stands before it."""

    firm: Rule | None
    chosen: Rule | None

    @property
    def first(self) -> Rule | None:
        return self.chosen or self.firm


def _choose(rules: tuple[Rule, ...], facts: KernelFacts, now: datetime) -> _Choice:
    """The first entry that matches. If it may only tighten, also the first one below that may do more."""
    chosen = None
    for rule in rules:
        if not rule.applies(facts, now):
            continue
        if rule.may_loosen:
            return _Choice(rule, chosen)
        chosen = chosen or rule
    return _Choice(None, chosen)


def resolve(layers: PolicyLayers, facts: KernelFacts, now: datetime) -> Policy:
    """The policy of one kernel at `now` (aware). Never fails: what was read without error fits together."""
    interval = layers.interval or NOTHING
    in_file = _choose(layers.file_rules, facts, now)
    in_config = _choose(layers.rules, facts, now)
    given, sources = stack(layers, in_file.firm, in_config.firm)
    file_keys = {*layers.file_values, *(in_file.firm.values if in_file.firm else ())}
    for rule, above in ((in_config.chosen, {*layers.pinned, *file_keys}), (in_file.chosen, {*layers.pinned})):
        if rule is not None:
            _tighten(rule, above, given, sources, interval)
    full = complete(given, interval)
    origin = {key: _origin(key, given, full, sources) for key in full}
    if layers.observe_because:
        full["mode"], origin["mode"] = Mode.OBSERVE, layers.observe_because
    rule = in_file.first or in_config.first
    about = (rule.name, rule.reason, rule.expires) if rule else ("default", "", None)
    return Policy(name=about[0], sources=origin, reason=about[1], expires=about[2], **full)


def _tighten(
    rule: Rule, above: set[str], given: dict[str, Any], sources: dict[str, str], interval: timedelta
) -> None:
    """Take from a user's choice what is tighter than what holds without it, but for what a higher layer sets."""
    holds = complete(given, interval)
    for key, value in rule.values.items():
        looseness = BY_NAME[key].looseness
        if key not in above and looseness(value) <= looseness(holds[key]):
            given[key], sources[key] = value, rule.source


def _origin(key: str, given: Values, full: Values, sources: Mapping[str, str]) -> str:
    if key not in given:
        return "default" if full[key] == DEFAULTS[key] else "default, fitted"
    return sources[key] if full[key] == given[key] else f"{sources[key]}, fitted"
