"""Rules for all tests: who lacks a browser skips the browser tests, and whatever is skipped says why.

`-rs` in pyproject.toml prints the reasons right above pytest's last line.
"""

from __future__ import annotations

import os
import shutil

import pytest

NO_BROWSER = "no Chromium: install it, or set CHROMIUM=/path/to/chromium"


class SkipsWithoutReason:
    """Fails a run in which something was skipped and nobody said why. Looks at the reports, so that it sees those of
    other processes too."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not _reason(report.longrepr) and report.nodeid not in self.found:
            self.found.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passing = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.found and session.exitstatus in passing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.found:
            terminalreporter.write_line(f"FAILED {test}: skipped without a reason", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipsWithoutReason())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CHROMIUM") or shutil.which("chromium"):
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


def _reason(longrepr: object) -> str:
    """What a skip said; pytest puts words of its own where nothing was said."""
    said = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    reason = said.removeprefix("Skipped").removeprefix(":").strip()
    return "" if reason == "unconditional skip" else reason
