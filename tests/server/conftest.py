"""Fixtures of the tests on real servers: each server has a driver of its own and is ended with its module.

Scenes that mostly wait are played side by side (`beside`); what each saw is asserted by its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.gpu_server import GpuServer
from tests.standin.driver import StandInDriver
from tests.standin.fixtures import standin_library

__all__ = ["standin_library"]


@pytest.fixture(scope="module")
def make_server(
    standin_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., GpuServer]]:
    """Make a server that isn't started yet: `make_server(*options, gpus=2, policies=[...])`; one that is `like` another
    has its folders and its driver."""
    made: list[GpuServer] = []

    def make(*options: str, gpus: int = 2, like: GpuServer | None = None, **settings: Any) -> GpuServer:
        if like is None:
            folder = tmp_path_factory.mktemp("server")
            driver = StandInDriver(folder / "standin", standin_library, gpus)
            made.append(GpuServer(folder / "jupyter", driver, *options, **settings))
        else:
            made.append(GpuServer(like.folder, like.driver, *options, **settings))
        return made[-1]

    yield make
    for server in made:
        server.driver.clear_rules()  # one after the other: some share a driver
    with ThreadPoolExecutor(len(made) or 1) as pool:
        list(pool.map(end, made))


def end(server: GpuServer) -> None:
    """Stop a server that was started, and what outlived its kernels."""
    if server.process is not None:
        server.stop()
    server.end_loads()


@pytest.fixture(scope="module")
def beside() -> Iterator[Callable[..., Future[Any]]]:
    """Play a scene in a thread of its own: `beside(scene, *arguments).result()` is what it saw."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit
