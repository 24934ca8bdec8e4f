"""Reading of policies, their contradictions, which entry applies, and what follows what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from jupyter_gpu_guard.core.policy import (
    KernelFacts,
    Mode,
    OnSaveFailure,
    Policy,
    PolicyError,
    PolicyLayers,
    Scope,
    UnknownPolicy,
    parse_layers,
    resolve,
)
from jupyter_gpu_guard.core.policy_layers import with_file
from jupyter_gpu_guard.core.quantities import format_bytes, format_duration, parse_bytes, parse_duration

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
FACTS = KernelFacts(
    kernel_name="python3",
    paths=("course/a.ipynb", "train/deep/run.ipynb"),
    gpu_models=("NVIDIA A100-SXM4-40GB",),
    user="ada",
    groups=("staff", "lab"),
    label="exam",
)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def minutes(value: float) -> timedelta:
    return timedelta(minutes=value)


def hours(value: float) -> timedelta:
    return timedelta(hours=value)


def effective(facts: KernelFacts = FACTS, now: datetime = NOW, **pinned: object) -> Policy:
    return resolve(parse_layers(pinned=pinned), facts, now)


def first_of(*entries: Mapping[str, object], facts: KernelFacts = FACTS, now: datetime = NOW) -> Policy:
    return resolve(parse_layers(policies=list(entries)), facts, now)


def filed(content: Mapping[str, object], base: PolicyLayers | None = None) -> PolicyLayers:
    layers, errors = with_file(base or PolicyLayers(), content)
    assert not errors, errors[0]
    return layers


# --- quantities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, seconds(0)),
        ("0", seconds(0)),
        (90, seconds(90)),
        (1.5, seconds(1.5)),
        ("90", seconds(90)),
        ("90s", seconds(90)),
        ("0.25s", seconds(0.25)),
        ("30m", minutes(30)),
        ("1h30m", minutes(90)),
        ("1h 30m", minutes(90)),
        (" 2d ", hours(48)),
        ("1d2h3m4.5s", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("1.5h", minutes(90)),
        ("3650d", timedelta(days=3650)),
        (timedelta(minutes=5), minutes(5)),
        (0.001, timedelta(milliseconds=1)),
    ],
)
def test_a_duration_is_read(value: object, expected: timedelta) -> None:
    assert parse_duration(value, key="window") == expected


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        -1,
        -0.5,
        "-5m",
        float("nan"),
        float("inf"),
        float("-inf"),
        "nan",
        "",
        " ",
        "m",
        "5 minutes",
        "5M",
        "30m1h",
        "1h1h",
        "1h30",
        "1e3",
        "٣m",
        "3651d",
        10**400,
        1e300,
        "9" * 30,
        0.0001,
        "0.0005s",
        timedelta(seconds=-1),
        [],
        b"90s",
    ],
)
def test_what_is_no_duration_is_refused_with_key_value_and_remedy(value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_duration(value, key="window")
    assert caught.value.key == "window"
    assert (
        caught.value.value is value or caught.value.value == getattr(value, "total_seconds", lambda: value)()
    )
    text = str(caught.value)
    assert text.startswith("window = ")
    assert "expected a duration" in text
    assert "\n" not in text


@pytest.mark.parametrize("value", [0, "0", "0s", "0h", 0.0])
def test_zero_is_refused_where_it_has_no_meaning(value: object) -> None:
    with pytest.raises(PolicyError, match="longer than 0"):
        parse_duration(value, key="window", zero_ok=False)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (seconds(0), "0"),
        (seconds(90), "1m30s"),
        (hours(2), "2h"),
        (hours(48), "2d"),
        (hours(25.5), "1d1h30m"),
        (seconds(0.25), "0.25s"),
        (seconds(10), "10s"),
        (minutes(10), "10m"),
        (timedelta(microseconds=3_600_000_001), "1h0.000001s"),
    ],
)
def test_a_duration_is_written(span: timedelta, text: str) -> None:
    assert format_duration(span) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (262144, 262144),
        (1024.0, 1024),
        ("262144", 262144),
        ("256KiB", 262144),
        ("256 KiB", 262144),
        ("1.5KiB", 1536),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1MB", 1_000_000),
        ("1MiB", 1 << 20),
        ("4GiB", 4 << 30),
        ("2GB", 2_000_000_000),
        ("1TiB", 1 << 40),
        ("1TB", 10**12),
        ("7B", 7),
    ],
)
def test_bytes_are_read(value: object, expected: int) -> None:
    assert parse_bytes(value, key="io_idle_below") == expected


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        -1,
        0.5,
        "0.3B",
        float("nan"),
        float("inf"),
        "1K",
        "1 bananas",
        "-1KiB",
        "",
        "KiB",
        2**63,
        "1e6",
        [],
    ],
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(PolicyError, match=r"^io_idle_below = .*: expected whole bytes"):
        parse_bytes(value, key="io_idle_below")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (262144, "256KiB"), (1 << 20, "1MiB"), (1000, "1000"), (3 << 40, "3TiB")]
)
def test_bytes_are_written(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_duration("x" * 5000, key="window")
    assert len(str(caught.value)) < 250


# --- single settings ----------------------------------------------------------------------------------------------


def test_the_defaults_are_those_that_are_promised() -> None:
    policy = effective()
    assert policy == Policy(
        name="default",
        mode=Mode.OBSERVE,
        action=policy.action,
        scope=Scope.GPU,
        idle_timeout=hours(2),
        after_run_factor=0.5,
        after_run_max=hours(8),
        max_runtime=seconds(0),
        stalled_timeout=hours(2),
        cull_stalled=False,
        cull_stalled_after=hours(8),
        warn_before=(minutes(60), minutes(15), minutes(5)),
        save_timeout=seconds(60),
        on_save_failure=OnSaveFailure.POSTPONE,
        postpone_max=hours(24),
        keep_alive_max=hours(16),
        keep_alive_total=hours(24),
        window=minutes(10),
        max_gap=minutes(3),
        warm_up=minutes(15),
        unknown_policy=UnknownPolicy.NEVER,
        gpu_idle_below=0.02,
        cpu_idle_below=0.10,
        io_idle_below=262144,
        end_detached=False,
        sources=dict.fromkeys(policy.sources, "default"),
    )
    assert policy.action.value == "kernel"
    assert len(policy.sources) == 24
    assert parse_layers().sample_interval == seconds(5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mode", "enforced"),
        ("mode", True),
        ("mode", "Enforce"),
        ("action", "server"),
        ("action", "suspend"),
        ("scope", "cpu"),
        ("idle_timeout", True),
        ("idle_timeout", -1),
        ("after_run_factor", True),
        ("after_run_factor", "0.5"),
        ("after_run_factor", -0.1),
        ("after_run_factor", float("nan")),
        ("after_run_factor", 101),
        ("after_run_max", None),
        ("max_runtime", "forever"),
        ("stalled_timeout", False),
        ("cull_stalled", 1),
        ("cull_stalled", "true"),
        ("cull_stalled", None),
        ("cull_stalled_after", 0),
        ("warn_before", "10m"),
        ("warn_before", 600),
        ("save_timeout", 0),
        ("on_save_failure", "recovery_copy"),
        ("postpone_max", -1),
        ("keep_alive_max", True),
        ("keep_alive_total", "1 day"),
        ("window", 0),
        ("max_gap", 0),
        ("warm_up", float("inf")),
        ("unknown_policy", "other_signals"),
        ("gpu_idle_below", 1.01),
        ("gpu_idle_below", False),
        ("cpu_idle_below", -0.1),
        ("io_idle_below", "256K"),
        ("end_detached", 0),
    ],
)
def test_a_wrong_value_is_refused_and_named(key: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_layers(pinned={key: value})
    assert caught.value.key == key
    assert repr(value) in str(caught.value)
    assert caught.value.expected


@pytest.mark.parametrize(
    ("leads", "key"), [(["10m", 0], "warn_before[1]"), (["5m", True, "x"], "warn_before[1]")]
)
def test_a_wrong_lead_is_named_by_its_place(leads: list[object], key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_layers(pinned={"warn_before": leads})
    assert caught.value.key == key


def test_leads_are_sorted_and_each_stands_once() -> None:
    assert effective(warn_before=["5m", 300, "15m"]).warn_before == (minutes(15), minutes(5))


@pytest.mark.parametrize(
    ("key", "likely"),
    [
        ("idle_timout", "did you mean idle_timeout?"),
        ("warn_befor", "did you mean warn_before?"),
        ("keepalive_max", "did you mean keep_alive_max?"),
        ("checkpoint_timeout", "a known key"),
        ("zzz", "one of action, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_likely_one(key: str, likely: str) -> None:
    for raised in (
        lambda: parse_layers(pinned={key: 1}),
        lambda: parse_layers(policies=[{key: 1}]),
        lambda: filed_or_raise({key: 1}),
        lambda: filed_or_raise({"policies": [{key: 1}]}),
    ):
        with pytest.raises(PolicyError) as caught:
            raised()
        assert caught.value.key == key
        assert likely in str(caught.value)


def filed_or_raise(content: Mapping[str, object]) -> PolicyLayers:
    layers, errors = with_file(PolicyLayers(), content)
    if errors:
        raise errors[0]
    return layers


@pytest.mark.parametrize(
    "key", ["sample_interval", "history_path", "gpu_source", "recovery_dir", "shield_working", "policy_file"]
)
def test_what_is_not_per_kernel_is_refused_in_a_policy(key: str) -> None:
    with pytest.raises(PolicyError, match=rf"policies\[0\] \(p\): {key} = .*not per kernel"):
        parse_layers(policies=[{"name": "p", key: "5s"}])
    with pytest.raises(PolicyError, match=rf"^policy_file: {key} = .*not per kernel"):
        filed_or_raise({key: "5s"})


def test_every_mistake_of_a_file_is_found_not_only_the_first() -> None:
    _, errors = with_file(
        PolicyLayers(),
        {"mode": "on", "window": -1, "policies": [{"name": "a", "warm_up": "x"}, 3, {"match": {"pth": "b"}}]},
    )
    assert [error.key for error in errors] == ["mode", "window", "warm_up", "policies[1]", "match.pth"]
    assert [error.entry for error in errors] == [None, None, 0, 1, 2]


# --- how values fit each other ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle_timeout", "leads", "window", "warm_up", "interval"),
    [
        ("2h", [3600, 900, 300], 600, 900, 5),
        ("1h59m", [900, 300], 600, 900, 5),
        ("30m", [900, 300], 600, 900, 5),
        ("20m", [300], 600, 900, 5),
        ("10m", [300], 300, 600, 5),
        ("9m", [270], 270, 540, 5),
        (60, [30], 30, 60, 5),
        (20, [10], 10, 20, 10 / 3),
        (3, [1.5], 1.5, 3, 0.5),
        (0, [3600, 900, 300], 600, 900, 5),
        ("10d", [3600, 900, 300], 600, 900, 5),
    ],
)
def test_defaults_follow_idle_timeout(
    idle_timeout: object, leads: list[float], window: float, warm_up: float, interval: float
) -> None:
    layers = parse_layers(pinned={"idle_timeout": idle_timeout})
    policy = resolve(layers, FACTS, NOW)
    assert [lead.total_seconds() for lead in policy.warn_before] == leads
    assert policy.window == seconds(window)
    assert policy.warm_up == seconds(warm_up)
    assert policy.max_gap == minutes(3)
    assert layers.sample_interval.total_seconds() == pytest.approx(interval, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        # each lead has to come before whatever ends the kernel first
        ({"max_runtime": "20m"}, "warn_before", (minutes(5),)),
        ({"max_runtime": "6m"}, "warn_before", (minutes(3),)),
        ({"cull_stalled": True, "cull_stalled_after": "40m"}, "warn_before", (minutes(15), minutes(5))),
        ({"cull_stalled_after": "40m"}, "warn_before", (minutes(60), minutes(15), minutes(5))),
        # what belongs to a limit follows it
        ({"stalled_timeout": "12h"}, "cull_stalled_after", hours(12)),
        ({"cull_stalled_after": "1h"}, "stalled_timeout", hours(1)),
        ({"keep_alive_total": "4h"}, "keep_alive_max", hours(4)),
        ({"keep_alive_max": "3d"}, "keep_alive_total", hours(72)),
        ({"keep_alive_max": 0}, "keep_alive_total", hours(24)),
        ({"keep_alive_total": 0}, "keep_alive_max", seconds(0)),
        # what was set stays as it was set
        ({"idle_timeout": 20, "warm_up": "15m"}, "warm_up", minutes(15)),
        ({"idle_timeout": 30, "warn_before": [20, 10]}, "warn_before", (seconds(20), seconds(10))),
        ({"idle_timeout": 30, "window": 30}, "window", seconds(30)),
        ({"warn_before": []}, "warn_before", ()),
    ],
)
def test_what_follows_and_what_stays(given: dict[str, object], field: str, expected: object) -> None:
    assert getattr(effective(**given), field) == expected


@pytest.mark.parametrize(
    ("interval", "given", "field", "expected"),
    [
        (60, {}, "window", minutes(10)),
        (300, {"idle_timeout": "20m"}, "window", minutes(15)),
        (1, {"idle_timeout": 5}, "window", seconds(3)),
        (120, {}, "max_gap", minutes(4)),
        (1, {}, "max_gap", minutes(3)),
    ],
)
def test_defaults_leave_room_for_a_sample_interval_that_was_set(
    interval: object, given: dict[str, object], field: str, expected: timedelta
) -> None:
    layers = parse_layers(pinned=given, sample_interval=interval)
    assert getattr(resolve(layers, FACTS, NOW), field) == expected
    assert layers.sample_interval == seconds(float(str(interval)))


@pytest.mark.parametrize(
    ("given", "key", "other"),
    [
        ({"window": "3h"}, "window", "idle_timeout = 2h (default)"),
        ({"idle_timeout": "20m", "window": "21m"}, "window", "idle_timeout = 20m (command line or config)"),
        ({"idle_timeout": "1h", "warn_before": ["1h"]}, "warn_before", "shorter than idle_timeout = 1h"),
        (
            {"idle_timeout": "30m", "warn_before": ["60m", "5m"]},
            "warn_before",
            "shorter than idle_timeout = 30m",
        ),
        ({"max_runtime": "30m", "warn_before": ["45m"]}, "warn_before", "shorter than max_runtime = 30m"),
        (
            {"cull_stalled": True, "cull_stalled_after": "30m", "warn_before": ["40m"]},
            "warn_before",
            "shorter than cull_stalled_after = 30m",
        ),
        ({"mode": "warn", "warn_before": []}, "warn_before", "at least one lead time with mode = warn"),
        ({"mode": "enforce", "warn_before": []}, "warn_before", "at least one lead time with mode = enforce"),
        (
            {"stalled_timeout": "4h", "cull_stalled_after": "2h"},
            "stalled_timeout",
            "at most cull_stalled_after = 2h",
        ),
        (
            {"stalled_timeout": 0, "cull_stalled": True},
            "stalled_timeout",
            "more than 0 with cull_stalled = True",
        ),
        (
            {"keep_alive_max": "2d", "keep_alive_total": "1d"},
            "keep_alive_max",
            "at most keep_alive_total = 1d",
        ),
        ({"sample_interval": "5m", "window": "10m"}, "window", "at least three times sample_interval (5m)"),
        ({"sample_interval": "2m", "max_gap": "3m"}, "max_gap", "at least twice sample_interval (2m)"),
        ({"sample_interval": 10, "idle_timeout": 20}, "sample_interval", "a third of idle_timeout = 20s"),
    ],
)
@pytest.mark.parametrize("layer", ["config", "code", "entry", "file", "file entry"])
def test_what_contradicts_is_refused_naming_both(
    given: dict[str, object], key: str, other: str, layer: str
) -> None:
    values = {name: value for name, value in given.items() if name != "sample_interval"}
    interval = given.get("sample_interval")
    with pytest.raises(PolicyError) as caught:
        if layer.startswith("file"):
            content = values if layer == "file" else {"policies": [{"name": "e", **values}]}
            _, errors = with_file(parse_layers(sample_interval=interval), content)
            raise errors[0]
        parse_layers(
            pinned=values if layer == "config" else {},
            traits=values if layer == "code" else {},
            policies=[{"name": "e", **values}] if layer == "entry" else [],
            sample_interval=interval,
        )
    assert caught.value.key == key
    source = {"config": "command line or config", "code": "trait", "entry": "policies[0] (e)"}
    source |= {"file": "policy_file", "file entry": "policy_file [e]"}
    assert other.replace("command line or config", source[layer]) in str(caught.value)


def test_an_entry_that_contradicts_what_holds_for_all_is_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_layers(traits={"window": "30m"}, policies=[{"name": "short", "idle_timeout": "20m"}])
    assert (
        str(caught.value)
        == "trait: window = '30m': expected at most idle_timeout = 20m (policies[0] (short))"
    )


def test_the_shortest_window_of_all_policies_sets_the_pace() -> None:
    layers = parse_layers(policies=[{"match": {"gpu": "*A100*"}, "idle_timeout": 12}, {"max_gap": 1}])
    assert layers.sample_interval == seconds(0.5)
    assert filed({"policies": [{"window": 3}]}).sample_interval == seconds(1)


def test_the_pace_allows_for_a_window_that_two_lists_cut_short() -> None:
    base = parse_layers(policies=[{"name": "c", "idle_timeout": 20, "window": 20}])
    layers = filed({"policies": [{"name": "f", "window": 30}]}, base)
    assert resolve(layers, FACTS, NOW).window == seconds(10)
    assert layers.sample_interval == seconds(10) / 3


def test_the_full_minute_is_no_longer_than_the_window() -> None:
    assert effective().period() == minutes(1)
    assert effective(idle_timeout=20).period() == seconds(10)


# --- which entry applies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({}, True),
        ({"kernel_name": "python3"}, True),
        ({"kernel_name": "python"}, False),
        ({"kernel_name": "py*"}, True),
        ({"kernel_name": "PYTHON3"}, False),
        ({"path": "course/*"}, True),
        ({"path": "/course/*"}, True),
        ({"path": "train/*"}, True),
        ({"path": "train/**/*.ipynb"}, True),
        ({"path": "train/**/deep/*"}, True),
        ({"path": "**/run.ipynb"}, True),
        ({"path": "**/a.ipynb"}, True),
        ({"path": "*.ipynb"}, True),
        ({"path": "course"}, False),
        ({"path": "ourse/*"}, False),
        ({"path": "course/?.ipynb"}, True),
        ({"path": "course/[a-c].ipynb"}, True),
        ({"path": "course/[!a-c].ipynb"}, False),
        ({"path": "course/a+ipynb"}, False),
        ({"path": ["no/*", "train/*"]}, True),
        ({"gpu": "*A100*"}, True),
        ({"gpu": "*a100*"}, True),
        ({"gpu": "A100"}, False),
        ({"gpu": "*H100*"}, False),
        ({"user": "ada"}, True),
        ({"user": "a*"}, False),
        ({"user": ["bob", "ada"]}, True),
        ({"group": "lab"}, True),
        ({"group": "students"}, False),
        ({"label": "exam"}, True),
        ({"label": "exams"}, False),
        ({"user": "ada", "group": "students"}, False),
        ({"user": "ada", "group": "lab", "path": "course/*"}, True),
    ],
)
def test_who_matches(match: dict[str, object], matches: bool) -> None:
    policy = first_of({"name": "it", "match": match, "trusted": True, "idle_timeout": "5h"})
    assert (policy.name == "it") is matches
    assert policy.idle_timeout == (hours(5) if matches else hours(2))


@pytest.mark.parametrize(
    "match",
    [{"path": "*"}, {"gpu": "*"}, {"user": "None"}, {"group": "*"}, {"label": "None"}, {"label": "*"}],
)
def test_nothing_matches_what_is_not_known(match: dict[str, object]) -> None:
    assert first_of({"name": "it", "match": match}, facts=KernelFacts("python3")).name == "default"


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"match": {"pth": "x"}}, "match.pth"),
        ({"match": "x/*"}, "match"),
        ({"match": {"path": ""}}, "match.path"),
        ({"match": {"path": []}}, "match.path"),
        ({"match": {"path": 3}}, "match.path"),
        ({"match": {"user": ["a", None]}}, "match.user"),
        ({"match": {"path": "[z-a]"}}, "match.path"),
        ({"match": {3: "x"}}, "match.3"),
        ({"name": 3}, "name"),
        ({"reason": 3}, "reason"),
        ({"trusted": "yes"}, "trusted"),
        ({"trusted": 1}, "trusted"),
        ({"expires": "tomorrow"}, "expires"),
        ({"expires": 3}, "expires"),
        ({"expires": True}, "expires"),
        ({"expires": date.max}, "expires"),
        ({"policies": []}, "policies"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(entry: dict[object, object], key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_layers(policies=[{"name": "good"}, entry])
    assert caught.value.key == key
    assert caught.value.where == "policies[1]"
    assert caught.value.entry == 1


@pytest.mark.parametrize("policies", [{"name": "a"}, "a", 3, None])
def test_policies_are_a_list(policies: object) -> None:
    with pytest.raises(PolicyError, match=r"^policies = .*expected a list"):
        parse_layers(policies=policies)


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"policies\[1\] \(a\): name = 'a': expected a name that no other"):
        parse_layers(policies=[{"name": "a"}, {"name": "a"}])


def test_the_first_that_matches_wins_alone() -> None:
    policy = first_of(
        {"name": "no", "match": {"user": "bob"}, "idle_timeout": "1h"},
        {"name": "yes", "match": {"user": "ada"}, "idle_timeout": "3h", "reason": "thesis"},
        {"name": "later", "match": {"group": "lab"}, "idle_timeout": "4h", "max_runtime": "9h"},
    )
    assert (policy.name, policy.reason) == ("yes", "thesis")
    assert policy.idle_timeout == hours(3)
    assert policy.max_runtime == seconds(0)
    assert policy.sources["idle_timeout"] == "policies[1] (yes)"


def test_an_entry_without_a_name_is_called_by_its_place() -> None:
    policy = first_of({"max_runtime": "9h"})
    assert (policy.name, policy.sources["max_runtime"]) == ("policies[0]", "policies[0]")


@pytest.mark.parametrize(
    ("expires", "still"),
    [
        ("2027-03-01", True),
        ("2027-02-28", False),
        (date(2027, 3, 1), True),
        ("2027-03-01T12:00:00Z", False),
        ("2027-03-01T12:00:01Z", True),
        ("2027-03-01T12:00:01", True),
        ("2027-03-01T13:30:00+01:00", True),
        ("2027-03-01T12:30:00+01:00", False),
        (datetime(2027, 3, 1, 13, tzinfo=timezone(timedelta(hours=2))), False),
        (datetime(2027, 3, 1, 12, 1), True),
    ],
)
def test_an_entry_ends_when_it_expires(expires: object, still: bool) -> None:
    policy = first_of({"name": "once", "expires": expires, "idle_timeout": "9h"})
    assert (policy.name == "once") is still
    assert policy.idle_timeout == (hours(9) if still else hours(2))


# --- precedence ---------------------------------------------------------------------------------------------------

LADDER = [
    ("command line or config", hours(11)),
    ("policy_file [in file]", hours(12)),
    ("policy_file", hours(13)),
    ("policies[0] (in config)", hours(14)),
    ("trait", hours(15)),
    ("default", hours(2)),
]


@pytest.mark.parametrize("top", range(len(LADDER)))
def test_each_layer_gives_way_to_those_above_it(top: int) -> None:
    def at(rung: int) -> dict[str, object]:
        return {"idle_timeout": LADDER[rung][1]} if rung >= top else {}

    base = parse_layers(
        pinned=at(0), policies=[{"name": "in config", **at(3)}] if top <= 3 else [], traits=at(4)
    )
    content = {**at(2), "policies": [{"name": "in file", **at(1)}] if top <= 1 else []}
    policy = resolve(filed(content, base), FACTS, NOW)
    assert (policy.sources["idle_timeout"], policy.idle_timeout) == LADDER[top]


def test_layers_add_up_setting_by_setting() -> None:
    base = parse_layers(
        pinned={"mode": "enforce"}, policies=[{"name": "c", "max_runtime": "9h"}], traits={"save_timeout": 30}
    )
    policy = resolve(filed({"warm_up": 1, "policies": [{"name": "f", "window": 60}]}, base), FACTS, NOW)
    assert policy.name == "f"
    assert {key: source for key, source in policy.sources.items() if source != "default"} == {
        "mode": "command line or config",
        "max_runtime": "policies[0] (c)",
        "save_timeout": "trait",
        "warm_up": "policy_file",
        "window": "policy_file [f]",
    }


def test_two_lists_that_meet_are_pulled_into_place() -> None:
    base = parse_layers(
        policies=[{"name": "c", "match": {"user": "ada"}, "window": "40m", "warn_before": ["50m"]}]
    )
    layers = filed({"policies": [{"name": "f", "match": {"gpu": "*A100*"}, "idle_timeout": "20m"}]}, base)
    policy = resolve(layers, FACTS, NOW)
    assert (policy.idle_timeout, policy.window, policy.warn_before) == (
        minutes(20),
        minutes(10),
        (minutes(10),),
    )
    assert policy.sources["window"] == "policies[0] (c), fitted"
    assert policy.sources["warm_up"] == "default"


def test_a_wrong_policy_file_holds_everything_in_observe() -> None:
    layers = PolicyLayers(pinned={"mode": Mode.ENFORCE}, observe_because="the file is wrong")
    policy = resolve(layers, FACTS, NOW)
    assert (policy.mode, policy.sources["mode"]) == (Mode.OBSERVE, "the file is wrong")
    assert layers.mode is Mode.OBSERVE


def test_the_mode_of_the_server_is_that_of_a_kernel_without_entry() -> None:
    base = parse_layers(traits={"mode": "warn"}, policies=[{"match": {"user": "ada"}, "mode": "enforce"}])
    assert base.mode is Mode.WARN
    assert filed({"mode": "enforce"}, base).mode is Mode.ENFORCE


def test_the_hash_tells_what_decides_and_nothing_else() -> None:
    layers = filed({"window": "60s", "policies": [{"name": "a", "match": {"user": "x"}}]})
    assert len(layers.hash) == 64
    assert layers.hash == filed({"policies": [{"match": {"user": "x"}, "name": "a"}], "window": 60.0}).hash
    others = [
        {"window": "61s", "policies": [{"name": "a", "match": {"user": "x"}}]},
        {"window": "60s", "policies": [{"name": "a", "match": {"user": "y"}}]},
        {"window": "60s", "policies": [{"name": "a", "match": {"user": "x"}, "trusted": True}]},
        {"window": "60s", "policies": [{"name": "a", "match": {"user": "x"}, "expires": "2030-01-01"}]},
        {"window": "60s", "policies": []},
    ]
    assert len({layers.hash, *(filed(other).hash for other in others)}) == 6


# --- what users choose --------------------------------------------------------------------------------------------

TIGHTENING = [
    ("mode", "warn", "enforce", "observe"),
    ("scope", "gpu", "all", None),
    ("idle_timeout", "4h", "3h", "5h"),
    ("idle_timeout", "4h", "3h", 0),
    ("idle_timeout", 0, "9h", None),
    ("after_run_factor", 0.5, 0.1, 0.6),
    ("after_run_max", "8h", 0, "9h"),
    ("max_runtime", "9h", "8h", "10h"),
    ("max_runtime", "9h", "8h", 0),
    ("max_runtime", 0, "9h", None),
    ("stalled_timeout", "2h", "1h", 0),
    ("cull_stalled", False, True, None),
    ("cull_stalled", True, None, False),
    ("cull_stalled_after", "8h", "7h", "9h"),
    ("warn_before", ["30m", "5m"], ["20m", "19m"], ["31m"]),
    ("warn_before", ["30m", "5m"], ["30m"], []),
    ("save_timeout", "60s", "30s", "90s"),
    ("on_save_failure", "postpone", "recovery-copy", "never"),
    ("postpone_max", "24h", 0, "25h"),
    ("keep_alive_max", "16h", 0, "17h"),
    ("keep_alive_total", "24h", "23h", "25h"),
    ("window", "10m", "9m", "11m"),
    ("max_gap", "3m", "4m", "2m"),
    ("warm_up", "15m", 0, "16m"),
    ("unknown_policy", "never", "other-signals", None),
    ("unknown_policy", "other-signals", None, "never"),
    ("gpu_idle_below", 0.02, 0.05, 0.01),
    ("cpu_idle_below", 0.1, 0.2, 0),
    ("io_idle_below", "256KiB", "1MiB", "1KiB"),
    ("end_detached", False, True, None),
    ("end_detached", True, None, False),
]


@pytest.mark.parametrize("chosen", [{"path": "course/*"}, {"kernel_name": "python3"}, {"label": "exam"}])
@pytest.mark.parametrize(("key", "held", "tighter", "looser"), TIGHTENING)
def test_what_a_user_chooses_may_only_tighten(
    chosen: dict[str, str], key: str, held: object, tighter: object, looser: object
) -> None:
    for value, taken in ((tighter, True), (looser, False)):
        if value is None:
            continue
        entries = [{"name": "mine", "match": chosen, key: value}, {"name": "all", key: held}]
        policy = first_of(*entries)
        assert policy.name == "mine"
        assert policy.sources[key] == ("policies[0] (mine)" if taken else "policies[1] (all)")
        trusted = first_of({**entries[0], "trusted": True}, entries[1])
        assert trusted.sources[key] == "policies[0] (mine)"


def test_a_user_cannot_escape_a_stricter_entry_by_matching_another_one_first() -> None:
    mild = {"name": "scratch", "match": {"path": "course/*"}, "idle_timeout": "90m", "max_runtime": "9h"}
    strict = {"name": "guests", "match": {"group": "lab"}, "idle_timeout": "30m"}
    policy = first_of(mild, strict)
    assert policy.name == "scratch"
    assert (policy.idle_timeout, policy.max_runtime) == (minutes(30), hours(9))


def test_of_two_choices_only_the_first_counts() -> None:
    policy = first_of(
        {"name": "one", "match": {"path": "course/*"}, "warm_up": 60},
        {"name": "two", "match": {"label": "exam"}, "warm_up": 30, "idle_timeout": "30m"},
    )
    assert (policy.name, policy.warm_up, policy.idle_timeout) == ("one", minutes(1), hours(2))


def test_one_chosen_key_makes_the_whole_match_chosen() -> None:
    entry = {"match": {"user": "ada", "path": "course/*"}, "idle_timeout": "9h"}
    assert first_of(entry).idle_timeout == hours(2)
    assert first_of({**entry, "match": {"user": "ada"}}).idle_timeout == hours(9)


def test_a_choice_does_not_reach_above_its_layer() -> None:
    base = parse_layers(
        pinned={"mode": "warn"},
        policies=[
            {"name": "c", "match": {"path": "*"}, "mode": "enforce", "idle_timeout": "1h", "warm_up": 1}
        ],
    )
    policy = resolve(filed({"idle_timeout": "3h"}, base), FACTS, NOW)
    assert (policy.mode, policy.idle_timeout, policy.warm_up) == (Mode.WARN, hours(3), seconds(1))
