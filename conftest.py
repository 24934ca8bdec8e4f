"""Rules for all tests: who lacks a browser skips the browser tests, and whatever is skipped says why.

`-rs` in pyproject.toml prints the reasons right above pytest's last line.
"""

from __future__ import annotations

import os
import shutil

import pytest

NO_BROWSER = "no Chromium: install it, or set CHROMIUM=/path/to/chromium"

unexplained = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[unexplained] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CHROMIUM") or shutil.which("chromium"):
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not _reason(report.longrepr):
        item.config.stash[unexplained].append(report.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    if report.skipped and not _reason(report.longrepr):
        collector.config.stash[unexplained].append(report.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    passing = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if session.config.stash[unexplained] and session.exitstatus in passing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for test in config.stash[unexplained]:
        terminalreporter.write_line(f"FAILED {test}: skipped without a reason", red=True)


def _reason(longrepr: object) -> str:
    """What a skip said; pytest puts words of its own where nothing was said."""
    said = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    reason = said.removeprefix("Skipped").removeprefix(":").strip()
    return "" if reason == "unconditional skip" else reason
