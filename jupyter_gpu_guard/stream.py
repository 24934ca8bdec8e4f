"""The websocket that tells open tabs what changes, and asks them to save.

One way only: the server's text messages don't count as activity at a proxy, so protocol pings (whose answers would)
are off, and a `beat` shows that the stream lives. Changes are collected and sent at most once a second.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web, websocket

from .commands import Commands
from .core.deadline import Warning_
from .notebooks import SaveRequest
from .record import Happening, iso
from .route_handler import AUTH_RESOURCE, CLIENT_ID, user_of
from .watched import Watched
from .wire import gpu_to_wire, kernel_to_wire, status, telemetry, warning_to_wire

#: How often a quiet stream shows that it lives; proxies close silent ones after a minute.
BEAT = timedelta(seconds=25)
#: Changes are collected for so long.
COLLECT = timedelta(seconds=1)
#: So many messages may wait for a tab that doesn't read, such as one of a laptop that sleeps; then it is let go.
MOST_WAITING = 120

Message = dict[str, Any]


class Stream:
    """All open sockets, and what is waiting to be sent to them."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._guard = commands.guard
        self._sockets: set[StreamHandler] = set()
        self._changed: set[str] = set()
        self._known: set[str] = set()
        self._sending: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._sockets)

    def viewers(self) -> int:
        """How many tabs somebody may be looking at; a hidden one is no reason to ask the driver."""
        return sum(not self._commands.is_hidden(socket.client_id) for socket in self._sockets)

    def add(self, socket: StreamHandler) -> None:
        """A tab has come: it gets the whole status first."""
        self._sockets.add(socket)
        self._known |= set(self._guard.state.watched)
        socket.send({"type": "status", "status": status(self._commands, socket.user, socket.client_id)})
        if self._beating is None:
            self._beat_later()

    def remove(self, socket: StreamHandler) -> None:
        """A tab has gone."""
        self._sockets.discard(socket)

    def close(self) -> None:
        """Close every socket."""
        for timer in (self._sending, self._beating):
            if timer is not None:
                timer.cancel()
        for socket in list(self._sockets):
            socket.close(1001, "the server stops")

    def changed(self, watched: Watched) -> None:
        """A kernel changed; tell within a second."""
        if self._sockets:
            self._changed.add(watched.kernel.kernel_id)
            self._send_later()

    def round(self) -> None:
        """A round is over: everything may have moved a little."""
        if self._sockets:
            self._changed |= set(self._guard.state.watched)
            self._send_later()

    def warned(self, watched: Watched, warning: Warning_) -> None:
        """Offer a warning to every tab at once. It is delivered when the network has taken it for one that shows it."""
        kernel_id = watched.kernel.kernel_id
        message = {
            "type": "warning",
            "kernel_id": kernel_id,
            "warning": warning_to_wire(watched, warning),
            "kernel": kernel_to_wire(self._commands, watched),
        }
        text = json.dumps(message)
        delivered = functools.partial(self._guard.steps.delivered, watched, warning)
        for socket in list(self._sockets):
            shows = self._commands.shows(socket.client_id, kernel_id)
            socket.send_text(text, delivered if shows else None)

    def asked(self, request: SaveRequest) -> None:
        """Ask the tabs that hold a document of the kernel to save it; each gets its own place for a copy."""
        for socket in list(self._sockets):
            if socket.client_id in request.clients:
                socket.send({"type": "save_request", **request.to_wire(socket.client_id)})

    def happened(self, happening: Happening) -> None:
        """Tell of a shutdown."""
        if happening.action in ("culled", "cull_failed", "save_failed"):
            kernel_id = happening.kernel_id
            self._send(
                {
                    "type": happening.action,
                    "kernel_id": kernel_id,
                    "reason": happening.reason.to_wire(),
                    "tombstone_url": f"tombstones/{kernel_id}",
                }
            )

    def _send_later(self) -> None:
        if self._sending is None:
            loop = asyncio.get_running_loop()
            self._sending = loop.call_later(COLLECT.total_seconds(), self._send_changes)

    def _send_changes(self) -> None:
        self._sending = None
        state = self._guard.state
        kernels = [state.watched[kernel_id] for kernel_id in self._changed if kernel_id in state.watched]
        removed = sorted(self._known - set(state.watched))
        self._known = set(state.watched)
        self._changed.clear()
        self._send(
            {
                "type": "change",
                "kernels": [kernel_to_wire(self._commands, watched) for watched in kernels],
                "removed": removed,
                "gpus": [gpu_to_wire(gpu) for gpu in state.sample.gpus],
                "telemetry": telemetry(state.sample),
                "server_time": iso(self._guard.clock().at),
            }
        )

    def _beat_later(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(BEAT.total_seconds(), self._beat)

    def _beat(self) -> None:
        self._beating = None
        if self._sockets:
            self._send({"type": "beat", "server_time": iso(self._guard.clock().at)})
            self._beat_later()

    def _send(self, message: Message) -> None:
        if not self._sockets:
            return
        text = json.dumps(message)
        for socket in list(self._sockets):
            socket.send_text(text)


class StreamHandler(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):
    """`stream?client_id=…`: authenticated and authorised like REST."""

    auth_resource = AUTH_RESOURCE
    user = ""
    client_id = ""

    def initialize(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting = 0

    @property
    def ping_interval(self) -> int:
        """Off: the pong that a ping provokes counts as activity at a proxy."""
        return 0

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403)
        self.client_id = self.get_query_argument("client_id", "")
        if not CLIENT_ID.fullmatch(self.client_id):
            raise web.HTTPError(400, "client_id: expected 1 to 64 letters, digits, - or _")
        self.user = user_of(self)
        opened = super().get(*args, **kwargs)
        if opened is not None:
            await opened

    def open(self, *args: Any, **kwargs: Any) -> None:
        self._stream.add(self)

    def on_message(self, message: str | bytes) -> None:
        """Clients send nothing; what one sends all the same is not for us."""

    def on_close(self) -> None:
        self._stream.remove(self)

    def send(self, message: Message) -> None:
        """Send one message as JSON."""
        self.send_text(json.dumps(message))

    def send_text(self, text: str, then: Callable[[], None] | None = None) -> None:
        """Send text; a socket that has gone without a goodbye, or takes nothing any more, is let go. `then` is called
        when the network has taken it."""
        if self._waiting >= MOST_WAITING:
            self._stream.remove(self)
            self.close(1013, "too slow")
            return
        try:
            sent = asyncio.ensure_future(self.write_message(text))
        except websocket.WebSocketClosedError:
            self._stream.remove(self)
            return
        self._waiting += 1
        sent.add_done_callback(functools.partial(self._sent, then))

    def _sent(self, then: Callable[[], None] | None, sent: asyncio.Future[None]) -> None:
        """The network has taken a message, or the socket closed meanwhile: an error that nobody has to read."""
        self._waiting -= 1
        if not sent.cancelled() and sent.exception() is None and then is not None:
            then()
