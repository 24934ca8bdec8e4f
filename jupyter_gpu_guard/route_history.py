"""Routes on what was: transitions, tombstones, and the recovery files of kernels that are gone."""

from __future__ import annotations

import json
import re

from jupyter_server.auth.decorator import authorized
from tornado import web

from .core.reasons import because
from .recovery import RecoveryError
from .route_handler import GuardHandler, Mistake, bad

MAX_ROWS = 1000


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
