"""What is said to have no effect, and what is not. That it really has none is in test_policy_properties."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jupyter_gpu_guard.core.policy import PolicyLayers, parse_layers
from jupyter_gpu_guard.core.policy_layers import with_file
from jupyter_gpu_guard.core.policy_vain import MOST_COMPARED, find_vain

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def told(*entries: dict[str, Any], base: PolicyLayers | None = None, **top: object) -> list[str]:
    layers, errors = with_file(base or PolicyLayers(), {**top, "policies": list(entries)})
    assert not errors, errors[0]
    return [str(vain) for vain in find_vain(layers, NOW)]


def test_what_a_higher_layer_sets() -> None:
    base = parse_layers(pinned={"mode": "warn"}, policies=[{"name": "c", "mode": "enforce", "window": 60}])
    assert told({"name": "f", "mode": "observe", "window": 30}, base=base, mode="enforce", window=90) == [
        "mode of policy_file has no effect: command line or config sets it",
        "mode of policy_file [f] has no effect: command line or config sets it",
        "mode of policies[0] (c) has no effect: command line or config sets it",
        "window of policies[0] (c) has no effect: policy_file sets it",
    ]


def test_an_entry_that_has_expired() -> None:
    past, present = {"name": "past", "expires": "2027-02-28"}, {"name": "present", "expires": "2027-03-01"}
    assert told(past, present) == ["policy_file [past] has no effect: it expired at 2027-03-01T00:00:00Z"]


FIRST = "policy_file [a] comes first, and matches all that it matches"
TEACHING = {"path": "teaching/*"}


@pytest.mark.parametrize(
    ("first", "second", "is_vain"),
    [
        ({}, {"match": {"user": "ada"}}, True),
        ({}, {"match": TEACHING}, True),
        ({}, {}, True),
        ({"match": {"user": ["ada", "bob"]}}, {"match": {"user": "ada", "gpu": "*A100*"}}, True),
        ({"match": {"gpu": "*"}}, {"match": {"gpu": "*A100*"}}, True),
        ({"match": TEACHING}, {"match": TEACHING}, True),
        ({"match": TEACHING, "trusted": True}, {"match": TEACHING, "trusted": True}, True),
        ({"expires": "2027-06-01"}, {"match": {"user": "ada"}, "expires": "2027-06-01"}, True),
        # The first may be over before the second, or may only tighten, or leaves something to it.
        ({"expires": "2027-06-01"}, {"match": {"user": "ada"}}, False),
        ({"expires": "2027-06-01"}, {"match": {"user": "ada"}, "expires": "2027-06-02"}, False),
        ({"match": TEACHING}, {"match": TEACHING, "trusted": True}, False),
        ({"match": {"user": "ada"}}, {}, False),
        ({"match": {"user": "ada", "gpu": "*"}}, {"match": {"user": "ada"}}, False),
        ({"match": {"user": "ada"}}, {"match": {"user": ["ada", "bob"]}}, False),
        ({"match": {"gpu": "*A100*"}}, {"match": {"gpu": "*"}}, False),
        ({"match": {"user": "*"}}, {"match": {"user": "ada"}}, False),  # no pattern
    ],
)
def test_an_entry_that_never_comes_to_its_turn(
    first: dict[str, Any], second: dict[str, Any], is_vain: bool
) -> None:
    expected = [f"policy_file [b] has no effect: {FIRST}"] if is_vain else []
    assert told({"name": "a", **first}, {"name": "b", **second}) == expected


def test_an_entry_that_has_expired_hides_nothing() -> None:
    assert len(told({"name": "a", "expires": "2027-02-01"}, {"name": "b"})) == 1


LOOSENS = "it would loosen what holds, and whoever runs a kernel chooses its path"


@pytest.mark.parametrize(
    ("entry", "is_vain"),
    [
        ({"match": TEACHING, "idle_timeout": "3h"}, True),
        ({"match": {**TEACHING, "user": "ada"}, "idle_timeout": "3h"}, True),
        ({"match": TEACHING, "idle_timeout": "3h", "trusted": True}, False),
        ({"match": TEACHING, "idle_timeout": "2h"}, False),
        ({"match": TEACHING, "idle_timeout": "1h"}, False),
        ({"match": {"user": "ada"}, "idle_timeout": "3h"}, False),
    ],
)
def test_an_entry_by_which_people_would_loosen_what_holds(entry: dict[str, Any], is_vain: bool) -> None:
    expected = [f"idle_timeout of policy_file [x] has no effect: {LOOSENS}"] if is_vain else []
    assert told({"name": "x", **entry}) == expected


def test_what_tightens_for_some_is_not_in_vain() -> None:
    """For bob 4 h would hold."""
    by_choice = {"name": "x", "match": TEACHING, "idle_timeout": "3h"}
    assert told(by_choice, {"name": "bob", "match": {"user": "bob"}, "idle_timeout": "4h"}) == []
    base = parse_layers(policies=[{"match": {"user": "bob"}, "idle_timeout": "4h"}])
    assert told(by_choice, base=base) == []
    assert told(by_choice, base=base, idle_timeout="2h") == [
        f"idle_timeout of policy_file [x] has no effect: {LOOSENS}",
        "idle_timeout of policies[0] has no effect: policy_file sets it",
    ]


def test_a_very_long_list_is_not_compared() -> None:
    many = [{"name": f"n{i}", "match": {"user": f"u{i}"}} for i in range(MOST_COMPARED + 1)]
    last = {"name": "last", "match": {"user": "u0"}}
    assert told(*many, last) == []
    assert told(*many[:MOST_COMPARED], last) == [
        "policy_file [last] has no effect: policy_file [n0] comes first, and matches all that it matches"
    ]


def test_each_comes_with_a_remedy() -> None:
    base = parse_layers(pinned={"mode": "warn"})
    entries = [
        {"name": "a", "match": TEACHING, "idle_timeout": "3h", "mode": "observe"},
        {"name": "b", "match": TEACHING},
        {"name": "c", "expires": "2027-01-01"},
    ]
    layers, _ = with_file(base, {"policies": entries})
    assert [(vain.key, vain.entry, vain.in_file, vain.remedy) for vain in find_vain(layers, NOW)] == [
        (
            "idle_timeout",
            0,
            True,
            "Tighten it, match by user, group or gpu, or set trusted = true in the entry.",
        ),
        ("mode", 0, True, "Remove it, or what command line or config sets."),
        ("", 1, True, "Put it before policy_file [a], or remove it."),
        ("", 2, True, "Remove it, or let it expire later."),
    ]
