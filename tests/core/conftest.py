"""The core needs no event loop and no server: the fixtures that pytest-jupyter puts around every test stay away."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """No event loop."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """No server."""
