"""The entries of `policies` and of a policy file: which kernels an entry is for, until when, and what it sets.

Reading and matching only. What an entry may do against the other layers stands in `policy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from functools import lru_cache

from .policy_fields import Values, parse_values, unknown_key
from .quantities import PolicyError, parse_flag, parse_text

#: What the person who runs the kernel decides: by choosing it, nobody may loosen what holds for them.
CHOSEN_BY_USER = frozenset({"kernel_name", "path", "label"})
MATCH_KEYS = ("kernel_name", "path", "gpu", "user", "group", "label")
#: What is matched by patterns; the others are matched as they are.
PATTERNS = frozenset({"kernel_name", "path", "gpu"})
_ENTRY_KEYS = ("name", "match", "expires", "reason", "trusted")
_TOKEN = re.compile(r"(?:^|(?<=/))\*\*/|\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What is known of one kernel for choosing its policy. `user` is None where nobody is known."""

    kernel_name: str
    paths: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()
    user: str | None = None
    groups: tuple[str, ...] = ()
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry. `source` is how others are told where a value came from."""

    index: int
    name: str
    source: str
    match: Mapping[str, tuple[str, ...]] = field(hash=False)
    values: Values = field(hash=False)
    expires: datetime | None = None
    reason: str = ""
    trusted: bool = False

    @property
    def may_loosen(self) -> bool:
        """False where the person who runs the kernel chooses whether the entry matches, and nobody vouched for it."""
        return self.trusted or not CHOSEN_BY_USER & self.match.keys()

    def applies(self, facts: KernelFacts, now: datetime) -> bool:
        """Every key of the match holds (any of its values will do) and the entry has not expired."""
        if self.expires is not None and now >= self.expires:
            return False
        return all(_holds(key, wanted, facts) for key, wanted in self.match.items())


def _holds(key: str, wanted: tuple[str, ...], facts: KernelFacts) -> bool:
    found = {
        "kernel_name": (facts.kernel_name,),
        "path": tuple(path.lstrip("/") for path in facts.paths),
        "gpu": tuple(model.lower() for model in facts.gpu_models),
        "user": (facts.user,),
        "group": facts.groups,
        "label": (facts.label,),
    }[key]
    if key in PATTERNS:
        return any(
            _regex(pattern).fullmatch(text) for pattern in wanted for text in found if text is not None
        )
    return any(text in wanted for text in found)


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    """`*` any text, folders included; `**/` any number of folders, also none; `?` one character; `[ab]`, `[!a-f]`."""
    return re.compile("".join(_translated(token) for token in _TOKEN.findall(pattern)), re.DOTALL)


def _translated(token: str) -> str:
    if token == "**/":
        return "(?:.*/)?"
    if token[0] == "*":
        return ".*"
    if token == "?":
        return "."
    if token[0] == "[" and len(token) > 1:
        inside = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(token)


def parse_rules(raw: object, errors: list[PolicyError], *, key: str, in_file: bool) -> tuple[Rule, ...]:
    """The entries of a list of tables, in their order. Mistakes go to `errors`; `key` names the list in them."""
    if not isinstance(raw, list | tuple):
        errors.append(PolicyError(key, raw, "a list of policies, each with name, match and settings"))
        return ()
    rules: list[Rule] = []
    for index, entry in enumerate(raw):
        if not isinstance(entry, Mapping):
            errors.append(
                PolicyError(f"{key}[{index}]", entry, "a table of name, match and settings", entry=index)
            )
            continue
        rule = _Reader(index, entry, errors, in_file).rule()
        if any(rule.name == other.name for other in rules):
            taken = "a name that no other policy of the list has"
            errors.append(PolicyError("name", rule.name, taken, where=rule.source, entry=index))
        rules.append(rule)
    return tuple(rules)


class _Reader:
    """Reads one entry, collecting its mistakes."""

    def __init__(
        self, index: int, raw: Mapping[object, object], errors: list[PolicyError], in_file: bool
    ) -> None:
        self._raw = {str(key): value for key, value in raw.items()}
        self._errors, self._index = errors, index
        name = self._raw.get("name")
        given = name.strip() if isinstance(name, str) else ""
        place = f"policies[{index}]"
        self._name = given or place
        numbered = f"{place} ({given})" if given else place
        self._source = f"policy_file [{self._name}]" if in_file else numbered

    def rule(self) -> Rule:
        raw = self._raw
        where, entry = self._source, self._index
        values = parse_values(raw, self._errors, also=_ENTRY_KEYS, where=where, entry=entry)
        expires, reason, trusted = None, "", False
        try:
            parse_text(raw.get("name", ""), key="name")
            reason = parse_text(raw.get("reason", ""), key="reason")
            trusted = parse_flag(raw.get("trusted", False), key="trusted")
            expires = None if "expires" not in raw else parse_expiry(raw["expires"])
        except PolicyError as error:
            self._wrong(error)
        match = self._match(raw.get("match", {}))
        return Rule(self._index, self._name, self._source, match, values, expires, reason, trusted)

    def _match(self, raw: object) -> dict[str, tuple[str, ...]]:
        if not isinstance(raw, Mapping):
            self._wrong(PolicyError("match", raw, f"a table of {', '.join(MATCH_KEYS)}"))
            return {}
        match: dict[str, tuple[str, ...]] = {}
        for name, wanted in raw.items():
            key = f"match.{name}"
            try:
                if name not in MATCH_KEYS:
                    raise unknown_key(key, wanted, [f"match.{known}" for known in MATCH_KEYS])
                match[name] = _parse_patterns(wanted, name, key)
            except PolicyError as error:
                self._wrong(error)
        return match

    def _wrong(self, error: PolicyError) -> None:
        error.where, error.entry = self._source, self._index
        self._errors.append(error)


def _parse_patterns(raw: object, name: str, key: str) -> tuple[str, ...]:
    """One text or several, any of which will do; checked so that matching can't fail later."""
    texts: Sequence[object] = raw if isinstance(raw, list | tuple) else (raw,)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise PolicyError(key, raw, "a text, or a list of texts of which any may match")
    patterns = tuple(str(text) for text in texts)
    if name == "path":
        patterns = tuple(pattern.lstrip("/") for pattern in patterns)
    if name == "gpu":
        patterns = tuple(pattern.lower() for pattern in patterns)
    try:
        for pattern in patterns if name in PATTERNS else ():
            _regex(pattern)
    except re.error as error:
        raise PolicyError(key, raw, f"a pattern of *, **/, ? and [...] ({error})") from None
    return patterns


def parse_expiry(value: object) -> datetime:
    """When an entry ends: a date lasts until its end, a time without an offset is UTC. Raises PolicyError."""
    expected = 'a date or time such as "2027-01-31" or "2027-01-31T18:00:00Z"'
    if isinstance(value, str):
        text = value.strip()
        try:
            value = date.fromisoformat(text) if len(text) == len("2027-01-31") else _iso_time(text)
        except ValueError:
            raise PolicyError("expires", value, expected) from None
    try:
        if isinstance(value, datetime):
            return value.replace(tzinfo=value.tzinfo or timezone.utc).astimezone(timezone.utc)
        if isinstance(value, date):
            return datetime.combine(value + timedelta(days=1), time(), timezone.utc)
    except OverflowError:
        pass  # at either end of the calendar
    raise PolicyError("expires", value, expected)


def _iso_time(text: str) -> datetime:
    """Python 3.10 knows no `Z`."""
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
