"""The traits as an admin sets them: in a config file, on a command line, in code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Application, Config

from jupyter_gpu_guard.config import GpuGuard, Settings
from jupyter_gpu_guard.core.policy import KernelFacts, Mode, Policy, PolicyError, resolve
from jupyter_gpu_guard.core.policy_fields import BY_NAME, NOT_PER_KERNEL
from jupyter_gpu_guard.core.policy_vain import find_vain

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def configured(**options: Any) -> Settings:
    return GpuGuard(config=Config({"GpuGuard": options})).settings()


def commanded(*arguments: str) -> Settings:
    """What a server makes of its command line: the real parser of traitlets, which knows nothing of our traits."""
    app = Application()
    app.initialize(list(arguments))
    return GpuGuard(parent=app).settings()


def policy_of(settings: Settings) -> Policy:
    return resolve(settings.layers, KernelFacts("python3"), NOW)


def test_there_is_a_trait_for_each_setting_and_no_other() -> None:
    traits = set(GpuGuard.class_trait_names(config=True))
    assert traits == {*BY_NAME, *NOT_PER_KERNEL}
    assert "checkpoint_timeout" not in traits


def test_without_config_the_defaults_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    settings = GpuGuard().settings()
    policy = policy_of(settings)
    assert set(policy.sources.values()) == {"default"}
    assert settings.mode is Mode.OBSERVE
    assert settings.sample_interval == timedelta(seconds=5)
    assert settings.gpu_source == "auto"
    assert settings.history_path is None
    assert settings.policy_file == ""
    assert settings.shield_working is None
    assert settings.recovery_dir == ("gpu_guard_recovery", str(tmp_path / "gpu_guard" / "recovery"))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_trait_shows_the_default_that_holds(name: str) -> None:
    field = BY_NAME[name]
    assert field.parse(getattr(GpuGuard(), name), key=name) == getattr(policy_of(configured()), name)


@pytest.mark.parametrize("name", sorted(GpuGuard.class_trait_names(config=True)))
def test_every_trait_has_a_help(name: str) -> None:
    text = GpuGuard.class_traits()[name].help
    assert text.rstrip().endswith(".")
    if name in BY_NAME:
        assert "A policy may set it." in text
        field = BY_NAME[name]
        if isinstance(getattr(policy_of(configured()), name), timedelta):
            zero_ok = _accepts(field, 0)
            assert (". 0: " in text) is zero_ok
            assert ("longer than 0" in text) is not zero_ok


def _accepts(field: Any, value: object) -> bool:
    try:
        field.parse(value, key=field.name)
    except PolicyError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        (["--GpuGuard.idle_timeout=9000"], "idle_timeout", timedelta(seconds=9000)),
        (["--GpuGuard.idle_timeout=1h30m"], "idle_timeout", timedelta(minutes=90)),
        (["--GpuGuard.idle_timeout", "3h"], "idle_timeout", timedelta(hours=3)),
        (["--GpuGuard.mode=enforce"], "mode", Mode.ENFORCE),
        (["--GpuGuard.gpu_idle_below=0.05"], "gpu_idle_below", 0.05),
        (["--GpuGuard.io_idle_below=1MiB"], "io_idle_below", 1 << 20),
        (["--GpuGuard.cull_stalled=true"], "cull_stalled", True),
        (["--GpuGuard.cull_stalled=False"], "cull_stalled", False),
        (["--GpuGuard.warn_before=10m"], "warn_before", (timedelta(minutes=10),)),
        (["--GpuGuard.warn_before=10m,60"], "warn_before", (timedelta(minutes=10), timedelta(minutes=1))),
        (
            ["--GpuGuard.warn_before=['10m', 60]"],
            "warn_before",
            (timedelta(minutes=10), timedelta(minutes=1)),
        ),
        (
            ["--GpuGuard.warn_before=10m", "--GpuGuard.warn_before=60"],
            "warn_before",
            (timedelta(minutes=10), timedelta(minutes=1)),
        ),
    ],
)
def test_a_command_line_is_read(arguments: list[str], name: str, expected: object) -> None:
    policy = policy_of(commanded(*arguments))
    assert getattr(policy, name) == expected
    assert policy.sources[name] == "command line or config"


def test_a_command_line_reads_the_options_of_the_server() -> None:
    settings = commanded(
        "--GpuGuard.gpu_source=none",
        "--GpuGuard.history_path=2027",
        "--GpuGuard.shield_working=True",
        "--GpuGuard.sample_interval=0.5",
        "--GpuGuard.policy_file=~/policy.toml",
        "--GpuGuard.policies=[{'name': 'a', 'max_runtime': '9h'}]",
        "--GpuGuard.recovery_dir=/var/recovery",
    )
    assert settings.gpu_source == "none"
    assert settings.history_path == "2027"
    assert settings.shield_working is True
    assert settings.sample_interval == timedelta(seconds=0.5)
    assert settings.policy_file == str(Path.home() / "policy.toml")
    assert policy_of(settings).max_runtime == timedelta(hours=9)
    assert settings.recovery_dir == ("/var/recovery",)


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("--GpuGuard.idle_timeout=soon", "idle_timeout", "soon"),
        ("--GpuGuard.idle_timeout=-5", "idle_timeout", -5),
        ("--GpuGuard.idle_timeout=True", "idle_timeout", True),
        ("--GpuGuard.cull_stalled=1", "cull_stalled", 1),
        ("--GpuGuard.idle_timout=2h", "idle_timout", "2h"),
        ("--GpuGuard.policies={'name': 'a'}", "policies", {"name": "a"}),
    ],
)
def test_a_wrong_command_line_is_refused(argument: str, key: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        commanded(argument)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert f"{key} = {value!r}: expected" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"gpu_source": "amd"}, "gpu_source"),
        ({"gpu_source": None}, "gpu_source"),
        ({"history_path": 3}, "history_path"),
        ({"policy_file": None}, "policy_file"),
        ({"shield_working": "yes"}, "shield_working"),
        ({"shield_working": 1}, "shield_working"),
        ({"recovery_dir": []}, "recovery_dir"),
        ({"recovery_dir": "here"}, "recovery_dir"),
        ({"recovery_dir": ["ok", ".hidden"]}, "recovery_dir[1]"),
        ({"recovery_dir": ["a/.b/c"]}, "recovery_dir[0]"),
        ({"recovery_dir": ["../up"]}, "recovery_dir[0]"),
        ({"recovery_dir": [""]}, "recovery_dir[0]"),
        ({"recovery_dir": [3]}, "recovery_dir[0]"),
        ({"sample_interval": 0}, "sample_interval"),
        ({"sample_interval": True}, "sample_interval"),
        ({"sample_interval": "-1s"}, "sample_interval"),
        ({"checkpoint_timeout": "15m"}, "checkpoint_timeout"),
        ({"policies": "all"}, "policies"),
    ],
)
def test_a_wrong_option_of_the_server_is_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        configured(**options)
    assert caught.value.key == key


def test_an_absolute_folder_may_be_hidden() -> None:
    assert configured(recovery_dir=["/home/a/.local/x", "b"]).recovery_dir == ("/home/a/.local/x", "b")


def test_config_stands_above_policies_and_code_below() -> None:
    entry = {"name": "long", "idle_timeout": "5h"}
    in_config = configured(idle_timeout="3h", policies=[entry])
    assert policy_of(in_config).idle_timeout == timedelta(hours=3)
    assert [str(vain) for vain in find_vain(in_config.layers, datetime.now(UTC))] == [
        "idle_timeout of policies[0] (long) has no effect: command line or config sets it",
    ]
    in_code = GpuGuard(idle_timeout="3h", max_runtime="9h", policies=[entry]).settings()
    policy = policy_of(in_code)
    assert (policy.idle_timeout, policy.max_runtime) == (timedelta(hours=5), timedelta(hours=9))
    assert policy.sources["max_runtime"] == "trait"


def test_config_that_repeats_the_default_counts_as_set() -> None:
    assert policy_of(configured(idle_timeout="2h")).sources["idle_timeout"] == "command line or config"
    with pytest.raises(PolicyError, match=r"warn_before = .*shorter than idle_timeout = 30m"):
        configured(idle_timeout="30m", warn_before=["60m", "15m", "5m"])


def test_the_config_of_a_parent_counts_too() -> None:
    class Outer(Application):
        pass

    app = Outer(config=Config({"Outer": {"GpuGuard": {"idle_timeout": "3h"}}}))
    assert policy_of(GpuGuard(parent=app).settings()).sources["idle_timeout"] == "command line or config"


def test_config_files_may_append_to_lists() -> None:
    config = Config()
    config.GpuGuard.policies.append({"name": "a", "max_runtime": "9h"})
    assert policy_of(GpuGuard(config=config).settings()).name == "a"
    assert GpuGuard().policies == []


@pytest.mark.parametrize(
    ("shield_working", "told"),
    [(None, {Mode.ENFORCE}), (True, {Mode.OBSERVE, Mode.WARN, Mode.ENFORCE}), (False, set())],
)
def test_who_tells_the_stock_cullers(shield_working: bool | None, told: set[Mode]) -> None:
    settings = configured(shield_working=shield_working)
    assert {mode for mode in Mode if settings.shields(mode)} == told
