"""Jupyter's own tests of its culler pass, unchanged, on a server with the guard, which watches all their kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SUITE = "tests/services/kernels/test_cull.py"
#: They mostly wait: so each mode runs in two processes.
PARTS = ("test_cull_idle", "not test_cull_idle")

#: Laid beside the suite. A kernel tells of a change when the guard's subscription to its messages stands.
CONFTEST = """
import json, os
import pytest
from jupyter_core.utils import ensure_async

MODE, REPORT = os.environ["GUARD_MODE"], os.environ["GUARD_REPORT"]


@pytest.fixture
def jp_argv():
    return [
        "--ServerApp.jpserver_extensions=jupyter_gpu_guard=True",
        f"--GpuGuard.mode={MODE}",
        "--GpuGuard.scope=all",
        "--GpuGuard.idle_timeout=2h",
    ]


@pytest.fixture(autouse=True)
def recorded(suppress_deprecation_warnings, jp_serverapp, request):
    (app,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpu_guard"]
    guard, mkm = app._built.guard, jp_serverapp.kernel_manager
    started, heard, original = [], set(), mkm.start_kernel

    async def start_kernel(**kwargs):
        started.append(await ensure_async(original(**kwargs)))
        return started[-1]

    mkm.start_kernel = start_kernel  # before the guard begins: its own wrapper goes around this one
    tell = guard.watch.changed_kernel

    def changed_kernel(kernel_id):
        heard.add(kernel_id)
        tell(kernel_id)

    guard.watch.changed_kernel = changed_kernel
    yield
    row = {
        "test": request.node.name,
        "mode": guard.general_policy.mode.value,
        "rounds": guard.state.rounds,
        "started": started,
        "heard": sorted(heard),
    }
    with open(REPORT, "a") as report:
        report.write(json.dumps(row) + "\\n")
"""


@dataclass
class Run:
    """One run of a part of the suite."""

    status: int
    output: str
    rows: list[dict[str, Any]]


def suite(folder: Path) -> Path:
    """The sources of the installed jupyter_server, unpacked; the wheel has no tests."""
    wanted = f"jupyter_server=={version('jupyter_server')}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-binary", "jupyter_server", "--no-build-isolation", "-d", str(folder), wanted],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        pytest.skip(f"the sources of {wanted} cannot be downloaded: {done.stderr.strip()[-300:]}")
    with tarfile.open(archives[0]) as archive:
        # Python 3.11 has filters from 3.11.4 on; Debian 12 has 3.11.2.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    (sources,) = [path for path in folder.iterdir() if path.is_dir()]
    conftest = sources / Path(SUITE).with_name("conftest.py")
    assert not conftest.exists()
    conftest.write_text(CONFTEST)
    return sources


def run(sources: Path, report: Path, mode: str, part: str) -> Run:
    report.parent.mkdir()
    temporary = report.parent / "temporary"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            SUITE,
            "-k",
            part,
            "-p",
            "no:cacheprovider",
            f"--basetemp={temporary}",
        ],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GUARD_MODE": mode, "GUARD_REPORT": str(report)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    rows = report.read_text().splitlines() if report.exists() else []
    return Run(done.returncode, done.stdout + done.stderr, [json.loads(row) for row in rows])


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, beside: Callable[..., Future[Run]]
) -> dict[tuple[str, str], Future[Run]]:
    folder = tmp_path_factory.mktemp("suite")
    sources = suite(folder)
    return {
        (mode, part): beside(run, sources, folder / f"{mode}-{number}" / "report", mode, part)
        for mode in ("observe", "enforce")
        for number, part in enumerate(PARTS)
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_jupyters_own_tests_pass_and_each_of_their_kernels_was_watched(
    runs: dict[tuple[str, str], Future[Run]], mode: str
) -> None:
    rows = []
    for part in PARTS:
        found = runs[mode, part].result()
        assert found.status == 0, found.output[-6000:]
        rows += found.rows
    names = {row["test"].partition("[")[0] for row in rows}
    assert {"test_cull_idle", "test_cull_connected", "test_cull_idle_disable", "test_cull_dead"} <= names
    for row in rows:
        assert row["mode"] == mode
        assert len(row["started"]) == 1
        if row["test"].startswith("test_cull_dead"):  # this one never comes to life, and is gone at once
            assert row["heard"] == []
        else:
            assert row["heard"] == row["started"], row
            assert row["rounds"] >= 1
