"""Kernels as they are followed: a real Jupyter server with real kernels."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.base import (
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)

from jupyter_gpu_guard.core.model import Instant, Kernel
from jupyter_gpu_guard.kernels import MARKER, KernelWatch, UnknownKernel

V1 = "v1.kernel.websocket.jupyter.org"
SETTING = "kernel_websocket_connection_class"
MANAGERS = "jupyter_server.services.kernels.kernelmanager."


def instant() -> Instant:
    return Instant(time.monotonic(), datetime.now(UTC))


@pytest.fixture
def jp_server_config():
    """A crash is noticed at once; otherwise as Jupyter comes."""
    return {"KernelRestarter": {"time_to_dead": 0.2}}


@pytest.fixture
def watch(jp_serverapp, jp_asyncio_loop):
    app = jp_serverapp
    made = KernelWatch(app.kernel_manager, app.session_manager, instant, app.log, {"EXTRA": "given"})
    yield made
    jp_asyncio_loop.run_until_complete(made.stop())


async def until(look: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Wait until `look` gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.03)


async def seen(watch: KernelWatch, kernel_id: str) -> Kernel | None:
    return next((k for k in await watch.kernels() if k.kernel_id == kernel_id), None)


async def becomes(
    watch: KernelWatch, kernel_id: str, condition: Callable[[Kernel], object], what: str
) -> Kernel:
    async def look() -> Kernel | None:
        kernel = await seen(watch, kernel_id)
        return kernel if kernel is not None and condition(kernel) else None

    return await until(look, what)


class Client:
    """Speaks to a kernel directly, without a websocket, with a session of its own."""

    def __init__(self, km: Any) -> None:
        self.session = Session(key=km.session.key)
        self.shell = km.connect_shell()
        self.control = km.connect_control()
        for stream in (self.shell, self.control):
            stream.socket.linger = 0

    def send(self, kind: str, content: dict[str, Any], control: bool = False) -> None:
        self.session.send(self.control if control else self.shell, kind, content)

    def execute(self, code: str, **more: Any) -> None:
        self.send("execute_request", execution(code, **more))

    def close(self) -> None:
        self.shell.close()
        self.control.close()


def execution(code: str, silent: bool = False, store_history: bool = True) -> dict[str, Any]:
    return {
        "code": code,
        "silent": silent,
        "store_history": store_history,
        "user_expressions": {},
        "allow_stdin": True,
        "stop_on_error": True,
    }


@pytest.fixture
def connect():
    """Makes clients, and closes them before the server's own tidying."""
    clients: list[Client] = []

    def make(km: Any) -> Client:
        clients.append(Client(km))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def environment(pid: int | None) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


@pytest.mark.parametrize(
    "jp_server_config",
    [
        {"ServerApp": {"kernel_manager_class": MANAGERS + "AsyncMappingKernelManager"}},
        {"ServerApp": {"kernel_manager_class": MANAGERS + "MappingKernelManager"}},
    ],
    ids=["async", "sync"],
)
async def test_the_first_cell_is_never_missed(watch, jp_serverapp, jp_fetch, connect):
    """It may have begun before our subscription stood: then nothing of it is heard but that the shell is taken."""
    await watch.start()
    response = await jp_fetch("api", "kernels", method="POST", body='{"name": "python3"}')
    kernel_id = json.loads(response.body)["id"]
    km = jp_serverapp.kernel_manager.get_kernel(kernel_id)
    connect(km).execute("import time; time.sleep(4)")
    first = await becomes(watch, kernel_id, lambda k: k.executing, "the first cell after the start")
    assert (first.execution_state, first.executing, first.incarnation) == ("busy", 1, 0)
    assert first.pid == km.provisioner.pid
    assert (environment(first.pid)[MARKER], environment(first.pid)["EXTRA"]) == (kernel_id, "given")

    await jp_fetch("api", "kernels", kernel_id, "restart", method="POST", body="{}")
    connect(km).execute("import time; time.sleep(4)")
    second = await becomes(watch, kernel_id, lambda k: k.executing, "the first cell after a restart")
    assert (second.execution_state, second.executing, second.incarnation) == ("busy", 1, 1)
    assert second.pid != first.pid
    assert second.started > first.started
    assert (environment(second.pid)[MARKER], environment(second.pid)["EXTRA"]) == (kernel_id, "given")
    # The guard's own request may have come after the cell, and is then answered after it.
    ended = await becomes(watch, kernel_id, lambda k: k.watched and not k.executing, "its end")
    assert ended.execution_state == "idle"
    assert ended.last_execution_seconds == pytest.approx(4, abs=2)
    assert ended.last_execution_end.since(ended.last_execution_start).total_seconds() >= 2


