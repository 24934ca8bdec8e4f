"""REST under `<base_url>gpu-guard/api/v1/`.

Every handler is authenticated and authorised like Jupyter's own, and none counts as activity. A mistake of the caller
is a 4xx with `{message, reason}` that names the key; nothing is changed by a request that is refused.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from .commands import Commands, TooLate
from .core.lifecycle import Phase
from .core.reasons import Reason, because
from .extensions import Refused
from .history import HistoryError
from .notebooks import BadAnswer, OldNonce, UnknownClient
from .presence import BadReport
from .record import iso
from .recovery import RecoveryError
from .watched import Watched
from .wire import kernel_to_wire, policy_to_wire, status

AUTH_RESOURCE = "gpu_guard"
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_BODY_BYTES = 1 << 20
MAX_NOTE = 200
MAX_ROWS = 1000

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

    def client(self, client_id: Any, key: str = "client_id") -> str:
        """A well-formed client id, or 400."""
        if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
            raise bad(key, "expected 1 to 64 letters, digits, - or _")
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


class SavedHandler(GuardHandler):
    """`kernels/<kernel_id>/saved`: a front end answers a save request."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        self.watched(kernel_id)
        body = self.body()
        self.only(body, "nonce", "client_id", "documents")
        client_id, nonce = self.client(body.get("client_id")), body.get("nonce")
        if not isinstance(nonce, str):
            raise bad("nonce", "expected the text that came with the request")
        try:
            self.commands.saved(kernel_id, nonce, client_id, body.get("documents"))
        except OldNonce:
            raise Mistake(409, because("old_nonce")) from None
        except UnknownClient:
            raise Mistake(404, because("unknown_client", client_id=client_id)) from None
        except BadAnswer as error:
            raise bad(error.key, error.error) from None
        self.set_status(204)
        self.finish()


class CopyHandler(GuardHandler):
    """`kernels/<kernel_id>/copies`: a front end hands over a copy for which there is no place beside the document."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        await self.also("write", "contents")
        self.watched(kernel_id)
        client_id = self.client(self.get_query_argument("client_id", ""))
        path = self.get_query_argument("path", "")
        if not path:
            raise bad("path", "expected the path of the document")
        try:
            copy_id = await self.commands.hand_over(
                kernel_id, self.get_query_argument("nonce", ""), client_id, path, self.request.body
            )
        except OldNonce:
            raise Mistake(409, because("old_nonce")) from None
        except UnknownClient:
            raise Mistake(404, because("unknown_client", client_id=client_id)) from None
        except RecoveryError as error:
            raise Mistake(507, because("save_failed", path=path, error=str(error))) from None
        self.set_status(201)
        self.finish(json.dumps({"recovery_id": copy_id}))


class ClientHandler(GuardHandler):
    """`clients/<client_id>`: what a front end has open, and whether somebody is there."""

    @web.authenticated
    @authorized
    async def post(self, client_id: str) -> None:
        self.client(client_id)
        body = self.body()
        self.only(body, "documents", "focused_kernel_id", "input_age_seconds", "visible", "warnings_seen")
        try:
            self.commands.report(client_id, body)
        except BadReport as error:
            raise bad(error.key, error.error) from None
        self.set_status(204)
        self.finish()

    @web.authenticated
    @authorized
    async def delete(self, client_id: str) -> None:
        self.commands.gone(self.client(client_id))
        self.set_status(204)
        self.finish()


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


class HistoryHandler(GuardHandler):
    """`history?since=&kernel_id=&limit=`: transitions, newest first."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        since, kernel_id = self.moment("since"), self.get_query_argument("kernel_id", None)
        text = self.get_query_argument("limit", "100")
        if re.fullmatch("[0-9]{1,4}", text) is None or not 1 <= int(text) <= MAX_ROWS:
            raise bad("limit", f"expected a number from 1 to {MAX_ROWS}")
        rows = await self.guard.recorder.ask(
            lambda history: history.transitions(since=since, kernel_id=kernel_id, limit=int(text))
        )
        self.finish(json.dumps({"transitions": rows}))


class TombstoneHandler(GuardHandler):
    """`tombstones/<kernel_id>`: what is left to read of one kernel."""

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        rows = await self.guard.recorder.ask(lambda history: history.tombstones(kernel_id=kernel_id))
        if not rows:
            raise Mistake(404, because("unknown_kernel", kernel_id=kernel_id))
        self.finish(json.dumps(rows[0]))


class TombstonesHandler(GuardHandler):
    """`tombstones?path=&since=`: the same by notebook, newest first."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        path, since = self.get_query_argument("path", None), self.moment("since")
        rows = await self.guard.recorder.ask(lambda history: history.tombstones(path=path, since=since))
        self.finish(json.dumps({"tombstones": rows}))


class RecoveryHandler(GuardHandler):
    """`recovery/<id>`: a recovery notebook, wherever it lies."""

    @web.authenticated
    @authorized
    async def get(self, recovery_id: str) -> None:
        await self.also("read", "contents")
        try:
            found = await self.commands.recovery_file(recovery_id)
        except RecoveryError as error:
            raise Mistake(503, because("bad_request", key="id", error=str(error))) from None
        if found is None:
            raise Mistake(404, because("bad_request", key="id", error="there is no such recovery file"))
        content, name = found
        quoted = re.sub(r'[^ -~]|["\\\\]', "_", name)
        self.set_header("Content-Disposition", f'attachment; filename="{quoted}"')
        notebook = name.endswith(".ipynb")
        kind = "application/x-ipynb+json" if notebook else "application/octet-stream"
        self.finish(content, set_content_type=kind)


def handlers(commands: Commands) -> list[tuple[str, type[GuardHandler], Json]]:
    """Every route of the REST interface, relative to the server's base URL."""
    kernel = r"(?P<kernel_id>[^/]+)"
    base = r"gpu-guard/api/v1"
    routes: list[tuple[str, type[GuardHandler]]] = [
        (rf"{base}/status", StatusHandler),
        (rf"{base}/kernels/{kernel}", KernelHandler),
        (rf"{base}/kernels/{kernel}/keep-alive", KeepAliveHandler),
        (rf"{base}/kernels/{kernel}/cull", CullHandler),
        (rf"{base}/kernels/{kernel}/saved", SavedHandler),
        (rf"{base}/kernels/{kernel}/copies", CopyHandler),
        (rf"{base}/clients/(?P<client_id>[^/]+)", ClientHandler),
        (rf"{base}/policies", PoliciesHandler),
        (rf"{base}/history", HistoryHandler),
        (rf"{base}/tombstones", TombstonesHandler),
        (rf"{base}/tombstones/{kernel}", TombstoneHandler),
        (rf"{base}/recovery/(?P<recovery_id>[\w-]+)", RecoveryHandler),
    ]
    return [(pattern, handler, {"commands": commands}) for pattern, handler in routes]
