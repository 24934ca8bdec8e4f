"""The demo: its notebook runs, and its policy keeps the promise of two minutes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest

from jupyter_gpu_guard.cli import read_settings
from jupyter_gpu_guard.core.policy import KernelFacts, Mode, resolve
from tests.edges.answering import REPOSITORY
from tests.server.live import LiveServer

NOTEBOOK = REPOSITORY / "binder" / "demo.ipynb"
CONFIG = REPOSITORY / "binder" / "jupyter_server_config.py"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("live")
    env = {"PYTHONPATH": str(REPOSITORY)}
    with LiveServer(folder, "GpuGuard.gpu_source=simulated", config=CONFIG.read_text(), env=env) as server:
        server.guard()  # an open page does so, and the GPUs are read
        yield server


def test_the_notebook_is_valid_and_clean():
    notebook = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


def test_a_kernel_is_shut_down_within_two_minutes_of_its_last_use():
    settings = read_settings(str(CONFIG), [])
    policy = resolve(
        settings.layers, KernelFacts("python3", ("demo.ipynb",), (), None, (), None), datetime.now(UTC)
    )
    assert policy.mode is Mode.ENFORCE
    assert policy.idle_timeout + policy.save_timeout + 3 * settings.sample_interval < timedelta(minutes=2)
    # A run of the first cell does not lengthen it, and the kernel is not too young at its end.
    assert policy.after_run_factor * timedelta(seconds=20) <= policy.idle_timeout
    assert policy.warm_up + policy.warn_before[0] <= policy.idle_timeout


def test_the_cells_run(live):
    kernel_id = live.start_kernel("demo.ipynb")
    live.until(lambda: live.guard()["telemetry"]["state"] == "ok", 20, "no reading")
    cells = {cell["id"]: cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"}
    assert "seconds=20" in cells["use-code"]
    live.run(kernel_id, cells["use-code"].replace("seconds=20", "seconds=3"))
    live.until(lambda: (live.kernel(kernel_id) or {}).get("gpus"), 20, "the kernel holds no GPU")
    assert live.kernel(kernel_id)["gpus"][0]["memory_bytes"] == 4 << 30
    live.run(kernel_id, cells["widget-code"])
    assert live.run(kernel_id, cells["magic-code"]).startswith("in use: ")
    assert live.run(kernel_id, cells["keep-code"]).startswith("kept until ")
    assert live.kernel(kernel_id)["keep_alive_until"]
