"""Pytest plugin: machines with a current and with an old stand-in driver, on which no MPS server seems to run."""

from __future__ import annotations

import pytest

from jupyter_gpu_guard import nvml_card
from tests.edges.nvml_machine import Machine


@pytest.fixture
def no_mps(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(nvml_card, "MPS_PIPES", tmp_path / "nvidia-mps")
    monkeypatch.setattr(nvml_card, "WINDOWS_GPU", tmp_path / "dxg")


@pytest.fixture
def machine(standin, no_mps, tmp_path):
    return Machine(standin, tmp_path)


@pytest.fixture
def old_machine(old_standin, no_mps, tmp_path):
    return Machine(old_standin, tmp_path)
