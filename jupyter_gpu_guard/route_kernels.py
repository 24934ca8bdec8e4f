"""Routes on what is now: the status, the kernels, their policies; keep a kernel, or have it shut down."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from .record import iso
from .route_handler import GuardHandler, bad, user_of
from .wire import kernel_to_wire, policy_to_wire, status

MAX_NOTE = 200


class StatusHandler(GuardHandler):
    """`status`: everything at once. With `client_id`, only the save requests to that client, as it gets them."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        client_id = self.get_query_argument("client_id", None)
        if client_id is not None:
            self.client(client_id)
        self.guard.observer.looked()
        self.finish(json.dumps(status(self.commands, user_of(self), client_id)))


class KernelHandler(GuardHandler):
    """`kernels/<kernel_id>`: one kernel and its last transitions."""

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        self.guard.observer.looked()
        kernel = kernel_to_wire(self.commands, self.watched(kernel_id))
        rows = await self.guard.recorder.ask(
            lambda history: history.transitions(kernel_id=kernel_id, limit=50)
        )
        self.finish(json.dumps({**kernel, "transitions": rows}))


class KeepAliveHandler(GuardHandler):
    """`kernels/<kernel_id>/keep-alive`: extend, or take back."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        watched, body = self.living(kernel_id), self.body()
        self.only(body, "seconds", "reason")
        span, note = span_of(body.get("seconds")), note_of(body.get("reason", ""))
        until, left = await self.commands.keep(watched, span, self.person(), note)
        self.set_status(201)
        self.finish(json.dumps({"until": iso(until), "remaining_total_seconds": left.total_seconds()}))

    @web.authenticated
    @authorized
    async def delete(self, kernel_id: str) -> None:
        self.commands.end_keep(self.watched(kernel_id))
        self.set_status(204)
        self.finish()


class CullHandler(GuardHandler):
    """`kernels/<kernel_id>/cull`: a person's own request, by the same road as the policy's."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        await self.also("write", "kernels")
        watched, body = self.watched(kernel_id), self.body()
        self.only(body, "save")
        save = body.get("save", True)
        if not isinstance(save, bool):
            raise bad("save", "expected true or false")
        self.commands.ask(watched, self.person(), save)
        self.set_status(202)
        self.finish(json.dumps(kernel_to_wire(self.commands, watched)))


class PoliciesHandler(GuardHandler):
    """`policies`: the effective policy of every kernel, with the source of each value."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        kernels = {
            kernel_id: policy_to_wire(watched.policy)
            for kernel_id, watched in self.guard.state.watched.items()
        }
        self.finish(json.dumps({"kernels": kernels}))


def span_of(seconds: Any) -> timedelta:
    """The length of an extension, or 400."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or (isinstance(seconds, float) and not math.isfinite(seconds)):
        raise bad("seconds", "expected a number of seconds")
    if seconds <= 0:
        raise bad("seconds", "expected more than 0")
    # A span that no calendar holds is over any limit; it is refused as such, instead of failing on it.
    return timedelta(seconds=float(min(seconds, 10**9)))


def note_of(note: Any) -> str:
    """Why somebody keeps a kernel, or 400."""
    if not isinstance(note, str) or len(note) > MAX_NOTE:
        raise bad("reason", f"expected a text of at most {MAX_NOTE} characters")
    return note
