"""JupyterLab as a person sees it: open a notebook, run a cell, read the status bar, answer a notification.

Each step can be photographed: with the environment variable GPU_GUARD_SCREENSHOTS naming a folder, `shot` writes there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.server.live import LiveServer

#: A cell that makes its kernel hold 4 GiB of the simulated GPU and use it from then on.
USE_GPU = """\
from jupyter_gpu_guard import SimulatedGpu
gpu = SimulatedGpu(memory="4GiB", utilization=0.8)
print("started")
"""


class Lab:
    """A server and one browser context; `open` gives pages in it."""

    def __init__(self, server: LiveServer, browser: Browser) -> None:
        self.server = server
        self.browser = browser
        self.contexts: list[BrowserContext] = []

    def open(self, path: str, context: BrowserContext | None = None, app: str = "lab/tree") -> NotebookPage:
        """Open a notebook in a new tab, in a browser of its own unless one is given."""
        if context is None:
            context = self.browser.new_context(viewport={"width": 1280, "height": 800})
            self.contexts.append(context)
        page = context.new_page()
        page.goto(f"{self.server.url}{app}/{path}?token={self.server.token}")
        return NotebookPage(page, self.server)

    def write(self, name: str, *sources: str) -> None:
        """A notebook with these code cells."""
        cells = [
            {
                "cell_type": "code",
                "id": f"cell{i}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for i, source in enumerate(sources)
        ]
        kernelspec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
        content = {"cells": cells, "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 5}
        (self.server.root / name).write_text(json.dumps(content))

    def on_disk(self, name: str) -> Any:
        """The notebook as it lies on disk."""
        return json.loads((self.server.root / name).read_text())

    def close(self) -> None:
        """Close the browser contexts and end the server."""
        for context in self.contexts:
            context.close()
        self.server.stop()


class NotebookPage:
    """One tab with a notebook."""

    def __init__(self, page: Page, server: LiveServer) -> None:
        self.page = page
        self.server = server
        page.set_default_timeout(20_000)
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=40_000)
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Wait until this page is connected to its kernel: what is pressed before that is lost."""
        name = self.page.url.split("?")[0].rsplit("/", 1)[-1]

        def connected() -> bool:
            kernels = {k["id"]: k for k in self.server.kernels()}
            mine = [k for k in self.server.guard()["kernels"] if name in k["notebooks"]]
            return any(kernels.get(k["kernel_id"], {}).get("connections", 0) > 0 for k in mine)

        self.server.until(connected, 40, "the page has no kernel")
        self.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(timeout=40_000)

    @property
    def item(self) -> Locator:
        """The guard's item in the status bar (or the menu row of Notebook 7)."""
        return self.page.locator(".jp-GpuGuard-item")

    @property
    def words(self) -> Locator:
        """Its words: in use, unused, shuts down in …"""
        return self.page.locator(".jp-GpuGuard-words")

    @property
    def use(self) -> Locator:
        """Its numbers: GPU use and memory."""
        return self.page.locator(".jp-GpuGuard-use")

    def run_cell(self, index: int = 0) -> None:
        """Click into a cell and run it; press again if JupyterLab was not ready for the key."""
        prompt = self.page.locator(".jp-Notebook .jp-Cell .jp-InputPrompt").nth(index)
        for _ in range(5):
            self.page.locator(".jp-Notebook .jp-Cell .cm-content").nth(index).click()
            self.page.keyboard.press("Control+Enter")
            try:
                expect(prompt).not_to_have_text("[ ]:", timeout=4_000)
                return
            except AssertionError:
                continue
        raise AssertionError("the cell did not run")

    def edit_cell(self, index: int, text: str) -> None:
        """Type at the end of a cell."""
        self.page.locator(".jp-Notebook .jp-Cell .cm-content").nth(index).click()
        self.page.keyboard.press("Control+End")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Escape")

    def notification(self, text: str) -> Locator:
        """A notification (toast) that says this."""
        return self.page.locator(".Toastify__toast", has_text=text)

    def shot(self, name: str) -> None:
        """Photograph the page, if somebody wants to see it."""
        folder = os.environ.get("GPU_GUARD_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.wait_for_timeout(700)  # notifications slide in
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))
