"""What only a front end's websocket shows: `input()` waiting for an answer, and requests that want no history.

An `input_request` goes to the front end that sent the cell, by a socket that nobody else can listen to. So the
connection class between websocket and kernel is wrapped, whichever it is: other extensions put their own there, and
only one fits into the setting. Clients that speak to the kernel without a websocket of this server (a console in a
terminal) stay unseen: their `input()` looks like a cell that runs and does nothing.

Messages are looked at, never held up or changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Protocol

V1 = "v1.kernel.websocket.jupyter.org"
#: What the kernel puts between the addresses and the message.
DELIMITER = b"<IDS|MSG>"


class InputListener(Protocol):
    """What a websocket tells."""

    def input_requested(self, kernel_id: str, parent_id: str) -> None: ...

    def input_replied(self, kernel_id: str) -> None: ...

    def quiet_request(self, kernel_id: str, msg_id: str) -> None:
        """An execute_request that is silent or kept out of the history."""


def watching(connection_class: type, listener: InputListener, log: logging.Logger) -> type:
    """A subclass of `connection_class` that tells `listener` what passes through it."""

    class WatchedConnection(connection_class):  # type: ignore[misc]
        def handle_incoming_message(self, incoming_msg: Any) -> Any:
            try:
                v1 = getattr(self.websocket_handler, "selected_subprotocol", None) == V1
                message = from_v1(incoming_msg) if v1 else from_text(incoming_msg)
                if message is not None:
                    _tell_incoming(listener, self.kernel_id, *message)
            except Exception:
                log.debug("gpu_guard: a websocket message could not be read", exc_info=True)
            return super().handle_incoming_message(incoming_msg)

        def handle_outgoing_message(self, stream: Any, outgoing_msg: Any) -> Any:
            channel = stream if isinstance(stream, str) else getattr(stream, "channel", None)
            if channel == "stdin":
                try:
                    parent_id = input_request_parent(outgoing_msg)
                    if parent_id is not None:
                        listener.input_requested(self.kernel_id, parent_id)
                except Exception:
                    log.debug("gpu_guard: a stdin message could not be read", exc_info=True)
            return super().handle_outgoing_message(stream, outgoing_msg)

    WatchedConnection.__name__ = f"Watched{connection_class.__name__}"
    WatchedConnection.__qualname__ = WatchedConnection.__name__
    return WatchedConnection


def _tell_incoming(
    listener: InputListener, kernel_id: str, header: dict[str, Any], content: dict[str, Any]
) -> None:
    if header["msg_type"] == "input_reply":
        listener.input_replied(kernel_id)
    elif content.get("silent", False) or not content.get("store_history", True):
        listener.quiet_request(kernel_id, header["msg_id"])


def _wanted(header: dict[str, Any]) -> bool:
    return header.get("msg_type") in ("execute_request", "input_reply")


def from_v1(frame: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Header and content of an execute_request or input_reply in the binary protocol; None for all else.

    The frame begins with the number of offsets and the offsets (64 bits each, little-endian): of the channel's name,
    header, parent, metadata, content and buffers. Only the header is parsed of what isn't wanted: buffers can be large.
    """
    view = memoryview(frame)
    count = int.from_bytes(view[:8], "little")
    offsets = [int.from_bytes(view[8 * i : 8 * (i + 1)], "little") for i in range(1, count + 1)]
    header = json.loads(bytes(view[offsets[1] : offsets[2]]))
    if not _wanted(header):
        return None
    return header, json.loads(bytes(view[offsets[4] : offsets[5]]))


def from_text(message: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The same in the older JSON protocol. Binary messages there carry buffers, which none of the wanted ones has."""
    if not isinstance(message, str) or (
        '"execute_request"' not in message and '"input_reply"' not in message
    ):
        return None
    parsed = json.loads(message)
    return (parsed["header"], parsed["content"]) if _wanted(parsed["header"]) else None


def input_request_parent(frames: Sequence[Any]) -> str | None:
    """The msg_id of the execution that a kernel's input_request belongs to. `frames`: as they came from the kernel."""
    parts = [bytes(frame) for frame in frames]
    begin = parts.index(DELIMITER) + 2  # after it comes the signature
    header, parent = json.loads(parts[begin]), json.loads(parts[begin + 1])
    if header["msg_type"] != "input_request":
        return None
    msg_id: str | None = parent.get("msg_id")
    return msg_id
