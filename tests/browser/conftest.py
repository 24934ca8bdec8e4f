"""One Chromium for each module (its event loop would disturb other tests), and JupyterLab servers with the guard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import Lab
from tests.server.live import LiveServer

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
CONFIG = "c.LabApp.news_url = None\n"
#: No pop-ups over what the tests look at, and no autosave: what is on disk in the end was saved by the guard.
SETTINGS = """{
  "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},
  "@jupyterlab/docmanager-extension:plugin": {"autosave": false}
}"""


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Not here: pytest-jupyter would close the loop that Playwright runs on."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Not here: no server runs in this process."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, from CHROMIUM or the PATH."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def start_lab(tmp_path: Path, browser: Browser) -> Iterator[Callable[..., Lab]]:
    """Starts JupyterLab with the guard and options such as `GpuGuard.idle_timeout=20`."""
    started: list[Lab] = []

    def start(*options: str, mode: str = "enforce", env: dict[str, str] | None = None) -> Lab:
        folder = tmp_path / f"lab{len(started)}"
        override = folder / "config" / "labconfig" / "default_setting_overrides.json"
        override.parent.mkdir(parents=True)
        override.write_text(SETTINGS)
        server = LiveServer(
            folder,
            "GpuGuard.gpu_source=simulated",
            f"GpuGuard.mode={mode}",
            *options,
            app="jupyterlab",
            config=CONFIG,
            env=env,
        )
        server.start()
        started.append(Lab(server, browser))
        return started[-1]

    yield start
    for lab in started:
        lab.close()
