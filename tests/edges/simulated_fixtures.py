"""Pytest plugin: a reader of simulated GPUs, the folder it reads, and a process that may hold some."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_guard.simulated import SimulatedReader
from tests.edges.simulated_process import Child


@pytest.fixture
def reader(tmp_path):
    return SimulatedReader(tmp_path / "simulated")


@pytest.fixture
def folder(reader, tmp_path) -> Path:
    reader.read()
    return tmp_path / "simulated"


@pytest.fixture
def child(folder) -> Iterator[Child]:
    child = Child(folder)
    yield child
    child.process.kill()
    child.process.wait()
    for stream in (child.process.stdin, child.process.stdout):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
