"""The main job as a person sees it: use, countdown, warning, Keep, and a shutdown that loses nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.lab import USE_GPU, Lab, NotebookPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

STOP = "gpu.utilization = 0"


def kernel_of(lab: Lab, notebook: str) -> Any:
    """The kernel of a notebook as the guard's status has it; None when there is none."""
    return next((k for k in lab.server.guard()["kernels"] if notebook in k["notebooks"]), None)


def sources(lab: Lab, notebook: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in lab.on_disk(notebook)["cells"])


def use_and_stop(page: NotebookPage) -> None:
    """Run the cell that uses the GPU, see it in the status bar, then the one that stops."""
    page.run_cell(0)
    expect(page.use).to_contain_text("80", timeout=20_000)
    expect(page.use).to_contain_text("4", timeout=20_000)
    page.shot("1-in-use")
    page.run_cell(1)


def test_use_countdown_warning_keep_and_shutdown(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=24", "GpuGuard.warn_before=['16s','8s']")
    lab.write("story.ipynb", USE_GPU, STOP, "# notes")
    page = lab.open("story.ipynb")
    use_and_stop(page)
    expect(page.words).to_contain_text("shuts down in", timeout=40_000)
    page.shot("2-countdown")
    warning = page.notification("story.ipynb")
    expect(warning).to_contain_text("ariables and GPU memory are lost", timeout=30_000)
    page.shot("3-warning")
    before = kernel_of(lab, "story.ipynb")["deadline"]
    warning.get_by_role("button", name="Keep", exact=True).click()
    lab.server.until(
        lambda: parse(kernel_of(lab, "story.ipynb")["deadline"]) > parse(before),
        10,
        "the deadline did not move",
    )
    expect(warning).to_have_count(0)
    expect(page.words).to_contain_text("kept", timeout=10_000)
    page.shot("4-kept")
    page.edit_cell(2, "\n# an unsaved thought")
    kernel_id = kernel_of(lab, "story.ipynb")["kernel_id"]
    lab.server.until(lambda: not lab.server.has_kernel(kernel_id), 90, "the kernel was not shut down")
    assert "an unsaved thought" in sources(lab, "story.ipynb")
    notice = page.notification("was shut down at")
    expect(notice).to_contain_text("story.ipynb")
    page.shot("5-notice")
    gpu = lab.server.guard()["gpus"][0]
    assert gpu["processes"] == []
    assert gpu["memory_used_bytes"] < 1 << 30
    assert not (lab.server.root / "gpu_guard_recovery").exists(), (
        "nothing is left behind where no copy was needed"
    )
    stone = lab.server.guard(f"tombstones/{kernel_id}")
    assert stone["reason"]["code"] == "idle_timeout"
    [saved] = stone["saved"]
    assert saved["outcome"] == "saved"
    assert stone["memory_released_bytes"] == 4 << 30
    notice.get_by_role("button", name="Details").click()
    expect(page.page.locator(".jp-Dialog")).to_contain_text(
        re.compile(r"story\.ipynb: (saved|had been saved already)\.")
    )
    page.shot("6-details")


def test_a_hidden_tab_saves_its_edit(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=16", "GpuGuard.warn_before=['8s']")
    lab.write("hidden.ipynb", USE_GPU, STOP, "# notes")
    page = lab.open("hidden.ipynb")
    use_and_stop(page)
    page.edit_cell(2, "\n# typed before leaving")
    kernel_id = kernel_of(lab, "hidden.ipynb")["kernel_id"]
    other = page.page.context.new_page()
    other.goto("about:blank")
    other.bring_to_front()
    lab.server.until(lambda: not lab.server.has_kernel(kernel_id), 90, "the kernel was not shut down")
    assert "typed before leaving" in sources(lab, "hidden.ipynb")
    page.page.bring_to_front()
    expect(page.notification("was shut down at")).to_contain_text("hidden.ipynb")


def parse(text: str) -> datetime:
    return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
