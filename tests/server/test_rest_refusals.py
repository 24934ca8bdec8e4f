"""REST, on a real server: what is refused, and that a refused request changes nothing. What it gives: test_rest."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tornado.httpclient import HTTPClientError

from jupyter_gpu_guard.core.lifecycle import Phase
from jupyter_gpu_guard.routes import handlers
from tests.server.gpu_server import GpuServer
from tests.server.live import LiveServer
from tests.server.rest_calls import call, refused, rest_server, routes, standing, unused_kernel
from tests.server.wire_schemas import check

#: What a JSON body can't be, whatever it is for: (bytes, the key that is named).
BROKEN = [
    (b"{", "body"),
    (b'{"a": "\xff"}', "body"),
    (b"[" * 100_000, "body"),
    (b'{"seconds": ' + b"9" * 5000 + b"}", "body"),
    (b"[]", "body"),
    (b"null", "body"),
    (b'{"x": "' + b"a" * (1 << 20) + b'"}', "body"),
    (b'{"x": "\\ud800"}', "x"),
    (b'{"sceonds": 60}', "sceonds"),
]


@pytest.fixture(scope="module")
def server(make_server: Callable[..., GpuServer]) -> GpuServer:
    return rest_server(make_server)


@pytest.fixture(scope="module")
def kernel_id(server: GpuServer) -> str:
    return unused_kernel(server, "one.ipynb")


@pytest.mark.parametrize(
    "path", ["kernels/{id}/keep-alive", "kernels/{id}/cull", "kernels/{id}/saved", "clients/page"]
)
@pytest.mark.parametrize(("raw", "key"), BROKEN, ids=map(str, range(len(BROKEN))))
def test_a_broken_body_changes_nothing(
    server: GpuServer, kernel_id: str, path: str, raw: bytes, key: str
) -> None:
    before = standing(server, kernel_id)
    refused(call(server, "POST", path.format(id=kernel_id), raw=raw), 400, key)
    assert standing(server, kernel_id) == before


NAN = float("nan")
INFINITY = float("inf")
DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]
DOCUMENT = {"path": "one.ipynb", "kernel_id": "k", "dirty": False}
SEEN = {"kernel_id": "k", "given_at": "2026-03-02T13:00:00.000Z"}
ANSWER = {"nonce": "n", "client_id": "c", "documents": []}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *[
        ("kernels/{id}/keep-alive", {"seconds": wrong}, "seconds")
        for wrong in (None, "60", True, [60], {}, -1, 0, -(10**400), NAN, INFINITY, -INFINITY, DEEP)
    ],
    ("kernels/{id}/keep-alive", {}, "seconds"),
    *[
        ("kernels/{id}/keep-alive", {"seconds": 60, "reason": wrong}, "reason")
        for wrong in (5, None, ["why"], "x" * 201, "\ud83d")
    ],
    *[("kernels/{id}/cull", {"save": wrong}, "save") for wrong in ("yes", 1, None, [], DEEP)],
    *[("kernels/{id}/saved", {**ANSWER, "nonce": wrong}, "nonce") for wrong in (None, 5, ["n"], {})],
    *[
        ("kernels/{id}/saved", {**ANSWER, "client_id": wrong}, "client_id")
        for wrong in (None, 7, "", "a/b", "x" * 65, "é")
    ],
    *[
        ("kernels/{id}/saved", {**ANSWER, "documents": wrong}, "documents")
        for wrong in (None, {}, "all", [{}] * 201)
    ],
    ("kernels/{id}/saved", {**ANSWER, "documents": ["one.ipynb"]}, "documents[0]"),
    ("kernels/{id}/saved", {**ANSWER, "documents": [{"path": "a"}]}, "documents[0].outcome"),
    ("kernels/{id}/saved", {**ANSWER, "documents": [{"path": 5, "outcome": "saved"}]}, "documents[0].path"),
    *[("clients/page", {"documents": wrong}, "documents") for wrong in (None, {}, "x", 5, [DOCUMENT] * 501)],
    ("clients/page", {"documents": [DOCUMENT, 5]}, "documents[1]"),
    ("clients/page", {"documents": [{**DOCUMENT, "dirty": 1}]}, "documents[0].dirty"),
    ("clients/page", {"documents": [{**DOCUMENT, "path": ""}]}, "documents[0].path"),
    ("clients/page", {"documents": [{**DOCUMENT, "extra": 1}]}, "documents[0].extra"),
    ("clients/page", {"documents": [{"path": "a"}]}, "documents[0].kernel_id"),
    *[
        ("clients/page", {"input_age_seconds": wrong}, "input_age_seconds")
        for wrong in (True, "1", -1, NAN, INFINITY, 10**400, 1e300, [])
    ],
    *[
        ("clients/page", {"focused_kernel_id": wrong}, "focused_kernel_id")
        for wrong in (5, "", "x" * 201, [])
    ],
    *[
        ("clients/page", {"warnings_seen": wrong}, "warnings_seen")
        for wrong in (None, {}, "x", True, [SEEN] * 101)
    ],
    ("clients/page", {"warnings_seen": [SEEN, 5]}, "warnings_seen[1]"),
    ("clients/page", {"warnings_seen": [{"kernel_id": "k"}]}, "warnings_seen[0].given_at"),
    ("clients/page", {"warnings_seen": [{**SEEN, "seen": True}]}, "warnings_seen[0].seen"),
    *[
        ("clients/page", {"warnings_seen": [{**SEEN, "kernel_id": wrong}]}, "warnings_seen[0].kernel_id")
        for wrong in (None, 5, "", "x" * 201, [])
    ],
    *[
        ("clients/page", {"warnings_seen": [{**SEEN, "given_at": wrong}]}, "warnings_seen[0].given_at")
        for wrong in (
            None,
            5,
            "",
            "now",
            "2026-03-02T13:00:00Z",
            "2026-13-02T13:00:00.000Z",
            "2026-03-02T13:00:00.000+01:00",
            "2026-03-02T13:00:00.00٣Z",
        )
    ],
    # One wrong value, and nothing of the report counts.
    ("clients/page", {"documents": [DOCUMENT], "warnings_seen": [5]}, "warnings_seen[0]"),
    ("clients/" + "x" * 65, {}, "client_id"),
    ("clients/a%20b", {}, "client_id"),
]


@pytest.mark.parametrize(("path", "body", "key"), WRONG, ids=map(str, range(len(WRONG))))
def test_a_wrong_value_is_named_and_changes_nothing(
    server: GpuServer, kernel_id: str, path: str, body: dict[str, Any], key: str
) -> None:
    before = standing(server, kernel_id)
    refused(call(server, "POST", path.format(id=kernel_id), body), 400, key)
    assert standing(server, kernel_id) == before


@pytest.mark.parametrize(
    ("query", "key"),
    [
        *[
            (f"history?limit={quote(n)}", "limit")
            for n in ("0", "-1", "1001", "1e2", "²", "", "0010000", "x")
        ],
        *[
            (f"{route}?since={quote(at)}", "since")
            for route in ("history", "tombstones")
            for at in ("", "yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+05:00", "9" * 400)
        ],
        ("status?client_id=a/b", "client_id"),
        ("status?client_id=", "client_id"),
        ("history?since=%ff", "since"),
        ("kernels/%ff", "kernel_id"),
    ],
)
def test_a_wrong_query_is_refused(server: GpuServer, query: str, key: str) -> None:
    refused(call(server, "GET", query), 400, key)


def test_copies_need_a_client_and_a_path(server: GpuServer, kernel_id: str) -> None:
    where = f"kernels/{kernel_id}/copies"
    refused(call(server, "POST", f"{where}?path=one.ipynb", raw=b"x"), 400, "client_id")
    refused(call(server, "POST", f"{where}?client_id=a", raw=b"x"), 400, "path")
    assert refused(call(server, "POST", f"{where}?client_id=a&path=b", raw=b"x"), 409)["code"] == "old_nonce"


def test_an_unknown_kernel_is_said_to_be_unknown(server: GpuServer) -> None:
    asked = [(method, path) for method, path in routes() if "{kernel_id}" in path]
    assert len(asked) >= 6
    for method, path in asked:
        body = {} if method == "POST" else None
        reason = refused(server.request(method, path.format(kernel_id="no-such-kernel"), body), 404)
        assert (reason["code"], reason["params"]) == ("unknown_kernel", {"kernel_id": "no-such-kernel"})


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_method_that_is_not_there(server: GpuServer, method: str) -> None:
    refused(call(server, method, "status", {} if method != "DELETE" else None), 405, "method")


# --- who may ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), list(routes()))
@pytest.mark.parametrize("token", ["", "wrong"])
def test_nobody_gets_in_without_the_token(
    server: GpuServer, kernel_id: str, method: str, path: str, token: str
) -> None:
    before = standing(server, kernel_id)
    full = path.format(kernel_id=kernel_id, client_id="page", recovery_id="copy")
    code, body = server.request(method, full, {"seconds": 60} if method == "POST" else None, token=token)
    assert refused((code, body), 403)["code"] == "not_allowed"
    assert standing(server, kernel_id) == before


AUTHORIZER = """
from jupyter_server.auth import Authorizer

