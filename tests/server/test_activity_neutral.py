"""Looking at the guard is no activity: not for Jupyter, not for its cullers, not for a hub's proxy.

And the other way round: in `enforce`, work that no message shows is told to Jupyter; an idle kernel never is, however
it is warned.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from tests.server.gpu_server import OTHERS, GpuServer
from tests.server.hub_proxy import NoProxy, install, proxied
from tests.server.listeners import Listener, listen
from tests.server.live import LiveServer

API = "gpu-guard/api/v1"
IDLE_TIMEOUT = 8
#: A kernel counts as idle early, and is warned late: so it is seen idle for a while before it is warned.
SHORT = (
    f"GpuGuard.idle_timeout={IDLE_TIMEOUT}",
    "GpuGuard.window=2",
    "GpuGuard.warm_up=0",
    "GpuGuard.warn_before=['1.5s']",
)
#: Jupyter's own pings are made frequent, so that one on the stream would show.
PINGS = "ServerApp.tornado_settings={'ws_ping_interval': 300}"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def server_activity(server: LiveServer) -> datetime:
    """What the hub's culler goes by."""
    return moment(server.get("api/status")["last_activity"])


def kernel_activity(server: LiveServer, kernel_id: str) -> datetime:
    """What Jupyter's own culler goes by."""
    kernels = server.get("api/kernels?no_track_activity=1")
    return moment(next(k["last_activity"] for k in kernels if k["id"] == kernel_id))


class Onlookers:
    """All that a browser does to the guard while nobody is there: a stream, polls of every route, reports."""

    def __init__(self, server: LiveServer, kernel_id: str) -> None:
        self._server = server
        self._kernel_id = kernel_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.stream: Listener | None = None
        self.rounds = 0
        self.codes: set[int] = set()

    def __enter__(self) -> Onlookers:
        self.stream = listen(self._server, "onlooker")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.stream is not None
        self.stream.close()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            for path in ("status?client_id=onlooker", f"kernels/{self._kernel_id}", "policies", "history"):
                code, body = self._server.request("GET", f"{API}/{path}")
                self.codes.add(code)
                for request in (body or {}).get("save_requests", ()):
                    self._answer(request)
            document = {"path": "nb.ipynb", "kernel_id": self._kernel_id, "dirty": False}
            report = {"documents": [document], "focused_kernel_id": self._kernel_id}
            self.codes.add(self._server.request("POST", f"{API}/clients/onlooker", report)[0])
            self.rounds += 1

    def _answer(self, request: dict[str, Any]) -> None:
        digest = hashlib.sha256((self._server.root / "nb.ipynb").read_bytes()).hexdigest()
        documents = [{"path": d["path"], "outcome": "clean", "hash": digest} for d in request["documents"]]
        answer = {"nonce": request["nonce"], "client_id": "onlooker", "documents": documents}
        self._server.request("POST", f"{API}/kernels/{request['kernel_id']}/saved", answer)


Clocks = tuple[datetime, datetime]


def clocks(server: LiveServer, kernel_id: str) -> Clocks:
    """What the hub's culler and Jupyter's own go by."""
    return server_activity(server), kernel_activity(server, kernel_id)


@dataclass
class Watching:
    """A server in `observe`, and one without the guard, while people look on, and then while the kernel works."""

    server: GpuServer
    kernel_id: str
    before: dict[str, Clocks]
    after: dict[str, Clocks]
    onlookers: Onlookers
    counted: datetime
    working: list[Clocks]


def watch(server: GpuServer, without: LiveServer) -> Watching:
    without.start()
    assert without.request("GET", f"{API}/status")[0] == 404
    alone = without.start_kernel()
    without.run(alone, "pass")
    server.start()
    kernel_id = server.start_kernel("nb.ipynb")
    server.load(kernel_id, sm=0)
    server.reaches(kernel_id, verdict="idle")
    before = {"with": clocks(server, kernel_id), "without": clocks(without, alone)}
    with Onlookers(server, kernel_id) as onlookers:
        time.sleep(2 * IDLE_TIMEOUT)
    after = {"with": clocks(server, kernel_id), "without": clocks(without, alone)}
    without.stop()
    server.get("api/kernels")
    counted = server_activity(server)
    load = server.load(kernel_id, sm=60)
    server.reaches(kernel_id, verdict="active", reason="gpu_in_use")
    working = [clocks(server, kernel_id)]
    time.sleep(3)
    server.reaches(kernel_id, verdict="active", reason="gpu_in_use")
    working.append(clocks(server, kernel_id))
    load.rest()
    return Watching(server, kernel_id, before, after, onlookers, counted, working)


@dataclass
class Enforcing:
    """A server in `enforce` while an idle kernel is culled before onlookers, and then while another one works."""

    tombstone: dict[str, Any]
    by_state: dict[str, set[Clocks]] = field(default_factory=dict)
    working: list[Clocks] = field(default_factory=list)
    resting: list[datetime] = field(default_factory=list)


