"""The layers of configuration: read, checked and put on top of each other.

Which entries apply to a kernel, and what a user's choice may do, stands in `policy`; what never has an effect, in
`policy_vain`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from .policy_fields import Mode, Values, parse_values, show
from .policy_fit import NOTHING, ROUNDS_PER_GAP, ROUNDS_PER_WINDOW, complete, contradictions
from .policy_rules import Rule, parse_rules
from .quantities import PolicyError, parse_duration

PINNED = "command line or config"
FILE = "policy_file"
TRAIT = "trait"
DEFAULT_INTERVAL = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class PolicyLayers:
    """All that was configured, read and checked: what `resolve` chooses from."""

    pinned: Values = field(default_factory=dict, hash=False)
    file_values: Values = field(default_factory=dict, hash=False)
    file_rules: tuple[Rule, ...] = ()
    rules: tuple[Rule, ...] = ()
    traits: Values = field(default_factory=dict, hash=False)
    #: The sample_interval that was set; None when it follows the windows.
    interval: timedelta | None = None
    #: Why everything runs in `observe`, whatever else is set; empty when it does not.
    observe_because: str = ""

    @property
    def sample_interval(self) -> timedelta:
        """Time between rounds: as set, else 5 s, but at most a third of the shortest window that can come out."""
        if self.interval is not None:
            return self.interval
        spans = [DEFAULT_INTERVAL]
        for given, _ in _combinations(self):
            full = complete(given)
            spans += [full["window"] / ROUNDS_PER_WINDOW, full["max_gap"] / ROUNDS_PER_GAP]
            if full["idle_timeout"]:
                # Where two authors meet, the window may be cut to half of the shorter timeout.
                spans.append(full["idle_timeout"] / 2 / ROUNDS_PER_WINDOW)
        return min(spans)

    @property
    def mode(self) -> Mode:
        """The mode of a kernel that no entry matches."""
        if self.observe_because:
            return Mode.OBSERVE
        mode: Mode = complete(stack(self, None, None)[0])["mode"]
        return mode

    @property
    def hash(self) -> str:
        """SHA-256 of everything that decides, so that drift between servers shows. Comments and order don't count."""
        parts = {
            "pinned": self.pinned,
            "file": self.file_values,
            "file_rules": self.file_rules,
            "rules": self.rules,
            "traits": self.traits,
            "interval": self.interval,
            "observe": bool(self.observe_because),
        }
        return hashlib.sha256(json.dumps(_plain(parts), sort_keys=True).encode()).hexdigest()


def _plain(value: object) -> object:
    """Values as JSON has them, for hashing."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Rule):
        shown = (value.name, dict(value.match), value.values, value.expires, value.reason, value.trusted)
        return [_plain(part) for part in shown]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return show(value)


# --- reading ------------------------------------------------------------------------------------------------------


def check_layers(
    *,
    pinned: Mapping[str, object] | None = None,
    policies: object = (),
    traits: Mapping[str, object] | None = None,
    sample_interval: object = None,
) -> tuple[PolicyLayers, list[PolicyError]]:
    """Read what was configured, as it stands in config or TOML, and list every mistake. Layers with mistakes are
    not for use."""
    errors: list[PolicyError] = []
    interval = None
    try:
        if sample_interval is not None:
            interval = parse_duration(sample_interval, key="sample_interval", zero_ok=False)
    except PolicyError as error:
        errors.append(error)
    layers = PolicyLayers(
        pinned=parse_values(pinned or {}, errors),
        rules=parse_rules(policies, errors, key="policies", in_file=False),
        traits=parse_values(traits or {}, errors),
        interval=interval,
    )
    return layers, errors or _clashes(layers)


def parse_layers(
    *,
    pinned: Mapping[str, object] | None = None,
    policies: object = (),
    traits: Mapping[str, object] | None = None,
    sample_interval: object = None,
) -> PolicyLayers:
    """As `check_layers`; raises the first PolicyError."""
    layers, errors = check_layers(
        pinned=pinned, policies=policies, traits=traits, sample_interval=sample_interval
    )
    if errors:
        raise errors[0]
    return layers


def with_file(layers: PolicyLayers, content: Mapping[str, object]) -> tuple[PolicyLayers, list[PolicyError]]:
    """The layers with those of a policy file, and every mistake in it or between it and the others."""
    errors: list[PolicyError] = []
    values = parse_values(content, errors, also=("policies",), where=FILE)
    rules = parse_rules(content.get("policies", []), errors, key="policies", in_file=True)
    both = replace(layers, file_values=values, file_rules=rules)
    return both, errors or _clashes(both)


def _clashes(layers: PolicyLayers) -> list[PolicyError]:
    """Contradictions among what is set for all kernels, and between that and each entry by itself."""
    found: dict[tuple[str, str, str], PolicyError] = {}
    interval = layers.interval or NOTHING
    index = {rule.source: rule.index for rule in (*layers.file_rules, *layers.rules)}
    for given, sources in _combinations(layers):
        for error in contradictions(given, sources, interval):
            error.entry = index.get(error.where)
            found.setdefault((error.key, repr(error.value), error.expected), error)
    return list(found.values())


def _combinations(layers: PolicyLayers) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    yield stack(layers, None, None)
    for rule in layers.file_rules:
        yield stack(layers, rule, None)
    for rule in layers.rules:
        yield stack(layers, None, rule)


# --- stacking -----------------------------------------------------------------------------------------------------


def stack(
    layers: PolicyLayers, from_file: Rule | None, from_config: Rule | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """What is set, and by whom, when these two entries apply. Written from the lowest layer to the highest."""
    given: dict[str, Any] = {}
    sources: dict[str, str] = {}
    lowest_first: list[tuple[Values, str]] = [
        (layers.traits, TRAIT),
        *([(from_config.values, from_config.source)] if from_config else []),
        (layers.file_values, FILE),
        *([(from_file.values, from_file.source)] if from_file else []),
        (layers.pinned, PINNED),
    ]
    for values, source in lowest_first:
        given.update(values)
        sources.update(dict.fromkeys(values, source))
    return given, sources
