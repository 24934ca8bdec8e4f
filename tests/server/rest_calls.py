"""The server that REST is tested on, calls of it, what a refusal looks like, and what a request could have changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_gpu_guard.route_handler import GuardHandler
from jupyter_gpu_guard.routes import handlers
from tests.server.gpu_server import GIB, GpuServer
from tests.server.live import LiveServer
from tests.server.wire_schemas import check

API = "gpu-guard/api/v1"
METHODS = ("get", "post", "delete")


def rest_server(make_server: Callable[..., GpuServer], *options: str) -> GpuServer:
    """A server that enforces, makes a round every second, and lets nobody in without its token."""
    server = make_server(
        "GpuGuard.mode=enforce",
        "GpuGuard.sample_interval=1",
        "ServerApp.allow_unauthenticated_access=False",
        *options,
    )
    server.start()
    return server


def unused_kernel(server: GpuServer, notebook: str, memory: int = 3 * GIB) -> str:
    """A kernel of a notebook that holds GPU memory and doesn't use the GPU."""
    kernel_id = server.start_kernel(notebook)
    server.load(kernel_id, sm=0, memory=memory)
    server.reaches(kernel_id, holds_gpu=True)
    return kernel_id


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
