"""The stream, on a real server: what open tabs are told, whom a save is asked of, and what it costs.

One scene is played for most tests: a kernel falls idle, its people are warned, asked to save, and it is shut down,
while some of those who listen behave badly.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import websocket
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpu_guard import stream as stream_module
from jupyter_gpu_guard.core.deadline import Cause, Warning_
from jupyter_gpu_guard.core.life import Phase
from jupyter_gpu_guard.reach import Reach
from tests.server.gpu_server import GpuServer, moment
from tests.server.listeners import Listener, connect, listen, reset
from tests.server.wire_schemas import check

API = "gpu-guard/api/v1"
STREAM = f"{API}/stream"


@dataclass
class Scene:
    """Who listened, and what the server was like afterwards."""

    server: GpuServer
    kernel_id: str
    first: Listener
    second: Listener
    passer_by: Listener
    shouting: Listener
    kernel_pings: int
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def server(make_server: Callable[..., GpuServer]) -> GpuServer:
    """Jupyter's own pings are made frequent, so that one on the stream would show."""
    server = make_server(
        "GpuGuard.mode=enforce",
        "GpuGuard.idle_timeout=6",
        "GpuGuard.warm_up=0",
        "ServerApp.tornado_settings={'ws_ping_interval': 300}",
    )
    server.start()
    return server


def warning_of(server: GpuServer, kernel_id: str, key: str) -> dict[str, Any] | None:
    """The kernel's warning once that is known of it."""
    return next((w for w in server.kernel(kernel_id)["warnings"] if w[key]), None)


@pytest.fixture(scope="module")
def scene(server: GpuServer) -> Scene:
    kernel_id = server.start_kernel("nb.ipynb")
    load = server.load(kernel_id)
    server.reaches(kernel_id, reason="gpu_in_use")
    document = {"path": "nb.ipynb", "kernel_id": kernel_id, "dirty": True}
    for name in ("first", "second"):
        code, _ = server.request("POST", f"{API}/clients/{name}", {"documents": [document]})
        assert code == 204
    listeners = {name: listen(server, name) for name in ("first", "second", "passer-by", "shouting")}
    broken = connect(server, f"{STREAM}?client_id=broken")
    loud = listeners["shouting"].socket
    for rubbish in ("rubbish", json.dumps({"type": "cull", "kernel_id": kernel_id}), "[" * 10_000):
        loud.send(rubbish)
    loud.send_binary(b"\xff\xfe\x00")
    reset(broken)
    mangled = connect(server, f"{STREAM}?client_id=mangled")
    mangled.send(
        b"\xff\xff", opcode=websocket.ABNF.OPCODE_TEXT
    )  # a text that is no text ends this socket alone
    kernel_socket = Listener("kernel", connect(server, f"api/kernels/{kernel_id}/channels"))
    load.rest()
    first, second = listeners["first"], listeners["second"]
    warned = server.until(
        lambda: warning_of(server, kernel_id, "delivered_at"), 30, "no warning is delivered"
    )
    tell = {"documents": [document], "warnings_seen": [{"kernel_id": kernel_id, "given_at": warned["at"]}]}
    for _ in range(2):  # said again, as after an answer that got lost
        code, body = server.request("POST", f"{API}/clients/first", tell)
        assert code == 204, body
    seen = server.kernel(kernel_id)
    for page in (first, second):
        (request,) = server.until(lambda page=page: page.all("save_request"), 30, "no request to save")
        digest = hashlib.sha256((server.root / "nb.ipynb").read_bytes()).hexdigest()
        said = {"path": "nb.ipynb", "outcome": "clean", "hash": digest}
        answer = {"nonce": request["nonce"], "client_id": page.client_id, "documents": [said]}
        code, body = server.request("POST", f"{API}/kernels/{kernel_id}/saved", answer)
        assert code == 204, body
    server.until(lambda: first.all("culled") and first.all("change")[-1]["removed"], 30, "no word of the end")
    time.sleep(0.5)
    for listener in (*listeners.values(), kernel_socket):
        listener.close()
    return Scene(
        server,
        kernel_id,
        first,
        second,
        listeners["passer-by"],
        listeners["shouting"],
        kernel_socket.pings,
        seen,
    )