class NoGuard(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "gpu_guard"

c.ServerApp.authorizer_class = NoGuard
"""


def test_who_is_signed_in_but_not_authorised_gets_nothing(tmp_path: Path) -> None:
    options = ("GpuGuard.gpu_source=none", "ServerApp.jpserver_extensions=jupyterlab=False")
    root = Path(__file__).parents[2]
    with LiveServer(tmp_path, *options, config=AUTHORIZER, env={"PYTHONPATH": str(root)}) as server:
        kernel_id = server.start_kernel()
        for method, path in routes():
            full = path.format(kernel_id=kernel_id, client_id="page", recovery_id="copy")
            body = (
                {"seconds": 60} if method == "POST" and "keep" in path else {} if method == "POST" else None
            )
            reason = refused(server.request(method, full, body), 403)
            assert reason["code"] == "not_allowed", (method, path)
        assert server.has_kernel(kernel_id)
        assert "Traceback" not in server.tail(10_000)


def test_the_log_has_no_traceback_and_no_complaint_about_our_handlers(server: GpuServer) -> None:
    """The last of the tests on this server: everything above has been asked of it by now."""
    log = server.tail(100_000)
    assert "extension was successfully loaded" in log
    assert "Traceback" not in log
    complaints = [line for line in log.splitlines() if re.match(r"\[[WEC] ", line)]
    # What Jupyter writes of each refused request is not a complaint about the handler.
    complaints = [line for line in complaints if not re.search(r"\] [45]\d\d [A-Z]+ /", line)]
    names = [handler.__name__ for _, handler, _ in handlers(None)]  # type: ignore[arg-type]
    assert [c for c in complaints if "gpu" in c.lower() or any(name in c for name in names)] == []


# --- between the moments that a server in another process can be caught in ------------------------------------------


@pytest.fixture
def jp_server_config(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "ServerApp": {"jpserver_extensions": {"jupyter_gpu_guard": True}},
        "GpuGuard": {"gpu_source": "none", "sample_interval": 0.5, **getattr(request, "param", {})},
    }


async def ask(jp_fetch: Any, method: str, *parts: str, body: Any = None) -> tuple[int, Any]:
    try:
        answer = await jp_fetch(*parts, method=method, body=None if body is None else json.dumps(body))
    except HTTPClientError as error:
        answer = error.response
    return answer.code, json.loads(answer.body)


async def kernel_of(jp_serverapp: Any) -> tuple[Any, str]:
    """The guard of the server in this process, and a kernel that it watches."""
    (app,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpu_guard"]
    guard = app._built.guard
    kernel_id = await jp_serverapp.kernel_manager.start_kernel()
    while kernel_id not in guard.state.watched:
        await asyncio.sleep(0.05)
    return guard, kernel_id


async def test_a_kernel_that_is_being_shut_down_cannot_be_kept(jp_serverapp: Any, jp_fetch: Any) -> None:
    guard, kernel_id = await kernel_of(jp_serverapp)
    watched = guard.state.watched[kernel_id]
    watched.life = replace(watched.life, phase=Phase.CULLING)
    where = ("gpu-guard", "api", "v1", "kernels", kernel_id, "keep-alive")
    answer = await ask(jp_fetch, "POST", *where, body={"seconds": 60})
    assert refused(answer, 409)["code"] == "shutting_down"
    assert watched.life.keep_until is None


@pytest.mark.parametrize("jp_server_config", [{"history_path": "/proc/no/history.sqlite"}], indirect=True)
async def test_a_history_that_cannot_be_used_is_503(jp_serverapp: Any, jp_fetch: Any) -> None:
    _, kernel_id = await kernel_of(jp_serverapp)
    base = ("gpu-guard", "api", "v1")
    for parts in (("history",), ("tombstones",), ("tombstones", kernel_id), ("kernels", kernel_id)):
        assert refused(await ask(jp_fetch, "GET", *base, *parts), 503)["code"] == "cannot_record"
    keep = await ask(jp_fetch, "POST", *base, "kernels", kernel_id, "keep-alive", body={"seconds": 60})
    assert refused(keep, 503)["code"] == "cannot_record"
    code, body = await ask(jp_fetch, "GET", *base, "status")
    assert code == 200
    check("status", body)
    assert body["kernels"][0]["keep_alive_until"] is None
