"""Clients of the guard's stream that see every frame, the protocol's own pings included, and note when it came.

Covers reading; a client never sends anything unless a test makes it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import websocket

from tests.server.live import LiveServer


@dataclass
class Listener:
    """Reads in a thread until it is closed. `messages`: (monotonic time, message); `pings`: how many came."""

    client_id: str
    socket: websocket.WebSocket
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    pings: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                kind, data = self.socket.recv_data(control_frame=True)
                if kind == websocket.ABNF.OPCODE_TEXT:
                    self.messages.append((time.monotonic(), json.loads(data)))
                self.pings += kind == websocket.ABNF.OPCODE_PING
                if kind == websocket.ABNF.OPCODE_CLOSE:
                    break
        except (OSError, websocket.WebSocketException):
            pass
        self.closed.set()

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The messages of a type that have come so far."""
        return [message for _, message in list(self.messages) if message["type"] == kind]

    def times(self, kind: str) -> list[float]:
        """When the messages of a type came."""
        return [at for at, message in list(self.messages) if message["type"] == kind]

    def close(self) -> None:
        """Leave without a good-bye."""
        with contextlib.suppress(OSError):  # the server may have closed it
            self.socket.sock.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closing alone does not
        self._thread.join(5)
        self.socket.shutdown()


def address(server: LiveServer, path: str) -> str:
    """The websocket address of a path."""
    return server.url.replace("http://", "ws://") + path


def connect(server: LiveServer, path: str, token: str | None = None) -> websocket.WebSocket:
    """Open a websocket of the server. Raises WebSocketBadStatusException where it is refused."""
    token = server.token if token is None else token
    header = [f"Authorization: token {token}"] if token else []
    return websocket.create_connection(address(server, path), header=header, timeout=60)


def listen(server: LiveServer, client_id: str) -> Listener:
    """Open the stream as a client."""
    return Listener(client_id, connect(server, f"gpu-guard/api/v1/stream?client_id={client_id}"))


def reset(connection: websocket.WebSocket) -> None:
    """Break the connection off as a crashed machine does: no closing frame, no FIN."""
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sock.close()