def test_the_first_message_is_the_whole_status(scene: Scene) -> None:
    for listener in (scene.first, scene.second, scene.passer_by, scene.shouting):
        message = listener.messages[0][1]
        assert message["type"] == "status"
        assert [k["kernel_id"] for k in message["status"]["kernels"]] == [scene.kernel_id]
        assert len(message["status"]["gpus"]) == 2


def test_every_message_is_what_its_schema_says(scene: Scene) -> None:
    kinds = set()
    for listener in (scene.first, scene.second, scene.passer_by, scene.shouting):
        for _, message in listener.messages:
            check("stream", message)
            kinds.add(message["type"])
    assert kinds == {"status", "change", "warning", "save_request", "culled"}


def test_changes_come_at_most_once_a_second(scene: Scene) -> None:
    times = scene.first.times("change")
    assert len(times) >= 5
    # The server sends a second apart; on the way here two may come a little closer.
    assert min(b - a for a, b in pairwise(times)) > 0.8
    states = [k["state"] for m in scene.first.all("change") for k in m["kernels"]]
    assert states[0] == "active"
    assert "warned" in states
    assert scene.first.all("change")[-1]["removed"] == [scene.kernel_id]
    assert [len(m["removed"]) for m in scene.first.all("change")].count(1) == 1


def test_everybody_is_warned_at_once(scene: Scene) -> None:
    for listener in (scene.first, scene.passer_by, scene.shouting):
        (message,) = listener.all("warning")
        assert message["kernel_id"] == message["kernel"]["kernel_id"] == scene.kernel_id
        assert message["warning"]["lead_seconds"] == 3.0
        assert message["kernel"]["state"] == "warned"
    (warned,), (asked,) = scene.first.times("warning"), scene.first.times("save_request")
    assert asked - warned > 2.5


def test_what_became_of_a_warning_is_told_and_changes_nothing(scene: Scene) -> None:
    (message,) = scene.first.all("warning")
    assert (message["warning"]["delivered_at"], message["warning"]["seen_at"]) == (None, None)
    (warning,) = scene.seen["warnings"]
    assert message["warning"]["at"] <= warning["delivered_at"] <= warning["seen_at"]
    assert scene.seen["state"] == "warned"
    assert moment(scene.seen["deadline"]) == pytest.approx(moment(message["kernel"]["deadline"]), abs=0.1)
    (stone,) = scene.server.tombstones(scene.kernel_id)
    for there in stone["warnings"]:
        assert there == {key: warning[key] for key in there}
    told = [row for row in scene.server.happenings(scene.kernel_id) if row["action"].startswith("warning_")]
    assert [row["action"] for row in told] == ["warning_delivered", "warning_seen"]
    assert {row["reason"]["params"]["at"] for row in told} == {warning["at"]}
    check("tombstone", stone)


def test_only_those_who_hold_a_document_are_asked_to_save(scene: Scene) -> None:
    assert scene.passer_by.all("save_request") == scene.shouting.all("save_request") == []
    (one,), (other,) = scene.first.all("save_request"), scene.second.all("save_request")
    assert one["nonce"] == other["nonce"]
    assert datetime.fromisoformat(one["deadline"]).tzinfo is not None
    (mine,), (yours,) = one["documents"], other["documents"]
    assert mine["path"] == yours["path"] == "nb.ipynb"
    assert mine["recovery_path"].startswith("gpu_guard_recovery/nb-")
    assert mine["recovery_path"] != yours["recovery_path"]


