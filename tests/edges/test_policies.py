"""The policy file on a real disk: edits, mistakes, their lines, and what stays in force."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from traitlets.config import Config

from jupyter_gpu_guard.config import GpuGuard
from jupyter_gpu_guard.core.policy import KernelFacts, Mode, Policy, parse_layers, resolve
from jupyter_gpu_guard.policies import MOST_BYTES, PolicyFile, check_file, explain

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
GOOD = """\
mode = "enforce"
idle_timeout = "1h"

[[policies]]
name = "exam"
idle_timeout = "30m"
[policies.match]
path = "exam/*"

[[policies]]
name = "guests"
expires = 2027-06-01
match = { group = ["guests", "visitors"] }
idle_timeout = "20m"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def opened(path: Path, text: str | None = None, **pinned: object) -> PolicyFile:
    if text is not None:
        path.write_text(text)
    file = PolicyFile(str(path), parse_layers(pinned=pinned))
    file.refresh()
    return file


def policy_of(file: PolicyFile, notebook: str = "a.ipynb", groups: tuple[str, ...] = ()) -> Policy:
    return resolve(file.layers(), KernelFacts("python3", (notebook,), groups=groups), NOW)


def test_a_good_file_is_in_force(path: Path) -> None:
    file = opened(path, GOOD)
    assert (file.valid, file.error) == (True, None)
    assert policy_of(file).mode is Mode.ENFORCE
    assert policy_of(file).idle_timeout == timedelta(hours=1)
    assert policy_of(file, "exam/x.ipynb").name == "exam"
    assert policy_of(file, "exam/x.ipynb").idle_timeout == timedelta(minutes=30)
    assert policy_of(file, groups=("visitors",)).sources["idle_timeout"] == "policy_file [guests]"


def test_before_the_first_look_nothing_is_shut_down(path: Path) -> None:
    path.write_text(GOOD)
    file = PolicyFile(str(path), parse_layers(pinned={"mode": "enforce"}))
    assert not file.valid
    assert policy_of(file).mode is Mode.OBSERVE
    assert file.refresh() is True
    assert policy_of(file).mode is Mode.ENFORCE


def test_an_edit_in_place_is_seen(path: Path) -> None:
    file = opened(path, GOOD)
    before = file.hash
    path.write_text(GOOD.replace('"1h"', '"3h"'))
    assert file.refresh() is True
    assert policy_of(file).idle_timeout == timedelta(hours=3)
    assert file.hash != before
    path.write_text(GOOD)
    assert file.refresh() is True
    assert file.hash == before


