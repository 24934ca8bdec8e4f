"""Every benchmark runs, and tells what it measured. How fast anything is, is not tested."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: Each script with figures that it must tell.
SCRIPTS = {
    "round": {
        "round / nvitop",
        "full scans of /proc",
        "driver calls of a round, mean of twelve",
        "driver calls of nvitop",
    },
    "scans": {"round: growth", "round with a full scan: growth"},
    "judging": {"attribute and judge, mean of twelve rounds"},
    "hang": {"GET status, driver hanging: p99", "SIGTERM to the end, driver hanging"},
    "loop": {"late, with the guard: max", "late, without: max"},
    "idle_server": {"no kernel: CPU of the guard", "no kernel: memory of the guard"},
}


@functools.cache
def run(script: str) -> tuple[dict[str, Any], str]:
    """What a script wrote and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        printed = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{script}", "--quick", "--json", str(result)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        ).stdout
        return json.loads(result.read_text()), printed


@pytest.mark.timeout(240)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs_and_tells_its_figures(script):
    told, printed = run(script)
    assert told["benchmark"] == script
    assert told["machine"]["cores"] == len(os.sched_getaffinity(0))
    names = [figure["name"] for figure in told["figures"]]
    assert set(names) >= SCRIPTS[script]
    assert len(set(names)) == len(names)
    for figure in told["figures"]:
        assert math.isfinite(figure["value"])
        target = figure["target"]
        assert figure["met"] is (None if target is None else figure["value"] <= target)
        assert figure["name"] in printed


@pytest.mark.timeout(240)
def test_a_round_calls_the_driver_no_more_often_than_nvitop_does_to_list_processes():
    figures = {figure["name"]: figure["value"] for figure in run("round")[0]["figures"]}
    calls = figures["driver calls of a round, mean of twelve"]
    assert calls * 12 == pytest.approx(2 * (12 * 5 + 6 + 3) + 1)
    assert figures["full scans of /proc"] == 1
    assert calls <= figures["driver calls of nvitop"]
