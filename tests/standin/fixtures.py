"""Pytest plugin: a stand-in driver for each test. Use it with `pytest_plugins = ["tests.standin.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.driver import StandInDriver, build


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a current driver, compiled once for the session."""
    return build(tmp_path_factory.mktemp("standin-library"))


@pytest.fixture(scope="session")
def old_standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a driver older than 510, compiled once for the session."""
    return build(tmp_path_factory.mktemp("old-standin-library"), old=True)


def _loaded(driver: StandInDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInDriver]:
    for name, value in driver.env().items():
        monkeypatch.setenv(name, value)
    with driver.load_in_process():
        yield driver


@pytest.fixture
def standin(
    standin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandInDriver]:
    """A driver with two GPUs, loaded into this process and, by the environment, into every process it starts."""
    yield from _loaded(StandInDriver(tmp_path / "standin", standin_library), monkeypatch)


@pytest.fixture
def old_standin(
    old_standin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandInDriver]:
    """The same, of a driver that lacks the newer functions."""
    yield from _loaded(StandInDriver(tmp_path / "standin", old_standin_library), monkeypatch)
