"""The main job as a person sees it: use, countdown, warning, Keep, and a shutdown that loses nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

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
    given = lab.server.until(
        lambda: [w for w in kernel_of(lab, "story.ipynb")["warnings"] if w["seen_at"]], 10, "nobody saw it"
    )
    assert all(w["delivered_at"] and w["at"] <= w["delivered_at"] <= w["seen_at"] for w in given)
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
    assert [(w["lead_seconds"], bool(w["seen_at"])) for w in stone["warnings"]] == [
        (16, False),
        (8, True),
    ], "the first lead is quiet"
    notice.get_by_role("button", name="Details").click()
    expect(page.page.locator(".jp-Dialog")).to_contain_text(
        re.compile(r"story\.ipynb: (saved|had been saved already)\.")
    )
    page.shot("6-details")
    page.page.locator(".jp-Dialog").get_by_role("button", name="Close").click()
    expect(notice).to_be_visible()
    page.page.wait_for_timeout(5_000)  # to read it
    page.run_cell(2)  # in a new kernel
    expect(notice).to_have_count(0)


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


def test_keep_for_is_a_menu(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=40", "GpuGuard.warn_before=['30s']", "GpuGuard.keep_alive_max=5h")
    lab.write("menu.ipynb", USE_GPU, STOP)
    page = lab.open("menu.ipynb")
    use_and_stop(page)
    warning = page.notification("menu.ipynb")
    button = warning.get_by_role("button", name="Keep for…")
    expect(button).to_be_visible(timeout=60_000)
    menu = page.page.locator(".lm-Menu")
    items = menu.get_by_role("menuitem")

    button.click()
    expect(items).to_have_text(["1 hour", "4 hours", "5 h (the most allowed)"])
    expect(warning).to_be_visible()
    assert boxes_apart(menu, button)
    page.shot("3-warning-menu")
    items.nth(1).click()
    lab.server.until(lambda: kept_hours(lab, "menu.ipynb") == 4, 10, "it is not kept for 4 hours")
    expect(menu).to_have_count(0)
    expect(warning).to_have_count(0)
    expect(page.page.locator(".jp-Notebook :focus, .jp-Notebook:focus")).to_have_count(1)

    page.item.focus()
    page.page.keyboard.press("Enter")
    more = page.page.locator(".jp-Dialog").get_by_role("button", name="Keep for…")
    more.focus()
    page.page.keyboard.press("Enter")
    expect(items.first).to_be_focused()
    page.shot("details-menu")
    assert boxes_apart(menu, page.item)
    page.page.keyboard.press("Escape")
    expect(menu).to_have_count(0)
    expect(page.item).to_be_focused()
    page.page.keyboard.press("Enter")
    more.focus()
    page.page.keyboard.press("Enter")
    expect(items.first).to_be_focused()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    lab.server.until(lambda: kept_hours(lab, "menu.ipynb") == 5, 10, "it is not kept for 5 hours")
    expect(page.item).to_be_focused()


def kept_hours(lab: Lab, notebook: str) -> int:
    """For how long the kernel is kept from now on, and its deadline is put off."""
    kernel, now = kernel_of(lab, notebook), parse(lab.server.guard()["server_time"])
    until = min(parse(kernel[key] or "1970-01-01T00:00:00Z") for key in ("keep_alive_until", "deadline"))
    return round((until - now).total_seconds() / 3600)


def boxes_apart(one: Locator, other: Locator) -> bool:
    """Whether neither covers the other."""
    a, b = one.bounding_box(), other.bounding_box()
    assert a is not None
    assert b is not None
    return a["y"] + a["height"] <= b["y"] + 1 or b["y"] + b["height"] <= a["y"] + 1


def parse(text: str) -> datetime:
    return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
