"""The conftest.py at the top: a skip without a reason fails the run, one with a reason is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INI = "[pytest]\nmarkers =\n    browser: as in pyproject.toml\n"


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest on `source`, beside a test that passes, under our conftest.py and without Chromium."""

    def run(source: str, **environment: str) -> tuple[int, str]:
        (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
        (tmp_path / "pytest.ini").write_text(INI)
        (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
        (tmp_path / "test_it.py").write_text("import pytest\n" + source)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**os.environ, "PATH": "", "CHROMIUM": "", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_a_skip_without_a_reason_fails_a_run_in_several_processes_too(run_pytest):
    code, said = run_pytest("def test_it(): pytest.skip()", PYTEST_ADDOPTS="-n 2")
    assert "skipped without a reason" in said
    assert code == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip()",
        "@pytest.mark.skip\ndef test_it(): pass",
        "pytest.skip(allow_module_level=True)",
    ],
)
def test_a_skip_without_a_reason_fails_the_run(run_pytest, source):
    code, said = run_pytest(source)
    assert "skipped without a reason" in said
    assert code == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip('no card')",
        "@pytest.mark.skipif(True, reason='no card')\ndef test_it(): pass",
        "pytest.skip('no card', allow_module_level=True)",
    ],
)
def test_a_skip_with_a_reason_is_printed_above_the_last_line(run_pytest, source):
    code, said = run_pytest(source)
    assert "no card" in said.splitlines()[-2]
    assert "skipped without a reason" not in said
    assert code == pytest.ExitCode.OK


BROWSER_TEST = "@pytest.mark.browser\ndef test_it(): pass"


def test_browser_tests_are_skipped_where_there_is_no_chromium(run_pytest):
    code, said = run_pytest(BROWSER_TEST)
    assert "set CHROMIUM=/path/to/chromium" in said.splitlines()[-2]
    assert said.splitlines()[-1].strip("= ").startswith("1 passed, 1 skipped")
    assert code == pytest.ExitCode.OK


def test_browser_tests_run_where_chromium_is_named(run_pytest):
    code, said = run_pytest(BROWSER_TEST, CHROMIUM="/opt/chromium")
    assert said.splitlines()[-1].strip("= ").startswith("2 passed")
    assert code == pytest.ExitCode.OK
