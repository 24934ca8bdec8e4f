"""nvitop and gpustat run on the stand-in driver unmodified, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin.context import Context
from tests.standin.driver import GIB

pytest_plugins = ["tests.standin.fixtures"]

NVITOP_API = """
import json, nvitop
rows = [
    [device.name(), device.memory_used(), device.gpu_utilization(), device.power_usage(), [
        [p.pid, p.gpu_memory(), p.gpu_sm_utilization()] for p in device.processes().values()
    ]]
    for device in nvitop.Device.all()
]
mig = [[d.name(), d.memory_total(), sorted(d.processes())] for d in nvitop.MigDevice.all()]
print(json.dumps([rows, mig]))
"""


@pytest.fixture
def this_process(standin):
    """This very process, as the one that uses GPU 0."""
    with Context(memory=2 * GIB, sm=81, mem=12):
        yield os.getpid()


def program(name: str) -> str:
    """The console script beside this Python."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, f"{name} belongs to what the tests need"
    return found


def output_of(command: list[str]) -> str:
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LANG": "C.UTF-8"}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def test_gpustat_shows_the_process(standin, this_process):
    zero, one = json.loads(output_of([program("gpustat"), "--json"]))["gpus"]
    assert (zero["memory.used"], zero["memory.total"], zero["utilization.gpu"]) == (2048, 81920, 81)
    assert (zero["power.draw"], zero["enforced.power.limit"], zero["temperature.gpu"]) == (90, 700, 34)
    assert [(p["pid"], p["gpu_memory_usage"]) for p in zero["processes"]] == [(this_process, 2048)]
    assert (one["processes"], one["utilization.gpu"]) == ([], 0)


def test_nvitop_lists_the_process(standin, this_process):
    rows, mig = json.loads(output_of([sys.executable, "-c", NVITOP_API]))
    name = "NVIDIA H100 80GB HBM3"
    assert rows == [
        [name, 2 * GIB, 81, 90_000, [[this_process, 2 * GIB, 81]]],
        [name, 0, 0, 90_000, []],
    ]
    assert mig == []


def test_nvitop_sees_mig_devices(standin):
    standin.add_mig(0, 0, gi=7, memory=10 * GIB)
    standin.add_mig(0, 1, gi=8, memory=20 * GIB, slices=2)
    with Context(memory=GIB, gi=8, ci=0):
        _, mig = json.loads(output_of([sys.executable, "-c", NVITOP_API]))
    assert mig == [
        ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * GIB, []],
        ["NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20 * GIB, [os.getpid()]],
    ]


def test_the_screen_of_nvitop_shows_the_process(standin, this_process):
    screen = output_of([program("nvitop"), "--once", "--ascii"])
    assert re.search(rf"^\W*0\s+{this_process}\s+C\s+\S+\s+2048MiB\s+81\s+12\b", screen, re.MULTILINE)
    assert "2048MiB / 80.00GiB" in screen
    assert "Driver Version: 570.86.15" in screen
    assert "CUDA Driver Version: 12.8" in screen


def test_both_say_so_where_no_driver_is_loaded(standin, monkeypatch):
    monkeypatch.setenv("NVML_STANDIN_STATE", "/nonexistent")
    for name in ("gpustat", "nvitop"):
        command = [program(name), "--once"] if name == "nvitop" else [program(name), "--json"]
        failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert failed.returncode != 0
        assert "Driver Not Loaded" in failed.stdout + failed.stderr
