"""A server that answers what a test wants, and the file by which Jupyter's commands find it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

Answer = Callable[[BaseHTTPRequestHandler], None]


class Odd:
    """Its requests as they came in: method, path, token, body."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str, str | None, bytes]] = []


@contextmanager
def answering(answer: Answer) -> Iterator[Odd]:
    """A server on this machine for which `answer` answers each request."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            odd.requests.append((self.command, self.path, self.headers.get("Authorization"), body))
            answer(self)

        do_GET = do_POST = do_DELETE = handle_one

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    odd = Odd(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield odd
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(content: object, code: int = 200, **headers: str) -> Answer:
    """Answers with JSON, or with bytes as they are."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def by_path(answers: dict[str, Answer]) -> Answer:
    """The answer for the first key that the path ends with, without its query; else 404."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        found = next((a for end, a in answers.items() if path.endswith(end)), says(b"not here", 404))
        found(handler)

    return answer


def leave_file(
    runtime: Path, url: str, token: str = "secret", pid: int | None = None, **more: object
) -> Path:
    """What a running server leaves in the runtime folder; the process is this one unless another is named."""
    runtime.mkdir(parents=True, exist_ok=True)
    pid = os.getpid() if pid is None else pid
    file = runtime / f"jpserver-{pid}.json"
    info = {"url": url, "token": token, "pid": pid, "root_dir": str(runtime), "sock": "", **more}
    file.write_text(json.dumps(info))
    return file


def reason(code: str = "idle", text: str = "unused for 61 s", **params: object) -> dict[str, object]:
    return {"code": code, "params": params, "text": text}


def kernel(**changes: object) -> dict[str, object]:
    """A kernel as `GET status` has it: unused, with two GPUs, five minutes before its end."""
    share = {
        "uuid": "GPU-1",
        "memory_bytes": 2 << 30,
        "sm_ratio": 0.0,
        "attribution": "kernel",
        "unreadable": {},
    }
    return {
        "kernel_id": "0a1b2c3d-0000-4000-8000-000000000000",
        "notebooks": ["work/train.ipynb"],
        "state": "idle",
        "state_reason": None,
        "mode": "enforce",
        "verdict": "idle",
        "reason": reason(),
        "idle_seconds": 6900.0,
        "deadline": "2026-03-01T12:05:00Z",
        "deadline_source": "guard",
        "deadline_reason": reason("idle_timeout", "unused for longer than idle_timeout (7200 s)"),
        "keep_alive_until": None,
        "gpus": [share, {**share, "uuid": "GPU-2", "memory_bytes": 1 << 30, "sm_ratio": 0.5}],
        "holds_gpu": True,
        **changes,
    }


def status(*kernels: dict[str, object], **changes: object) -> dict[str, object]:
    """An answer of `GET status` with those kernels."""
    return {
        "version": "0.1.0",
        "mode": "enforce",
        "simulated": False,
        "server_time": "2026-03-01T12:00:00.000Z",
        "telemetry": {"state": "ok", "reason": None, "last_success": "2026-03-01T12:00:00Z"},
        "policy": {"valid": True, "hash": None, "error": None},
        "hold": None,
        "kernels": list(kernels),
        "terminals": [],
        **changes,
    }
