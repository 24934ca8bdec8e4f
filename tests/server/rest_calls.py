"""Calls of the guard's REST interface, what a refusal looks like, and what a request could have changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jupyter_gpu_guard.route_handler import GuardHandler
from jupyter_gpu_guard.routes import handlers
from tests.server.live import LiveServer
from tests.server.wire_schemas import check

API = "gpu-guard/api/v1"
METHODS = ("get", "post", "delete")


def routes() -> Iterator[tuple[str, str]]:
    """Every method of every route: (METHOD, path with names in braces)."""
    for pattern, handler, _ in handlers(None):  # type: ignore[arg-type]
        path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern)
        for method in METHODS:
            if getattr(handler, method) is not getattr(GuardHandler, method):
                yield method.upper(), path


def call(server: LiveServer, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    return server.request(method, f"{API}/{path}", body, **more)


def refused(answer: tuple[int, Any], code: int, key: str | None = None) -> dict[str, Any]:
    """Check that an answer is a refusal in the usual form, and names the key; returns its reason."""
    status, body = answer
    assert status == code, answer
    check("error", body)
    assert body["message"] == body["reason"]["text"]
    if key is not None:
        assert body["reason"]["code"] == "bad_request"
        assert body["reason"]["params"]["key"] == key
        assert body["message"].startswith(f"{key}: ")
    return dict(body["reason"])


def standing(server: LiveServer, kernel_id: str) -> dict[str, Any]:
    """What a request could have changed of a kernel."""
    kernel = server.kernel(kernel_id)
    kept = ("state", "keep_alive_until", "documents", "warnings", "started", "pid")
    actions = server.guard("history?limit=1000")["transitions"]
    return {**{key: kernel[key] for key in kept}, "happened": len(actions)}
