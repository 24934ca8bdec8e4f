"""The proxy that JupyterHub has in front of its servers, a real one, to see what it counts as activity."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

from tests.server.listeners import Listener, connect
from tests.server.live import LiveServer, free_port

#: Node may be installed beside Python.
SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


class NoProxy(Exception):
    """The proxy can't be had here; the message says why."""


def install(folder: Path) -> Path:
    """Install configurable-http-proxy with npm. Raises NoProxy, saying why, where that can't be done."""
    npm = shutil.which("npm", path=SEARCH)
    if npm is None:
        raise NoProxy("there is no npm to install configurable-http-proxy with")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(
        [*command, "configurable-http-proxy"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": SEARCH},
        timeout=100,
        check=False,
    )
    if done.returncode:
        raise NoProxy(f"npm could not install configurable-http-proxy: {done.stderr[-300:]}")
    return folder / "node_modules" / ".bin" / "configurable-http-proxy"


class Proxy:
    """A proxy in front of a server, as a hub has one."""

    def __init__(self, program: Path, server: LiveServer) -> None:
        self.url = f"http://127.0.0.1:{free_port()}/"
        self.server = server
        self._api = free_port()
        self._secret = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [
                str(program),
                "--ip=127.0.0.1",
                f"--port={self.url.rstrip('/').rsplit(':', 1)[1]}",
                "--api-ip=127.0.0.1",
                f"--api-port={self._api}",
                f"--default-target={server.url}",
            ],
            env={**os.environ, "PATH": SEARCH, "CONFIGPROXY_AUTH_TOKEN": self._secret},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def activity(self) -> datetime:
        """The activity of the one route, as the hub reads it."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._api}/api/routes/")
        request.add_header("Authorization", f"token {self._secret}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            (route,) = json.load(answer).values()
        return datetime.fromisoformat(route["last_activity"].replace("Z", "+00:00"))

    def answers(self) -> bool:
        try:
            return bool(self.activity())
        except OSError:
            return False

    def connect(self, path: str) -> Listener:
        """Open a websocket of the server through the proxy."""
        through = SimpleNamespace(url=self.url, token=self.server.token)
        return Listener(path, connect(through, path))  # type: ignore[arg-type]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@contextmanager
def proxied(program: Path, server: LiveServer) -> Iterator[Proxy]:
    proxy = Proxy(program, server)
    try:
        server.until(proxy.answers, 20, "the proxy does not answer")
        yield proxy
    finally:
        proxy.stop()