def test_everybody_learns_of_the_end(scene: Scene) -> None:
    for listener in (scene.first, scene.passer_by, scene.shouting):
        (message,) = listener.all("culled")
        assert message["reason"]["code"] == "idle_timeout"
        stone = scene.server.guard(message["tombstone_url"])
        assert (stone["kernel_id"], stone["cause"]) == (scene.kernel_id, "idle")
        assert [d["outcome"] for d in stone["saved"]] == ["clean", "clean"]


def test_there_are_no_protocol_pings(scene: Scene) -> None:
    assert scene.kernel_pings > 10  # Jupyter's own sockets have them, so this server does send pings
    assert [listener.pings for listener in (scene.first, scene.second, scene.passer_by)] == [0, 0, 0]


def test_rubbish_and_broken_sockets_hurt_nobody_else(scene: Scene) -> None:
    heard = [
        [message for _, message in listener.messages if message["type"] != "status"]
        for listener in (scene.shouting, scene.passer_by)
    ]
    shortest = min(map(len, heard))  # they left one after the other
    assert heard[0][:shortest] == heard[1][:shortest]
    assert "culled" in [message["type"] for message in heard[0][:shortest]]
    assert "Traceback" not in scene.server.tail(10_000)


@pytest.mark.parametrize(
    ("query", "token", "status"),
    [
        ("?client_id=a", "", 403),
        ("?client_id=a", "wrong", 403),
        ("", None, 400),
        ("?client_id=", None, 400),
        ("?client_id=a/b", None, 400),
        ("?client_id=" + "x" * 65, None, 400),
        ("?client_id=%ff", None, 400),
    ],
)
def test_who_is_not_let_in(server: GpuServer, query: str, token: str | None, status: int) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException) as caught:
        connect(server, STREAM + query, token)
    assert caught.value.status_code == status


def rounds(server: GpuServer) -> float:
    """How many rounds the guard has made."""
    code, text = server.request("GET", "metrics")
    assert code == 200
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == "jupyter_gpu_guard_round_duration_seconds_count":
                return sample.value
    raise AssertionError("the rounds are not counted")


def test_listeners_and_pollers_cost_no_readings_of_their_own(server: GpuServer) -> None:
    name, gpus = "nvmlDeviceGetUtilizationRates", 2
    listeners = [listen(server, f"many-{i}") for i in range(20)]
    stop = threading.Event()
    answers: list[int] = []

    def poll() -> None:
        while not stop.wait(2):
            answers.append(server.request("GET", f"{API}/status")[0])

    threads = [threading.Thread(target=poll) for _ in range(20)]
    for thread in threads:
        thread.start()
    before = rounds(server)
    calls = server.driver.calls(name)
    server.until(lambda: rounds(server) >= before + 3, 60, "no rounds are made", step=0.5)
    calls = server.driver.calls(name) - calls
    made = rounds(server) - before
    server.until(lambda: all(len(one.all("change")) >= 2 for one in listeners), 20, "nothing changes")
    stop.set()
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()
    assert len(answers) >= 20
    assert set(answers) == {200}
    # Of a round that is under way at either end, the calls may be counted and the round not.
    assert gpus * (made - 1) <= calls <= gpus * (made + 1)


# --- in this process ----------------------------------------------------------------------------------------------


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {
        "ServerApp": {"jpserver_extensions": {"jupyter_gpu_guard": True}},
        "GpuGuard": {"gpu_source": "none"},
    }


async def next_of(connection: Any, kind: str) -> dict[str, Any]:
    while True:
        message = json.loads(await asyncio.wait_for(connection.read_message(), 20))
        if message["type"] == kind:
            return dict(message)