def enforce(server: GpuServer) -> Enforcing:
    server.start()
    kernel_id = server.start_kernel("nb.ipynb")
    server.load(kernel_id, sm=0)
    server.reaches(kernel_id, verdict="idle", state="idle")
    seen: dict[str, set[Clocks]] = {}
    with Onlookers(server, kernel_id):
        while (state := state_of(server, kernel_id)) in ("idle", "warned"):
            found = clocks(server, kernel_id)
            if state_of(server, kernel_id) == state:
                seen.setdefault(state, set()).add(found)
            time.sleep(0.1)
        scene = Enforcing(server.culled(kernel_id), seen)
    kernel_id = server.start_kernel("work.ipynb")
    load = server.load(kernel_id, sm=50)
    server.reaches(kernel_id, verdict="active", reason="gpu_in_use")
    first = clocks(server, kernel_id)
    server.until(
        lambda: all(now > then for now, then in zip(clocks(server, kernel_id), first, strict=True)),
        20,
        "the clocks stand",
    )
    scene.working = [first, clocks(server, kernel_id)]
    load.rest()
    server.reaches(kernel_id, verdict="idle")
    scene.resting.append(server_activity(server))
    server.reaches(kernel_id, state="warned")
    scene.resting.append(server_activity(server))
    return scene


def state_of(server: GpuServer, kernel_id: str) -> str | None:
    kernel = server.kernel(kernel_id)
    return None if kernel is None else str(kernel["state"])


@dataclass
class Scenes:
    """Both are played side by side, as they mostly wait."""

    watching: Future[Watching]
    enforcing: Future[Enforcing]


@pytest.fixture(scope="module")
def scenes(
    make_server: Callable[..., GpuServer],
    beside: Callable[..., Future[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Scenes:
    off = [f"ServerApp.jpserver_extensions={name}=False" for name in ("jupyter_gpu_guard", *OTHERS)]
    without = LiveServer(tmp_path_factory.mktemp("without"), *off)
    watching, enforcing = make_server(*SHORT, PINGS), make_server(*SHORT, "GpuGuard.mode=enforce")
    return Scenes(beside(watch, watching, without), beside(enforce, enforcing))


def test_looking_on_moves_no_clock(scenes: Scenes) -> None:
    scene = scenes.watching.result()
    assert scene.after == scene.before
    assert scene.onlookers.codes == {200, 204}
    assert scene.onlookers.rounds > 10
    assert scene.onlookers.stream is not None
    assert len(scene.onlookers.stream.all("change")) > 5
    assert scene.counted > scene.after["with"][0]  # a request that does count shows in the same clock


def test_in_observe_even_work_is_told_to_nobody(scenes: Scenes) -> None:
    first, second = scenes.watching.result().working
    assert first == second


def test_an_idle_kernel_is_culled_however_many_look_on(scenes: Scenes) -> None:
    scene = scenes.enforcing.result()
    assert scene.tombstone["reason"]["code"] == "idle_timeout"
    assert [document["outcome"] for document in scene.tombstone["saved"]] == ["clean"]


def test_an_idle_kernel_moves_no_clock_and_a_warned_one_only_its_own(scenes: Scenes) -> None:
    seen = scenes.enforcing.result().by_state
    (idle,) = seen["idle"]
    assert {server for server, _ in seen["warned"]} == {idle[0]}  # the hub may end the server all the same
    assert max(kernel for _, kernel in seen["warned"]) > idle[1]  # Jupyter's culler must not, unsaved


def test_silent_work_is_told_to_jupyter_and_the_hub_as_long_as_it_goes_on(scenes: Scenes) -> None:
    scene = scenes.enforcing.result()
    (server, kernel), (later_server, later_kernel) = scene.working
    assert later_server > server
    assert later_kernel > kernel
    assert scene.resting[0] == scene.resting[1]


def test_an_open_stream_is_no_activity_at_a_hubs_proxy(
    scenes: Scenes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        program = install(tmp_path_factory.mktemp("proxy"))
    except NoProxy as why:
        pytest.skip(str(why))
    scene = scenes.watching.result()
    server = scene.server
    with proxied(program, server) as proxy:
        stream = proxy.connect(f"{API}/stream?client_id=behind")
        server.until(lambda: stream.all("status"), 10, "nothing comes through the proxy")
        before = proxy.activity()
        server.until(lambda: len(stream.all("change")) >= 5, 30, "nothing changes")
        assert proxy.activity() == before  # as without the guard, when nobody asks for anything
        assert stream.pings == 0
        # Jupyter's own socket has pings on this server, and the answers to them count.
        kernel = proxy.connect(f"api/kernels/{scene.kernel_id}/channels")
        server.until(lambda: kernel.pings >= 3, 20, "no pings")
        server.until(lambda: proxy.activity() > before, 10, "the proxy counts nothing at all")
        for listener in (stream, kernel):
            listener.close()