def test_an_edit_within_the_same_tick_and_of_the_same_size_is_seen(path: Path) -> None:
    file = opened(path, GOOD)
    status = path.stat()
    path.write_text(GOOD.replace('"1h"', '"3h"'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.refresh() is True
    assert policy_of(file).idle_timeout == timedelta(hours=3)


def test_a_file_that_was_moved_into_place_is_seen(path: Path, tmp_path: Path) -> None:
    file = opened(path, GOOD)
    status = path.stat()
    other = tmp_path / "new.toml"
    other.write_text(GOOD.replace('"1h"', '"3h"'))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert file.refresh() is True
    assert policy_of(file).idle_timeout == timedelta(hours=3)


def test_a_symbolic_link_that_points_elsewhere_is_seen(path: Path, tmp_path: Path) -> None:
    """This is how Kubernetes swaps a mounted ConfigMap."""
    for name, idle in (("v1", "1h"), ("v2", "3h")):
        (tmp_path / name).write_text(f'idle_timeout = "{idle}"\n')
    path.symlink_to("v1")
    file = opened(path)
    (tmp_path / "link").symlink_to("v2")
    (tmp_path / "link").replace(path)
    assert file.refresh() is True
    assert policy_of(file).idle_timeout == timedelta(hours=3)


def test_an_old_file_that_stays_as_it_is_is_not_read_again(path: Path) -> None:
    path.write_text(GOOD)
    later = time.time_ns() + 3600 * 10**9
    file = PolicyFile(str(path), parse_layers(), clock=lambda: later)
    assert file.refresh() is True
    layers = file.layers()
    assert file.refresh() is False
    assert file.layers() is layers


def test_a_comment_changes_nothing_in_force(path: Path) -> None:
    file = opened(path, GOOD)
    before = file.hash
    path.write_text("# a comment\n" + GOOD)
    assert file.refresh() is False
    assert file.hash == before


@pytest.mark.parametrize(
    "wrong",
    ["mode = ", 'mode = "on"', "[[policies]]\nmatch = 3", 'window = "3h"', "\x00", "idle_timeout = -1"],
)
def test_a_wrong_file_at_the_start_means_observe_until_it_is_right(path: Path, wrong: str) -> None:
    file = opened(path, wrong, mode="enforce")
    assert not file.valid
    policy = policy_of(file)
    assert policy.mode is Mode.OBSERVE
    assert policy.sources["mode"] == "observe: policy_file has not been good yet"
    assert policy.idle_timeout == timedelta(hours=2)
    path.write_text(GOOD)
    assert file.refresh() is True
    assert file.valid
    assert policy_of(file).mode is Mode.ENFORCE


@pytest.mark.parametrize("wrong", ["mode = ", 'mode = "on"', "[[policies]]\nmatch = 3", 'window = "3h"'])
def test_a_file_that_becomes_wrong_leaves_the_last_good_one_in_force(path: Path, wrong: str) -> None:
    file = opened(path, GOOD)
    before = file.hash
    path.write_text(wrong)
    assert file.refresh() is True
    assert not file.valid
    assert policy_of(file).mode is Mode.ENFORCE
    assert policy_of(file).idle_timeout == timedelta(hours=1)
    assert file.hash == before
    assert file.refresh() is False
    path.write_text(GOOD)
    assert file.refresh() is True
    assert (file.valid, file.hash) == (True, before)


def test_a_file_that_goes_and_comes_back(path: Path, tmp_path: Path) -> None:
    path.write_text(GOOD)
    later = time.time_ns() + 3600 * 10**9
    file = PolicyFile(str(path), parse_layers(), clock=lambda: later)
    file.refresh()
    path.rename(tmp_path / "aside")
    assert file.refresh() is True
    assert "No such file" in str(file.error)
    assert policy_of(file).idle_timeout == timedelta(hours=1)
    (tmp_path / "aside").rename(path)
    assert file.refresh() is True
    assert file.valid


def test_a_file_may_contradict_the_config(path: Path) -> None:
    file = opened(path, 'idle_timeout = "20m"\n', window="1h")
    assert str(file.error) == (
        "command line or config: window = '1h': expected at most idle_timeout = 20m (policy_file)"
    )


def test_what_is_no_text_file_is_refused(path: Path, tmp_path: Path) -> None:
    assert "Is a directory" in str(check_file(str(tmp_path))[0])
    assert "No such file" in str(check_file(str(path))[0])
    os.mkfifo(path)
    assert "a regular file" in str(check_file(str(path))[0])
    path.unlink()
    path.write_bytes(b'mode = "\xff"')
    assert "UTF-8" in str(check_file(str(path))[0])
    path.write_text("#" * (MOST_BYTES + 1))
    assert f"at most {MOST_BYTES} bytes" in str(check_file(str(path))[0])
    path.write_text("#" * MOST_BYTES)
    assert check_file(str(path)) == []
    path.write_text(f"idle_timeout = {'9' * 5000}")
    assert check_file(str(path))[0].key == "policy_file"
    path.write_text(f"warn_before = {'[' * 50000}")
    assert check_file(str(path))[0].key == "policy_file"


def test_a_link_to_itself_and_a_name_that_is_none_are_refused(path: Path) -> None:
    path.symlink_to(path)
    assert check_file(str(path))[0].key == "policy_file"
    assert check_file("a\x00b")[0].key == "policy_file"


def test_no_descriptor_is_left_open(path: Path, tmp_path: Path) -> None:
    path.write_text("mode = ")
    before = len(os.listdir("/proc/self/fd"))
    for wrong in (tmp_path, path, tmp_path / "none"):
        check_file(str(wrong))
    assert len(os.listdir("/proc/self/fd")) == before


WRONG = """\
idle_timout = "1h"
warn_before = [
  "10m", 0]

[[policies]]
name = "inline"
match = { user = "ada", pth = "x" }
mode = true

[[ policies ]]
"idle_timeout" = -1
window = "3h"
[policies.match]
gpu = 3

[[policies]]
trusted = "yes"
sample_interval = 3
"""


def test_every_mistake_is_told_with_its_line(path: Path) -> None:
    path.write_text(WRONG)
    told = [str(error).partition(" = ")[0] for error in check_file(str(path))]
    assert told == [
        "policy.toml:1: idle_timout",
        "policy.toml:2: warn_before[1]",
        "policy.toml:8, policy_file [inline]: mode",
        "policy.toml:7, policy_file [inline]: match.pth",
        "policy.toml:11, policy_file [policies[1]]: idle_timeout",
        "policy.toml:14, policy_file [policies[1]]: match.gpu",
        "policy.toml:18, policy_file [policies[2]]: sample_interval",
        "policy.toml:17, policy_file [policies[2]]: trusted",
    ]


def test_a_contradiction_is_told_with_its_line(path: Path) -> None:
    path.write_text('idle_timeout = "20m"\n[[policies]]\nname = "a"\n\nwindow = "30m"\n')
    assert [str(error) for error in check_file(str(path))] == [
        "policy.toml:5, policy_file [a]: window = '30m': expected at most idle_timeout = 20m (policy_file)"
    ]


def test_a_mistake_in_toml_is_told_with_its_line(path: Path) -> None:
    path.write_text('mode = "warn"\nwindow = 10m\n')
    (error,) = check_file(str(path))
    assert "line 2" in str(error)
    assert "\n" not in str(error)


def test_a_list_that_is_none_is_refused(path: Path) -> None:
    path.write_text('policies = "all"\n')
    assert [error.key for error in check_file(str(path))] == ["policies"]


def test_explain_says_what_holds_and_why(path: Path) -> None:
    path.write_text(GOOD)
    config = Config({"GpuGuard": {"policy_file": str(path), "max_runtime": "9h"}})
    settings = GpuGuard(config=config).settings()
    rows = explain(settings, now=NOW, path="exam/x.ipynb", kernel_name="python3")
    assert rows[0] == ("policy", "exam", "")
    found = {name: (value, source) for name, value, source in rows[1:]}
    assert len(found) == 24
    assert found["mode"] == ("enforce", "policy_file")
    assert found["idle_timeout"] == ("30m", "policy_file [exam]")
    assert found["max_runtime"] == ("9h", "command line or config")
    assert found["warn_before"] == (["15m", "5m"], "default, fitted")
    assert found["io_idle_below"] == ("256KiB", "default")
    other = explain(settings, now=datetime(2027, 7, 1, tzinfo=UTC), groups=("guests",))
    assert other[0][1] == "default"