async def test_a_quiet_stream_shows_that_it_lives(
    jp_serverapp: Any, jp_ws_fetch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timedelta(seconds=20) < stream_module.BEAT < timedelta(seconds=30)  # proxies close after a minute
    monkeypatch.setattr(stream_module, "BEAT", timedelta(seconds=0.2))
    connection = await jp_ws_fetch("gpu-guard", "api", "v1", "stream", params={"client_id": "a"})
    assert (await next_of(connection, "status"))["status"]["kernels"] == []
    times = [(await next_of(connection, "beat"))["server_time"] for _ in range(3)]
    assert sorted(set(times)) == times
    connection.close()


async def test_who_does_not_read_is_let_go_and_the_others_read_on(
    jp_serverapp: Any, jp_ws_fetch: Any, jp_http_port: int, jp_base_url: str, jp_auth_header: dict[str, str]
) -> None:
    (app,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpu_guard"]
    stream = app._built.stream
    asleep = socket.create_connection(("127.0.0.1", jp_http_port))
    request = [
        f"GET {jp_base_url}gpu-guard/api/v1/stream?client_id=asleep HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: c2xlZXBpbmcgY2xpZW50IQ==",
        *[f"{name}: {value}" for name, value in jp_auth_header.items()],
    ]
    asleep.sendall("\r\n".join([*request, "", ""]).encode())
    connection = await jp_ws_fetch("gpu-guard", "api", "v1", "stream", params={"client_id": "awake"})
    while len(stream) < 2:
        await asyncio.sleep(0.01)
    sent = 0
    while len(stream) == 2 and sent < 2000:
        for one in list(stream._sockets):
            one.send({"type": "beat", "server_time": "x" * 50_000})
        sent += 1
        await next_of(connection, "beat")
    assert len(stream) == 1
    assert sent < 2000
    for one in list(stream._sockets):
        one.send({"type": "beat", "server_time": "end"})
    assert (await next_of(connection, "beat"))["server_time"] == "end"
    connection.close()
    asleep.close()


async def test_a_warning_is_delivered_to_a_page_that_shows_it(
    jp_serverapp: Any, jp_ws_fetch: Any, jp_fetch: Any
) -> None:
    """Where a page has the kernel open, another page's stream is none. What was seen was delivered somehow."""
    (app,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpu_guard"]
    guard = app._built.guard
    kernel_id = await jp_serverapp.kernel_manager.start_kernel()
    while kernel_id not in guard.state.watched:
        await asyncio.sleep(0.05)
    guard._looping.cancel()  # a round would take the warning back: this kernel holds no GPU
    watched = guard.state.watched[kernel_id]
    base = ("gpu-guard", "api", "v1")
    connection = await jp_ws_fetch(*base, "stream", params={"client_id": "passer-by"})
    document = {"path": "a.ipynb", "kernel_id": kernel_id, "dirty": False}

    async def report(client_id: str, **body: Any) -> None:
        await jp_fetch(*base, "clients", client_id, method="POST", body=json.dumps(body))

    async def warn() -> tuple[Warning_, str]:
        warning = Warning_(Cause.IDLE, timedelta(minutes=5), guard.clock())
        watched.life = replace(watched.life, phase=Phase.WARNED, warnings=(warning,))
        guard.steps.on_warning(watched, warning)
        return warning, (await next_of(connection, "warning"))["warning"]["at"]

    await report("holder", documents=[document])
    warning, at = await warn()
    await asyncio.sleep(0.2)
    assert watched.reaches.of(warning) == Reach()
    await report("holder", documents=[document], warnings_seen=[{"kernel_id": kernel_id, "given_at": at}])
    reach = watched.reaches.of(warning)
    assert reach.delivered is not None
    assert reach.seen is not None
    await report("holder", documents=[])
    warning, _ = await warn()
    while watched.reaches.of(warning).delivered is None:
        await asyncio.sleep(0.01)
    assert watched.reaches.of(warning).seen is None
    await report("holder", warnings_seen=[{"kernel_id": kernel_id, "given_at": at}])  # of the one before
    await report("holder", warnings_seen=[{"kernel_id": "gone", "given_at": at}])
    assert watched.reaches.of(warning).seen is None
    connection.close()
