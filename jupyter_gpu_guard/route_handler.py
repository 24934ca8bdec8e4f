"""What all routes share: who may ask, no activity, errors as `{message, reason}`, and the reading of what is asked.

Not here: any route (route_kernels, route_pages, route_history) nor where it is found (routes).
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from .commands import Commands, TooLate
from .core.lifecycle import Phase
from .core.reasons import Reason, because
from .extensions import Refused
from .history import HistoryError
from .watched import Watched

AUTH_RESOURCE = "gpu_guard"
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_BODY_BYTES = 1 << 20

Json = dict[str, Any]


class Mistake(Exception):
    """A mistake of the caller, or a refusal: answered with this status and reason."""

    def __init__(self, code: int, reason: Reason) -> None:
        super().__init__(reason.text)
        self.code = code
        self.reason = reason


def bad(key: str, error: str) -> Mistake:
    """400: this key is wrong, and what would be right."""
    return Mistake(400, because("bad_request", key=key, error=error))


def refusal(error: web.HTTPError) -> Mistake | None:
    """What Jupyter or tornado refused before a handler was asked; None for a failure that isn't the caller's."""
    said = error.log_message or error.reason or ""
    if error.status_code in (401, 403):
        return Mistake(error.status_code, because("not_allowed"))
    if error.status_code == 405:
        return Mistake(405, because("bad_request", key="method", error="it is not possible here"))
    if 400 <= error.status_code < 500:
        return Mistake(error.status_code, because("bad_request", key="request", error=said))
    return None


def user_of(handler: JupyterHandler) -> str:
    """Who asks, as Jupyter names people."""
    user = handler.current_user
    return str(getattr(user, "display_name", None) or getattr(user, "username", None) or user)


class GuardHandler(APIHandler):
    """What all routes share: the guard, no activity, errors as `{message, reason}`."""

    auth_resource = AUTH_RESOURCE
    _track_activity = False

    def initialize(self, commands: Commands) -> None:
        self.commands = commands
        self.guard = commands.guard

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if isinstance(error, Refused):
            error = Mistake(403, error.reason)
        if isinstance(error, TooLate):
            error = Mistake(409, error.reason)
        if isinstance(error, HistoryError):
            error = Mistake(503, because("cannot_record", error=str(error)))
        if isinstance(error, web.HTTPError):
            error = refusal(error)
        if not isinstance(error, Mistake):
            super().write_error(status_code, **kwargs)
            return
        self.set_status(error.code)
        self.finish(json.dumps({"message": str(error), "reason": error.reason.to_wire()}))

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """A part of the path or the query, which has to be UTF-8."""
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise bad(name or "path", "expected UTF-8") from None

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """A caller's mistake is no traceback in the log."""
        if not isinstance(value, Mistake | Refused | TooLate | HistoryError):
            super().log_exception(typ, value, tb)

    async def also(self, action: str, resource: str) -> None:
        """Who may use the guard may not by that do to Jupyter's own things what Jupyter would refuse: 403."""
        allowed = await ensure_async(self.authorizer.is_authorized(self, self.current_user, action, resource))
        if not allowed:
            raise web.HTTPError(403, f"not authorized to {action} {resource}")

    def body(self) -> Json:
        """The body as a JSON object."""
        if len(self.request.body) > MAX_BODY_BYTES:
            raise bad("body", f"more than {MAX_BODY_BYTES} bytes")
        try:
            body = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise bad("body", "expected JSON in UTF-8") from None
        if not isinstance(body, dict):
            raise bad("body", "expected an object")
        for key, value in body.items():
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except (UnicodeEncodeError, RecursionError):
                # Half a surrogate pair is JSON, but no log and no database takes it.
                raise bad(str(key)[:60], "expected text that UTF-8 can hold") from None
        return body

    def only(self, body: Json, *keys: str) -> None:
        """Refuse keys that mean nothing here: a misspelt one would otherwise be ignored."""
        for key in body:
            if key not in keys:
                raise bad(str(key)[:60], f"unknown; expected {', '.join(keys)}")

    def person(self) -> str:
        """Who asks. With a token alone Jupyter makes a name up for each request: then it is the server's owner."""
        name = user_of(self)
        return self.commands.owner if name.startswith("Anonymous ") else name

    def watched(self, kernel_id: str) -> Watched:
        """The kernel, or 404."""
        try:
            return self.guard.state.watched[kernel_id]
        except KeyError:
            raise Mistake(404, because("unknown_kernel", kernel_id=kernel_id)) from None

    def living(self, kernel_id: str) -> Watched:
        """The kernel as long as its end can still be put off; then 409."""
        watched = self.watched(kernel_id)
        if watched.life.phase in (Phase.CULLING, Phase.CULLED):
            raise Mistake(409, because("shutting_down"))
        return watched

    def client(self, client_id: Any) -> str:
        """A well-formed client id, or 400."""
        if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
            raise bad("client_id", "expected 1 to 64 letters, digits, - or _")
        return client_id

    def moment(self, key: str) -> datetime | None:
        """A query argument as an aware time, or None where it is missing."""
        text = self.get_query_argument(key, None)
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            if moment.tzinfo is not None:
                return moment.astimezone(timezone.utc)
        except (ValueError, OverflowError):  # a zone can carry the ends of the calendar beyond it
            raise bad(key, "expected an ISO 8601 time") from None
        raise bad(key, "expected a time with its zone, such as …Z")
