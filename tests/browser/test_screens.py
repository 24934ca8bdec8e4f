"""The other things a person may see: observing, no news from the server, Notebook 7, the widget, a silent long cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.lab import USE_GPU, Lab

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

WIDGET = """\
from jupyter_gpu_guard import GpuGuardWidget, SimulatedGpu
gpu = SimulatedGpu(memory="4GiB", utilization=0)
GpuGuardWidget()
"""


def kernel_of(lab: Lab, notebook: str) -> Any:
    return next((k for k in lab.server.guard()["kernels"] if notebook in k["notebooks"]), None)


def test_observing_shows_use_and_no_countdown(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=8", mode="observe")
    lab.write("nb.ipynb", USE_GPU, "gpu.utilization = 0")
    page = lab.open("nb.ipynb")
    page.run_cell(0)
    expect(page.use).to_contain_text("80 %", timeout=20_000)
    page.run_cell(1)
    kernel_id = kernel_of(lab, "nb.ipynb")["kernel_id"]
    lab.server.until(
        lambda: any(t["action"] == "would_cull" for t in lab.server.guard("history")["transitions"]),
        60,
        "no record",
    )
    expect(page.words).to_contain_text("Observing: nothing will be shut down", ignore_case=True)
    assert lab.server.has_kernel(kernel_id)
    assert page.page.locator(".Toastify__toast").count() == 0
    page.shot("8-observing")


def test_it_says_when_the_server_is_silent(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=600")
    lab.write("nb.ipynb", USE_GPU)
    page = lab.open("nb.ipynb")
    page.run_cell(0)
    expect(page.use).to_contain_text("80 %", timeout=20_000)
    lab.server.stop()
    expect(page.words).to_contain_text("no news from the server", timeout=120_000)
    page.shot("9-stale")


@pytest.mark.parametrize("app", ["lab/tree", "notebooks"])
def test_the_widget_shows_its_own_kernel_and_does_not_keep_it(
    start_lab: Callable[..., Lab], app: str
) -> None:
    lab = start_lab("GpuGuard.idle_timeout=16", "GpuGuard.warn_before=['8s']")
    lab.write("nb.ipynb", WIDGET)
    page = lab.open("nb.ipynb", app=app)
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    page.run_cell(0)
    widget = page.page.locator(".gpu-guard")
    expect(widget).to_contain_text("4.0 GiB", timeout=30_000)
    expect(widget).to_contain_text("shuts down in", timeout=60_000)
    expect(page.item).to_be_visible()
    page.shot(f"widget-{app.partition('/')[0]}")
    kernel_id = kernel_of(lab, "nb.ipynb")["kernel_id"]
    lab.server.until(lambda: not lab.server.has_kernel(kernel_id), 60, "the kernel was not shut down")
    expect(widget).to_contain_text("shut down at")
    name = page.page.locator(".jp-Toolbar-kernelName").first
    expect(name).to_have_text("No Kernel", timeout=5_000)  # before JupyterLab looks again by itself
    assert page.page.locator(".jp-Dialog").count() == 0
    assert not [url for url in asked if "gpu-guard/api/v1/status" in url], "it listens, it does not ask"
    page.shot(f"widget-{app.partition('/')[0]}-ended")


def test_restart_and_run_all_with_a_silent_cell_is_spared(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(
        "GpuGuard.idle_timeout=6",
        "GpuGuard.scope=all",
        "MappingKernelManager.cull_idle_timeout=8",
        "MappingKernelManager.cull_interval=1",
        "MappingKernelManager.cull_connected=True",
    )
    lab.write("nb.ipynb", "import time\ntime.sleep(25)\nprint('done' + 'ish')")
    page = lab.open("nb.ipynb")
    page.page.get_by_role("button", name="Restart the kernel and run all cells").click()
    page.page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    expect(page.page.locator(".jp-OutputArea-output")).to_contain_text("doneish", timeout=60_000)
