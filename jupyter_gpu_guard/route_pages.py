"""Routes for front ends: what a page has open, its answer to a save request, and copies that it hands over."""

from __future__ import annotations

import json

from jupyter_server.auth.decorator import authorized
from tornado import web

from .core.reasons import because
from .notebooks import BadAnswer, OldNonce, UnknownClient
from .presence import BadReport
from .recovery import RecoveryError
from .route_handler import GuardHandler, Mistake, bad


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
