"""A real server of its own for a test: JupyterLab or plain jupyter_server, in a process, with the guard and a driver.

Covers: starting it isolated from the user's own Jupyter, REST calls, kernels and running code in them. Not here: any
judgement of what comes back.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client import BlockingKernelClient

T = TypeVar("T")


def free_port() -> int:
    """A port that nobody listens on now, below those that the system gives out: until the server listens, a kernel of
    another test may be given one of them."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(10_000, lowest - 1000), lowest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class LiveServer:
    """`options` are command-line options such as `GpuGuard.mode=enforce`; `config` is text for the config file."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        app: str = "jupyter_server",
        env: Mapping[str, str] | None = None,
        config: str = "",
        root: Path | None = None,
        port: int | None = None,
    ) -> None:
        self.folder = folder
        self.root = root or folder / "root"
        self.port = port or free_port()
        self.token = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.log = folder / f"server-{self.port}.log"
        for part in ("home", "config", "data", "runtime", "ipython"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.root.mkdir(exist_ok=True)
        (folder / "config" / "jupyter_server_config.py").write_text(config)
        self._options = options
        self._app = app
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")},
            "HOME": str(folder / "home"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "lab-settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "lab-workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_PLATFORM_DIRS": "0",
            **(env or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: dict[str, BlockingKernelClient] = {}

    def start(self, timeout: float = 40) -> LiveServer:
        """Start it and wait until it answers."""
        command = [
            sys.executable,
            "-m",
            self._app,
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}",
            "--ServerApp.jpserver_extensions=jupyter_gpu_guard=True",
            *[f"--{option}" for option in self._options],
        ]
        self.process = subprocess.Popen(
            command, stdout=self.log.open("ab"), stderr=subprocess.STDOUT, env=self._env, cwd=self.folder
        )
        self.until(self.answers, timeout, "the server does not answer")
        return self

    def answers(self) -> bool:
        """Whether the server answers; fails at once when its process has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
        try:
            return self.get("api/status") is not None
        except (OSError, urllib.error.URLError):
            return False

    def stop(self, how: int = signal.SIGTERM, timeout: float = 30) -> float:
        """End it; returns the seconds that it took."""
        assert self.process is not None
        for client in self._clients.values():
            client.stop_channels()
        self._clients.clear()
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return time.monotonic() - began

    def tail(self, lines: int = 60) -> str:
        """The end of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> LiveServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # --- REST ---

    def request(
        self, method: str, path: str, body: Any = None, token: str | None = None, raw: bytes | None = None
    ) -> tuple[int, Any]:
        """The status code and the JSON (or the bytes) of an answer."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        if token != "":
            request.add_header("Authorization", f"token {token or self.token}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                content, code = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            content, code = error.read(), error.code
        try:
            return code, json.loads(content) if content else None
        except ValueError:
            return code, content

    def get(self, path: str) -> Any:
        """The JSON of a GET that has to succeed."""
        code, body = self.request("GET", path)
        assert code == 200, (code, body, self.tail())
        return body

    def guard(self, path: str = "status") -> Any:
        """The JSON of one of the guard's routes."""
        return self.get(f"gpu-guard/api/v1/{path}")

    # --- kernels ---

    def start_kernel(self, notebook: str | None = None) -> str:
        """A kernel, of a session with that notebook if one is named. Returns its id."""
        if notebook is None:
            code, body = self.request("POST", "api/kernels", {"name": "python3"})
            assert code == 201, (code, body)
            return str(body["id"])
        self.write_notebook(notebook)
        body = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        code, answer = self.request("POST", "api/sessions", body)
        assert code == 201, (code, answer)
        return str(answer["kernel"]["id"])

    def write_notebook(self, name: str, source: str = "1 + 1") -> None:
        """An empty notebook with one cell."""
        cell = {"cell_type": "code", "id": "a1", "metadata": {}, "source": source}
        cell.update(outputs=[], execution_count=None)
        content = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (self.root / name).write_text(json.dumps(content))

    def client(self, kernel_id: str) -> BlockingKernelClient:
        """A client of a running kernel."""
        if kernel_id not in self._clients:
            client = BlockingKernelClient(
                connection_file=str(self.folder / "runtime" / f"kernel-{kernel_id}.json")
            )
            client.load_connection_file()
            client.start_channels(hb=False)
            client.wait_for_ready(timeout=30)
            self._clients[kernel_id] = client
        return self._clients[kernel_id]

    def run(self, kernel_id: str, code: str, timeout: float = 30) -> str:
        """Run code and return what it printed; fails on an error in it."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client(kernel_id).execute_interactive(code, timeout=timeout, output_hook=hook)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(printed)

    def begin(self, kernel_id: str, code: str) -> None:
        """Send code without waiting for it."""
        self.client(kernel_id).execute(code)

    def kernel(self, kernel_id: str) -> Any:
        """One kernel as the guard's status has it; None when it isn't there."""
        return next((k for k in self.guard()["kernels"] if k["kernel_id"] == kernel_id), None)

    def kernels(self) -> Any:
        """Jupyter's own kernels. Doesn't count as activity. Asked again while one is so young that Jupyter fails on
        it (it lists a kernel before it has set its last_activity)."""
        for _ in range(20):
            code, body = self.request("GET", "api/kernels?no_track_activity=1")
            if code == 200:
                return body
            time.sleep(0.2)
        raise AssertionError((code, body, self.tail()))

    def has_kernel(self, kernel_id: str) -> bool:
        """Whether Jupyter still has this kernel."""
        return any(k["id"] == kernel_id for k in self.kernels())

    def until(self, condition: Callable[[], T], timeout: float, what: str, step: float = 0.1) -> T:
        """Wait for a condition; its last value is returned, the server's log shown on failure."""
        end = time.monotonic() + timeout
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what} within {timeout} s\n{self.tail()}")
            time.sleep(step)