async def test_a_control_message_turns_the_server_idle_in_a_silent_cell_but_not_us(
    watch, jp_serverapp, connect
):
    changes: list[str] = []
    watch.changed = changes.append
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    client = connect(mkm.get_kernel(kernel_id))
    client.execute("import time; time.sleep(60)")
    await becomes(watch, kernel_id, lambda k: k.executing, "busy")
    client.send("usage_request", {}, control=True)
    await until(lambda: mkm.kernel_model(kernel_id)["execution_state"] == "idle", "the server to say idle")
    kernel = await seen(watch, kernel_id)
    assert (kernel.execution_state, kernel.executing, kernel.last_execution_end) == ("busy", 1, None)
    assert kernel.executing_since == kernel.last_execution_start

    assert set(changes) == {kernel_id}
    changes.clear()
    await watch.interrupt(kernel_id)
    ended = await becomes(watch, kernel_id, lambda k: not k.executing, "the end by interrupt")
    assert ended.last_output is not None  # the traceback
    assert changes
    with pytest.raises(UnknownKernel):
        await watch.interrupt("nobody")


async def test_what_is_no_work_moves_the_server_but_not_us(watch, jp_serverapp, connect):
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    km = mkm.get_kernel(kernel_id)
    client = connect(km)
    # A widget that moves by itself: a thread which pushes comm messages once a file is there, and prints for another.
    client.execute(
        "import threading, time\n"
        "from comm import create_comm\n"
        "comm = create_comm(target_name='live')\n"
        "ticking, printing = threading.Event(), threading.Event()\n"
        "def run():\n"
        "    ticking.wait()\n"
        "    while True:\n"
        "        comm.send({'tick': time.time()})\n"
        "        if printing.is_set(): print('tick')\n"
        "        time.sleep(0.05)\n"
        "threading.Thread(target=run, daemon=True).start()"
    )
    before = await becomes(watch, kernel_id, lambda k: k.last_execution_end, "the cell's end")
    moved = km.last_activity
    client.execute("ticking.set()", silent=True)
    client.send("complete_request", {"code": "pri", "cursor_pos": 3})
    client.send("kernel_info_request", {})
    client.send("comm_open", {"comm_id": "x", "target_name": "nobody", "data": {}})
    await until(
        lambda: km.last_activity > moved + timedelta(seconds=0.5), "the server to count comm messages"
    )
    assert await seen(watch, kernel_id) == before

    client.execute("printing.set()", silent=True)
    printed = await becomes(watch, kernel_id, lambda k: k.last_output, "what the thread prints")
    assert printed.executing == 0
    assert printed.last_execution_end == before.last_execution_end


class Socket:
    """A front end's websocket, in the binary protocol or the older JSON one."""

    def __init__(self, connection: Any, v1: bool) -> None:
        self._connection = connection
        self._v1 = v1
        self._session = Session()
        self._arrived: list[tuple[str, dict[str, Any]]] = []

    async def send(self, channel: str, kind: str, content: dict[str, Any]) -> None:
        message = self._session.msg(kind, content)
        if self._v1:
            frame = serialize_msg_to_ws_v1(message, channel, self._session.pack)
            await self._connection.write_message(frame, binary=True)
        else:
            text = json.dumps({**message, "channel": channel, "buffers": []}, default=str)
            await self._connection.write_message(text)

    async def receive(self, kind: str) -> dict[str, Any]:
        """The next message of a kind. Those of different channels come in any order."""
        while not any(have == kind for have, _ in self._arrived):
            raw = await asyncio.wait_for(self._connection.read_message(), 20)
            if self._v1:
                _, parts = deserialize_msg_from_ws_v1(raw)
                header, content = json.loads(parts[0]), json.loads(parts[3])
            else:
                message = json.loads(raw)
                header, content = message["header"], message["content"]
            self._arrived.append((header["msg_type"], content))
        place = next(i for i, (have, _) in enumerate(self._arrived) if have == kind)
        return self._arrived.pop(place)[1]

    def close(self) -> None:
        self._connection.close()


