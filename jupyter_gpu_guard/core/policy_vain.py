"""What was configured and never has an effect: no mistake, but hardly what its author meant, so it is told.

Covers settings that a higher layer sets, entries that have expired or that never come to their turn, and entries by
which people would loosen what holds for them. Never names what may have an effect on some kernel. Not here: what is
wrong by itself (policy_layers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from .policy_fields import BY_NAME
from .policy_fit import NOTHING, complete
from .policy_layers import FILE, PINNED, PolicyLayers, stack
from .policy_rules import CHOSEN_BY_USER, PATTERNS, Rule

#: Entries are compared with each other; of longer lists than this only what stands in one entry is looked at.
MOST_COMPARED = 200


@dataclass(frozen=True, slots=True)
class Vain:
    """One setting, or with an empty `key` a whole entry. `entry`: its index in its list, None at the top level of the
    policy file. `str()` is one line; `place` stands before it, as `policy.toml:3`."""

    key: str
    source: str
    in_file: bool
    entry: int | None
    why: str
    remedy: str
    place: str = ""

    def __str__(self) -> str:
        before = f"{self.place}: " if self.place else ""
        what = f"{self.key} of {self.source}" if self.key else self.source
        return f"{before}{what} has no effect: {self.why}"


def find_vain(layers: PolicyLayers, now: datetime) -> tuple[Vain, ...]:
    """All that has no effect at `now` (aware), nor later, in the order of the lists."""
    found = [
        _shadowed(key, FILE, None, in_file=True, by=PINNED)
        for key in layers.file_values
        if key in layers.pinned
    ]
    loosest = _loosest(layers)
    for rules, in_file in ((layers.file_rules, True), (layers.rules, False)):
        for index, rule in enumerate(rules):
            whole = _of_entry(rule, rules[:index], in_file, now)
            found += [whole] if whole is not None else _of_settings(rule, in_file, layers, loosest)
    return tuple(found)


def _shadowed(key: str, source: str, entry: int | None, *, in_file: bool, by: str) -> Vain:
    return Vain(key, source, in_file, entry, f"{by} sets it", f"Remove it, or what {by} sets.")


def _of_entry(rule: Rule, before: tuple[Rule, ...], in_file: bool, now: datetime) -> Vain | None:
    if rule.expires is not None and rule.expires <= now:
        why = f"it expired at {rule.expires:%Y-%m-%dT%H:%M:%SZ}"
        return Vain("", rule.source, in_file, rule.index, why, "Remove it, or let it expire later.")
    if len(before) > MOST_COMPARED:
        return None
    first = next((other for other in before if _always_before(other, rule, now)), None)
    if first is None:
        return None
    why = f"{first.source} comes first, and matches all that it matches"
    return Vain("", rule.source, in_file, rule.index, why, f"Put it before {first.source}, or remove it.")


def _always_before(first: Rule, rule: Rule, now: datetime) -> bool:
    """Whether `first` is chosen wherever `rule` could be, for as long as that holds. One that may only tighten doesn't
    end the search for one that may do more."""
    if first.expires is not None and (
        first.expires <= now or rule.expires is None or rule.expires > first.expires
    ):
        return False
    if rule.may_loosen and not first.may_loosen:
        return False
    return all(_covers(key, texts, rule.match) for key, texts in first.match.items())


def _covers(key: str, texts: tuple[str, ...], match: Mapping[str, tuple[str, ...]]) -> bool:
    if key not in match:
        return False
    return set(match[key]) <= set(texts) or (key in PATTERNS and "*" in texts)


def _of_settings(
    rule: Rule, in_file: bool, layers: PolicyLayers, loosest: Mapping[str, float]
) -> Iterator[Vain]:
    above = {PINNED: layers.pinned, **({} if in_file else {FILE: layers.file_values})}
    for key, value in rule.values.items():
        by = next((source for source, values in above.items() if key in values), None)
        if by is not None:
            yield _shadowed(key, rule.source, rule.index, in_file=in_file, by=by)
        elif not rule.may_loosen and key in loosest and BY_NAME[key].looseness(value) > loosest[key]:
            chosen = ", ".join(sorted(CHOSEN_BY_USER & rule.match.keys()))
            why = f"it would loosen what holds, and whoever runs a kernel chooses its {chosen}"
            remedy = "Tighten it, match by user, group or gpu, or set trusted = true in the entry."
            yield Vain(key, rule.source, in_file, rule.index, why, remedy)


def _loosest(layers: PolicyLayers) -> dict[str, float]:
    """Of each setting the loosest that may hold where no entry is chosen by whoever runs the kernel."""
    firm = [
        [None, *(rule for rule in rules if rule.may_loosen)] for rules in (layers.file_rules, layers.rules)
    ]
    if all(rule.may_loosen for rule in (*layers.file_rules, *layers.rules)):
        return {}  # nobody asks
    if len(firm[0]) * len(firm[1]) > MOST_COMPARED:
        return {}
    found: dict[str, float] = {}
    for from_file in firm[0]:
        for from_config in firm[1]:
            holds = complete(stack(layers, from_file, from_config)[0], layers.interval or NOTHING)
            for key, value in holds.items():
                found[key] = max(found.get(key, float("-inf")), BY_NAME[key].looseness(value))
    return found
