"""What holds of every policy, however its layers were mixed."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jupyter_gpu_guard.core.policy import (
    KernelFacts,
    Mode,
    Policy,
    PolicyError,
    PolicyLayers,
    parse_layers,
    resolve,
)
from jupyter_gpu_guard.core.policy_fields import BY_NAME, FIELDS
from jupyter_gpu_guard.core.policy_layers import with_file
from jupyter_gpu_guard.core.policy_rules import Rule
from jupyter_gpu_guard.core.policy_vain import Vain, find_vain
from jupyter_gpu_guard.core.quantities import (
    LONGEST,
    SHORTEST,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
)

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
FACTS = KernelFacts("python3", ("a/b.ipynb",), ("NVIDIA L4",), "ada", ("lab",), "exam")
TICK = timedelta(microseconds=2)  # what is cut in three is rounded to whole microseconds

durations = st.sampled_from([1, 3, 7, 20, 60, 290, 600, 1200, 3600, 7200, 30000, 90000])
maybe_never = st.just(0) | durations
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["observe", "warn", "enforce"]),
    "scope": st.sampled_from(["gpu", "all"]),
    "idle_timeout": maybe_never,
    "after_run_factor": st.floats(0, 2),
    "after_run_max": maybe_never,
    "max_runtime": maybe_never,
    "stalled_timeout": maybe_never,
    "cull_stalled": st.booleans(),
    "cull_stalled_after": durations,
    "warn_before": st.lists(durations, max_size=3),
    "save_timeout": durations,
    "on_save_failure": st.sampled_from(["postpone", "recovery-copy", "never"]),
    "postpone_max": maybe_never,
    "keep_alive_max": maybe_never,
    "keep_alive_total": maybe_never,
    "window": durations,
    "max_gap": durations,
    "warm_up": maybe_never,
    "unknown_policy": st.sampled_from(["never", "other-signals"]),
    "gpu_idle_below": st.floats(0, 1),
    "cpu_idle_below": st.floats(0, 4),
    "io_idle_below": st.integers(0, 1 << 20),
    "end_detached": st.booleans(),
}
values = st.dictionaries(st.sampled_from(sorted(VALUES)), st.none(), max_size=4).flatmap(
    lambda keys: st.fixed_dictionaries({key: VALUES[key] for key in keys})
)
firm_matches = st.sampled_from([{}, {"user": "ada"}, {"group": "lab"}, {"gpu": "*L4*"}, {"user": "bob"}])
chosen_matches = st.sampled_from(
    [
        {"path": "a/*"},
        {"kernel_name": "py*"},
        {"label": "exam"},
        {"path": "c/*"},
        {"user": "ada", "path": "*"},
    ]
)
entries = st.builds(
    lambda match, trusted, set_: {"match": match, **({"trusted": True} if trusted else {}), **set_},
    firm_matches | chosen_matches,
    st.booleans(),
    values,
)
lists = st.lists(entries, max_size=4)
intervals = st.none() | st.sampled_from([0.5, 5, 60])


def layered(
    pinned: dict[str, Any],
    in_file: dict[str, Any],
    file_list: list[dict[str, Any]],
    in_config: list[dict[str, Any]],
    traits: dict[str, Any],
    interval: float | None = None,
) -> PolicyLayers | None:
    """The layers, or None where they contradict each other and would have been refused."""
    try:
        base = parse_layers(pinned=pinned, policies=in_config, traits=traits, sample_interval=interval)
    except PolicyError:
        return None
    layers, errors = with_file(base, {**in_file, "policies": file_list})
    return None if errors else layers


def assert_consistent(policy: Policy, layers: PolicyLayers) -> None:
    ends = [span for span in (policy.idle_timeout, policy.max_runtime) if span]
    ends += [policy.cull_stalled_after] if policy.cull_stalled else []
    assert list(policy.warn_before) == sorted(set(policy.warn_before), reverse=True)
    assert all(timedelta(0) < lead < end for lead in policy.warn_before for end in ends)
    assert policy.warn_before or policy.mode is Mode.OBSERVE
    assert policy.window > timedelta(0)
    assert not policy.idle_timeout or policy.window <= policy.idle_timeout
    assert policy.keep_alive_max <= policy.keep_alive_total
    assert policy.stalled_timeout <= policy.cull_stalled_after
    assert policy.stalled_timeout or not policy.cull_stalled
    assert timedelta(0) < layers.sample_interval
    assert 3 * layers.sample_interval <= policy.window + TICK
    assert 2 * layers.sample_interval <= policy.max_gap + TICK
    assert timedelta(0) < policy.period() <= policy.window
    assert policy.sources.keys() == BY_NAME.keys()


@settings(deadline=None)
@given(st.integers(0, LONGEST // timedelta(microseconds=1)).map(lambda us: timedelta(microseconds=us)))
def test_a_written_duration_reads_back_the_same(span: timedelta) -> None:
    assume(not span or span >= SHORTEST)
    assert parse_duration(format_duration(span), key="window") == span


@settings(deadline=None)
@given(st.integers(0, 2**50) | st.integers(0, 4000).map(lambda n: n << 20))
def test_a_written_size_reads_back_the_same(size: int) -> None:
    assert parse_bytes(format_bytes(size), key="io_idle_below") == size


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())
)


@settings(deadline=None)
@given(st.sampled_from(FIELDS), ANYTHING | st.dictionaries(st.text(max_size=3), st.integers()))
def test_any_value_is_read_or_refused_by_name(field: Any, value: object) -> None:
    try:
        parse_layers(pinned={field.name: value})
    except PolicyError as error:
        assert error.key
        assert str(error).count("\n") == 0


@settings(max_examples=400, deadline=None)
@given(values, values, lists, lists, values, intervals)
def test_what_comes_out_is_consistent(
    pinned: dict[str, Any],
    in_file: dict[str, Any],
    file_list: list[dict[str, Any]],
    in_config: list[dict[str, Any]],
    traits: dict[str, Any],
    interval: float | None,
) -> None:
    layers = layered(pinned, in_file, file_list, in_config, traits, interval)
    assume(layers is not None)
    assert layers is not None
    assert_consistent(resolve(layers, FACTS, NOW), layers)


@settings(max_examples=300, deadline=None)
@given(lists, lists)
def test_whatever_follows_the_first_firm_match_is_of_no_account(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    firm = {"name": "firm", "match": {"user": "ada"}, "idle_timeout": 5000}
    alone = layered({}, {}, [*before, firm], [], {})
    followed = layered({}, {}, [*before, firm, *after], [], {})
    assume(alone is not None and followed is not None)
    assert alone is not None and followed is not None
    assert resolve(followed, FACTS, NOW) == resolve(alone, FACTS, NOW)


def looseness(policy: Policy) -> dict[str, float]:
    """How loose each value is in its effect: what is switched off elsewhere has none."""
    found = {field.name: field.looseness(getattr(policy, field.name)) for field in FIELDS}
    if not policy.cull_stalled:
        found["cull_stalled_after"] = math.inf
    return found


@settings(max_examples=500, deadline=None)
@given(values, values, lists, lists, values, lists, st.booleans(), intervals)
def test_what_a_user_chooses_never_loosens(
    pinned: dict[str, Any],
    in_file: dict[str, Any],
    file_list: list[dict[str, Any]],
    in_config: list[dict[str, Any]],
    traits: dict[str, Any],
    choices: list[dict[str, Any]],
    through_file: bool,
    interval: float | None,
) -> None:
    """The same policies with entries that users choose in front, and without."""
    chosen = [{**entry, "match": {"path": "*"}, "trusted": False} for entry in choices]
    plain = layered(pinned, in_file, file_list, in_config, traits, interval)
    with_choice = layered(
        pinned,
        in_file,
        [*chosen, *file_list] if through_file else file_list,
        in_config if through_file else [*chosen, *in_config],
        traits,
        interval,
    )
    assume(plain is not None and with_choice is not None)
    assert plain is not None and with_choice is not None
    held = strictly_firm(plain)
    before, after = looseness(resolve(held, FACTS, NOW)), looseness(resolve(with_choice, FACTS, NOW))
    assert {key: after[key] for key in after if after[key] > before[key]} == {}


def strictly_firm(layers: PolicyLayers) -> PolicyLayers:
    """The layers without whatever a user chooses: what holds in any case."""
    return PolicyLayers(
        layers.pinned,
        layers.file_values,
        tuple(rule for rule in layers.file_rules if rule.may_loosen),
        tuple(rule for rule in layers.rules if rule.may_loosen),
        layers.traits,
        layers.interval,
    )


@settings(deadline=None)
@given(lists)
def test_what_has_expired_is_as_if_it_were_not_there(expired: list[dict[str, Any]]) -> None:
    layers = layered({}, {}, [{**entry, "expires": "2027-03-01T12:00:00Z"} for entry in expired], [], {})
    assume(layers is not None)
    assert layers is not None
    assert resolve(layers, FACTS, NOW) == resolve(PolicyLayers(), FACTS, NOW)


def without(layers: PolicyLayers, vain: tuple[Vain, ...]) -> PolicyLayers:
    """The layers without what is said to have no effect."""
    gone = {(one.in_file, one.entry, one.key) for one in vain}

    def kept(rules: tuple[Rule, ...], in_file: bool) -> tuple[Rule, ...]:
        return tuple(
            replace(
                rule, values={k: v for k, v in rule.values.items() if (in_file, rule.index, k) not in gone}
            )
            for rule in rules
            if (in_file, rule.index, "") not in gone
        )

    return replace(
        layers,
        file_values={k: v for k, v in layers.file_values.items() if (True, None, k) not in gone},
        file_rules=kept(layers.file_rules, True),
        rules=kept(layers.rules, False),
    )


dated = st.builds(
    lambda entry, expires: {**entry, **({"expires": expires} if expires else {})},
    entries,
    st.sampled_from(["", "2027-02-01", "2027-03-01T12:00:01Z", "2028-01-01"]),
)
anybody = st.builds(
    KernelFacts,
    st.sampled_from(["python3", "ir"]),
    st.sampled_from([(), ("a/b.ipynb",), ("c/d.ipynb",)]),
    st.sampled_from([(), ("NVIDIA L4",)]),
    st.sampled_from([None, "ada", "bob"]),
    st.sampled_from([(), ("lab",)]),
    st.sampled_from([None, "exam"]),
)


@settings(max_examples=500, deadline=None)
@given(values, values, st.lists(dated, max_size=4), st.lists(dated, max_size=4), intervals, anybody)
def test_what_is_said_to_have_no_effect_has_none(
    pinned: dict[str, Any],
    in_file: dict[str, Any],
    file_list: list[dict[str, Any]],
    in_config: list[dict[str, Any]],
    interval: float | None,
    facts: KernelFacts,
) -> None:
    layers = layered(pinned, in_file, file_list, in_config, {}, interval)
    assume(layers is not None)
    assert layers is not None
    vain = find_vain(layers, NOW)
    for now in (NOW, NOW + timedelta(days=1), NOW + timedelta(days=800)):
        assert resolve(without(layers, vain), facts, now) == resolve(layers, facts, now)