async def test_a_question_waits_and_a_poller_is_no_work(watch, jp_serverapp, jp_ws_fetch):
    settings = jp_serverapp.web_app.settings
    stock = settings[SETTING]
    watch.install(settings)
    await watch.start()
    kernel_id = await jp_serverapp.kernel_manager.start_kernel()
    for protocols in ([V1], []):
        connection = await jp_ws_fetch(
            "api",
            "kernels",
            kernel_id,
            "channels",
            params={"session_id": uuid.uuid4().hex},
            subprotocols=protocols,
        )
        assert connection.selected_subprotocol == (V1 if protocols else None)
        socket = Socket(connection, v1=bool(protocols))
        await becomes(watch, kernel_id, lambda k: k.watched and k.connections == 1, "connected")

        await socket.send("shell", "execute_request", execution("answer = input('name?')"))
        assert (await socket.receive("input_request"))["prompt"] == "name?"
        asking = await becomes(watch, kernel_id, lambda k: k.waiting_for_input, "waiting")
        assert asking.executing == 1
        await socket.send("stdin", "input_reply", {"value": "Ada"})
        assert (await socket.receive("execute_reply"))["status"] == "ok"
        await becomes(watch, kernel_id, lambda k: not (k.waiting_for_input or k.executing), "answered")

        await socket.send("shell", "execute_request", execution("input()"))
        await becomes(watch, kernel_id, lambda k: k.waiting_for_input, "waiting")
        await watch.interrupt(kernel_id)
        before = await becomes(watch, kernel_id, lambda k: not k.executing, "interrupted")
        assert not before.waiting_for_input

        assert (await socket.receive("execute_reply"))["status"] == "error"
        poll = execution("print('variables')", store_history=False)
        await socket.send("shell", "execute_request", poll)
        assert (await socket.receive("stream"))["text"] == "variables\n"
        assert (await socket.receive("execute_reply"))["status"] == "ok"
        after = await seen(watch, kernel_id)
        assert after.last_output == before.last_output
        assert after.last_execution_end == before.last_execution_end
        socket.close()
        await becomes(watch, kernel_id, lambda k: k.connections == 0, "closed")
    await watch.stop()
    assert settings[SETTING] is stock


async def new_session(jp_fetch, path: str, kind: str, kernel_id: str | None = None) -> dict[str, Any]:
    kernel = {"name": "python3"} if kernel_id is None else {"id": kernel_id}
    body = json.dumps({"path": path, "type": kind, "name": "", "kernel": kernel})
    return json.loads((await jp_fetch("api", "sessions", method="POST", body=body)).body)


async def test_a_kernel_with_two_notebooks_is_ended_once_and_takes_both_sessions(
    watch, jp_serverapp, jp_fetch
):
    await watch.start()
    kernel_id = (await new_session(jp_fetch, "one.ipynb", "notebook"))["kernel"]["id"]
    await new_session(jp_fetch, "sub/two.ipynb", "notebook", kernel_id)
    await new_session(jp_fetch, "console-1", "console", kernel_id)
    other = (await new_session(jp_fetch, "other.ipynb", "notebook"))["kernel"]["id"]
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    activity = jp_serverapp.kernel_manager.get_kernel(kernel_id).last_activity
    kernel = await seen(watch, kernel_id)
    assert kernel.notebooks == ("one.ipynb", "sub/two.ipynb")
    assert (kernel.name, kernel.language, kernel.remote) == ("python3", "python", False)
    km = jp_serverapp.kernel_manager.get_kernel(kernel_id)
    assert km.last_activity == activity

    ended: list[str] = []
    original = km.shutdown_kernel

    async def counted(*args, **kwargs):
        ended.append(kernel_id)
        return await original(*args, **kwargs)

    km.shutdown_kernel = counted
    await watch.shutdown(kernel_id)
    assert ended == [kernel_id]
    assert [k.kernel_id for k in await watch.kernels()] == [other]
    sessions = json.loads((await jp_fetch("api", "sessions")).body)
    assert [s["path"] for s in sessions] == ["other.ipynb"]
    assert not Path(f"/proc/{kernel.pid}").exists()
    with pytest.raises(UnknownKernel):
        await watch.shutdown(kernel_id)

    await jp_fetch("api", "kernels", other, method="DELETE")
    assert await watch.kernels() == ()


