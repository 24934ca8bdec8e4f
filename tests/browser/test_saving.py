"""What is open in a browser when its kernel is shut down: nothing of it is lost, and nothing asks a question."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.lab import USE_GPU, Lab, NotebookPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SHORT = ("GpuGuard.idle_timeout=12", "GpuGuard.warn_before=['6s']")


def kernel_of(lab: Lab, notebook: str) -> Any:
    return next((k for k in lab.server.guard()["kernels"] if notebook in k["notebooks"]), None)


def hold_gpu(lab: Lab, page: NotebookPage, notebook: str) -> str:
    """Let the notebook's kernel hold GPU memory without using it; returns the kernel's id."""
    page.run_cell(0)
    kernel = lab.server.until(
        lambda: (k := kernel_of(lab, notebook)) and k["gpus"] and k, 30, "no GPU is held"
    )
    return str(kernel["kernel_id"])


def until_gone(lab: Lab, kernel_id: str) -> Any:
    """Wait for the end of the kernel and return what is left to read of it."""
    lab.server.until(lambda: not lab.server.has_kernel(kernel_id), 90, "the kernel was not shut down")
    path = f"gpu-guard/api/v1/tombstones/{kernel_id}"
    lab.server.until(lambda: lab.server.request("GET", path)[0] == 200, 20, "nothing is left to read")
    return lab.server.get(path)


def cells(content: Any) -> str:
    return "\n".join("".join(cell["source"]) for cell in content["cells"])


LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}
IDLE_USE = USE_GPU.replace("0.8", "0")


def test_a_conflict_goes_to_a_copy_beside_it_and_the_file_is_left_alone(
    start_lab: Callable[..., Lab],
) -> None:
    lab = start_lab(*SHORT)
    lab.write("nb.ipynb", IDLE_USE, "# mine")
    page = lab.open("nb.ipynb")
    kernel_id = hold_gpu(lab, page, "nb.ipynb")
    page.edit_cell(1, "\n# edited in the tab")
    theirs = lab.on_disk("nb.ipynb")
    theirs["cells"][1]["source"] = "# changed by somebody else"
    (lab.server.root / "nb.ipynb").write_text(json.dumps(theirs))
    stone = until_gone(lab, kernel_id)
    assert cells(lab.on_disk("nb.ipynb")).endswith("# changed by somebody else")
    [saved] = stone["saved"]
    assert saved["outcome"] == "recovered"
    copy = json.loads((lab.server.root / saved["recovery_path"]).read_text())
    assert "# edited in the tab" in cells(copy)
    assert page.page.locator(".jp-Dialog").count() == 0
    notice = page.notification("was shut down at")
    notice.get_by_role("button", name="Open the copy").click()
    expect(page.page.locator(".jp-NotebookPanel")).to_have_count(2)
    page.shot("7-copy")


def test_two_browsers_with_edits_both_keep_theirs(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(*SHORT)
    lab.write("nb.ipynb", IDLE_USE, "# text")
    one = lab.open("nb.ipynb")
    kernel_id = hold_gpu(lab, one, "nb.ipynb")
    two = lab.open("nb.ipynb")
    one.edit_cell(1, "\n# from the first")
    two.edit_cell(1, "\n# from the second")
    stone = until_gone(lab, kernel_id)
    texts = [cells(lab.on_disk("nb.ipynb"))]
    for saved in stone["saved"]:
        if saved["recovery_path"]:
            texts.append(cells(json.loads((lab.server.root / saved["recovery_path"]).read_text())))
    assert any("# from the first" in text for text in texts), stone
    assert any("# from the second" in text for text in texts), stone
    assert page_dialogs(one, two) == 0


def page_dialogs(*pages: NotebookPage) -> int:
    return sum(page.page.locator(".jp-Dialog").count() for page in pages)


def saved_after_deletion(lab: Lab) -> tuple[NotebookPage, dict[str, Any]]:
    """Edit a notebook, delete its file, wait for the end of its kernel: what the tombstone says of the save."""
    lab.write("nb.ipynb", IDLE_USE, "# text")
    page = lab.open("nb.ipynb")
    kernel_id = hold_gpu(lab, page, "nb.ipynb")
    page.edit_cell(1, "\n# the only one")
    (lab.server.root / "nb.ipynb").unlink()
    [saved] = until_gone(lab, kernel_id)["saved"]
    return page, saved


def test_a_deleted_file_goes_to_a_copy(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(*SHORT)
    _, saved = saved_after_deletion(lab)
    copy = json.loads((lab.server.root / saved["recovery_path"]).read_text())
    assert "# the only one" in cells(copy)
    assert not (lab.server.root / "nb.ipynb").exists()


def test_a_copy_that_the_browser_can_write_nowhere_is_kept_by_the_server(
    start_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = start_lab(*SHORT, f"GpuGuard.recovery_dir=['{tmp_path / 'kept'}']")
    page, saved = saved_after_deletion(lab)
    assert (saved["outcome"], saved["recovery_path"]) == ("recovered", None)
    assert "# the only one" in cells(lab.server.guard(f"recovery/{saved['recovery_id']}"))
    assert not (lab.server.root / "gpu_guard_recovery").exists()
    notice = page.notification("was shut down at")
    with page.page.expect_download() as download:
        notice.get_by_role("button", name="Download the copy").click()
    assert download.value.suggested_filename.startswith("nb-")


def test_a_notebook_without_changes_stays_byte_for_byte(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(*SHORT)
    lab.write("nb.ipynb", "1 + 1")
    complete = lab.on_disk("nb.ipynb")
    complete["metadata"]["language_info"] = LANGUAGE_INFO  # JupyterLab would add it, and that is an edit
    foreign = json.dumps(complete, indent=4)
    (lab.server.root / "nb.ipynb").write_text(foreign)
    page = lab.open("nb.ipynb")
    kernel_id = str(lab.server.until(lambda: kernel_of(lab, "nb.ipynb"), 20, "no kernel")["kernel_id"])
    lab.server.run(kernel_id, IDLE_USE)
    stone = until_gone(lab, kernel_id)
    assert (lab.server.root / "nb.ipynb").read_text() == foreign
    assert [saved["outcome"] for saved in stone["saved"]] == ["clean"]
    expect(page.notification("was shut down at")).to_be_visible()


def test_a_person_shuts_down_from_the_warning(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab("GpuGuard.idle_timeout=40", "GpuGuard.warn_before=['30s']")
    lab.write("nb.ipynb", IDLE_USE, "# text")
    page = lab.open("nb.ipynb")
    kernel_id = hold_gpu(lab, page, "nb.ipynb")
    page.edit_cell(1, "\n# edited")
    warning = page.notification("nb.ipynb shuts down at")
    expect(warning).to_contain_text("It is saved first", timeout=60_000)
    warning.get_by_role("button", name="Shut down now").click()
    page.page.locator(".jp-Dialog").get_by_role("button", name="Save and shut down").click()
    stone = until_gone(lab, kernel_id)
    assert stone["reason"]["code"] == "asked_by_user"
    assert "# edited" in cells(lab.on_disk("nb.ipynb"))