async def test_a_crash_ends_the_cell_and_the_restart_is_followed(watch, jp_serverapp, connect):
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    km = mkm.get_kernel(kernel_id)
    connect(km).execute("import time; time.sleep(60)")
    before = await becomes(watch, kernel_id, lambda k: k.executing, "busy")
    os.kill(before.pid, signal.SIGKILL)
    await becomes(watch, kernel_id, lambda k: not k.executing, "the end of the cell")
    after = await becomes(watch, kernel_id, lambda k: k.watched and k.pid, "the automatic restart")
    assert (after.incarnation, after.executing, after.execution_state) == (1, 0, "idle")
    assert after.pid != before.pid
    assert environment(after.pid)[MARKER] == kernel_id

    connect(km).execute("import time; time.sleep(0.5)")
    await becomes(watch, kernel_id, lambda k: k.executing, "the first cell after the crash")
    await becomes(watch, kernel_id, lambda k: not k.executing, "its end")

    ended: list[str] = []
    watch.changed = ended.append
    km._restarter.restart_limit = 0
    os.kill(after.pid, signal.SIGKILL)
    await until(lambda: kernel_id not in mkm, "Jupyter to give it up")
    assert kernel_id in ended
    (dead,) = await watch.kernels()
    assert (dead.kernel_id, dead.execution_state, dead.executing, dead.pid) == (kernel_id, "dead", 0, None)
    assert await watch.kernels() == ()


async def test_kernels_that_ran_before_are_adopted_and_all_is_left_as_it_was(watch, jp_serverapp, connect):
    mkm = jp_serverapp.kernel_manager
    silent, printing = await mkm.start_kernel(), await mkm.start_kernel()
    connect(mkm.get_kernel(silent)).execute("import time; time.sleep(3)")
    connect(mkm.get_kernel(printing)).execute("import time\nfor i in range(60): print(i); time.sleep(0.05)")
    for kernel_id in (silent, printing):
        await until(lambda k=kernel_id: mkm.kernel_model(k)["execution_state"] == "busy", "busy", 30)
    began = instant()
    await watch.start()
    kernels = {k.kernel_id: k for k in await watch.kernels()}
    for kernel in kernels.values():
        assert not kernel.watched
        assert kernel.execution_state == "busy"  # the server's word, until ours is sure
        assert kernel.started < began
    running = await becomes(watch, printing, lambda k: k.executing, "what it prints to show that it runs")
    assert not running.watched
    for kernel_id in (silent, printing):
        ended = await becomes(watch, kernel_id, lambda k: k.watched, "watched once the cell has ended")
        assert (ended.execution_state, ended.executing) == ("idle", 0)
        assert ended.last_execution_end > began
        # Nobody saw it begin: of the silent one it is known since when the shell has owed an answer.
        longest = ended.last_execution_end.since(began).total_seconds()
        known = ended.last_execution_seconds
        assert known is None if kernel_id == printing else 0 < known <= longest

    mkm.remove_kernel(silent)  # as when a kernel is lost without a shutdown
    assert [k.kernel_id for k in await watch.kernels()] == [printing]

    km = mkm.get_kernel(printing)
    assert "restart_kernel" in vars(km)
    await watch.stop()
    assert not {"start_kernel", "update_env"} & vars(mkm).keys()
    assert "restart_kernel" not in vars(km)
    unmarked = await mkm.start_kernel(env={**os.environ, "LEFT": "alone"})
    variables = environment(mkm.get_kernel(unmarked).provisioner.pid)
    assert variables["LEFT"] == "alone"
    assert MARKER not in variables


async def test_a_renamed_notebook_in_a_nested_server_keeps_its_own_marker(
    watch, jp_serverapp, jp_fetch, monkeypatch
):
    monkeypatch.setenv(MARKER, "the-kernel-that-this-server-runs-in")
    await watch.start()
    session = await new_session(jp_fetch, "one.ipynb", "notebook")
    kernel_id = session["kernel"]["id"]
    await jp_fetch(
        "api",
        "sessions",
        session["id"],
        method="PATCH",
        body='{"path": "renamed.ipynb", "name": "renamed.ipynb"}',
    )
    assert (await seen(watch, kernel_id)).notebooks == ("renamed.ipynb",)
    await jp_fetch("api", "kernels", kernel_id, "restart", method="POST", body="{}")
    kernel = await seen(watch, kernel_id)
    variables = environment(kernel.pid)
    assert variables["JPY_SESSION_NAME"].endswith("renamed.ipynb")
    assert (variables[MARKER], variables["EXTRA"]) == (kernel_id, "given")


async def test_the_shield_moves_the_clock_of_one_kernel_and_only_forward(watch, jp_serverapp):
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    km, server = mkm.get_kernel(kernel_id), mkm.last_kernel_activity
    late = datetime.now(UTC) + timedelta(hours=1)
    watch.shield(kernel_id, late)
    watch.shield(kernel_id, late - timedelta(hours=2))
    assert (km.last_activity, mkm.last_kernel_activity) == (late, server)
    watch.shield("gone", late)


async def test_what_the_stock_culler_would_do(watch, jp_serverapp):
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    km = mkm.get_kernel(kernel_id)
    km.kernel_spec.metadata["cull_idle_timeout"] = 5
    assert (watch.cull_idle_timeout, watch.stock_deadline(kernel_id)) == (0, None)
    mkm.cull_idle_timeout = 600
    assert watch.stock_deadline(kernel_id) == km.last_activity + timedelta(seconds=5)
    del km.kernel_spec.metadata["cull_idle_timeout"]
    assert watch.stock_deadline(kernel_id) == km.last_activity + timedelta(seconds=600)
    mkm.notify_connect(kernel_id)
    assert watch.stock_deadline(kernel_id) is None
    mkm.cull_connected = True
    km.execution_state = "busy"
    assert watch.stock_deadline(kernel_id) is None
    mkm.cull_busy = True
    assert watch.stock_deadline(kernel_id) == km.last_activity + timedelta(seconds=600)
    assert watch.stock_deadline("gone") is None


async def test_pending_kernels_are_followed_when_they_have_ports(watch, jp_serverapp, connect):
    mkm = jp_serverapp.kernel_manager
    mkm.use_pending_kernels = True
    await watch.start()
    kernel_id = await mkm.start_kernel()
    young = await seen(watch, kernel_id)
    assert (young.watched, young.execution_state) == (False, "starting")
    km = mkm.get_kernel(kernel_id)
    await asyncio.wait_for(asyncio.shield(km.ready), 20)
    connect(km).execute("import time; time.sleep(1)")
    kernel = await becomes(watch, kernel_id, lambda k: k.executing, "the first cell")
    assert environment(kernel.pid)[MARKER] == kernel_id
    await watch.shutdown(kernel_id)
    assert kernel_id not in mkm
    assert await watch.kernels() == ()


async def test_another_wrapper_around_ours_goes_on_after_we_stop(watch, jp_serverapp, monkeypatch):
    monkeypatch.delenv(MARKER, raising=False)
    mkm = jp_serverapp.kernel_manager
    await watch.start()
    ours, passed = mkm.start_kernel, []

    async def theirs(**kwargs):
        passed.append(await ours(**kwargs))
        return passed[-1]

    mkm.start_kernel = theirs
    await watch.stop()
    kernel_id = await mkm.start_kernel()
    assert passed == [kernel_id]
    assert MARKER not in environment(mkm.get_kernel(kernel_id).provisioner.pid)


async def test_a_kernel_id_that_is_used_again_is_a_new_kernel(watch, jp_serverapp, connect):
    await watch.start()
    mkm = jp_serverapp.kernel_manager
    kernel_id = await mkm.start_kernel()
    first = await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    await mkm.shutdown_kernel(kernel_id, now=True)
    assert await mkm.start_kernel(kernel_id=kernel_id) == kernel_id
    second = await becomes(watch, kernel_id, lambda k: k.watched, "the second one watched")
    assert second.pid == mkm.get_kernel(kernel_id).provisioner.pid
    assert second.pid != first.pid
    connect(mkm.get_kernel(kernel_id)).execute("print(1)")
    await becomes(watch, kernel_id, lambda k: k.last_execution_end, "its cell")


# What zmq says of sockets that are closed under a stream.
@pytest.mark.filterwarnings("ignore:Unregistering FD:UserWarning")
async def test_stopping_after_the_server_has_torn_its_kernels_down(watch, jp_serverapp):
    mkm = jp_serverapp.kernel_manager
    watch.install(jp_serverapp.web_app.settings)
    await watch.start()
    kernel_id = await mkm.start_kernel()
    await becomes(watch, kernel_id, lambda k: k.watched, "watched")
    await mkm.shutdown_all(now=True)
    mkm.context.destroy(0)
    await watch.stop()
    assert "start_kernel" not in vars(mkm)
