"""What a real server does to kernels that use a GPU, or don't, or don't any more: who lives on, who is ended and when.

The kernels live side by side on two servers; each scene says what its kernel does, its tests what has to come of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.server.gpu_server import GIB, GpuServer, is_alive, moment
from tests.standin.driver import kernel_code

pytestmark = pytest.mark.timeout(300)

TIMEOUT, LEAD, ROUND = 6.0, 3.0, 1.0
#: After its last use a kernel has to be asked to save within this time.
LATEST = TIMEOUT + LEAD + 3 * ROUND

#: By the name of the notebook.
POLICIES = [
    {"name": "runtime", "match": {"path": "runtime*"}, "max_runtime": 10, "trusted": True},
    {"name": "stuck", "match": {"path": "stuck*"}, "stalled_timeout": 4, "trusted": True},
    {"name": "whole", "match": {"path": "ended*"}, "end_detached": True, "trusted": True},
    {
        "name": "short keeps",
        "match": {"path": "kept*"},
        "keep_alive_max": 12,
        "keep_alive_total": 14,
        "trusted": True,
    },
]
#: How the GPU of a kernel is used while its state is `idle`, and what status calls that.
WAYS = {"thread": "kernel", "child": "descendant", "detached": "detached"}


@pytest.fixture(scope="module")
def server(make_server: Callable[..., GpuServer]) -> GpuServer:
    options = ("GpuGuard.mode=enforce", f"GpuGuard.idle_timeout={TIMEOUT:.0f}", "GpuGuard.warm_up=0")
    return make_server(*options, gpus=8, policies=POLICIES).start()


@pytest.fixture(scope="module")
def scenes(
    server: GpuServer, make_server: Callable[..., GpuServer], beside: Callable[..., Future[Any]]
) -> dict[str, Future[Any]]:
    """All scenes, under way."""
    stock = make_server(
        "GpuGuard.mode=enforce",
        f"GpuGuard.idle_timeout={TIMEOUT:.0f}",
        "GpuGuard.after_run_factor=0",
        "MappingKernelManager.cull_idle_timeout=8",
        "MappingKernelManager.cull_interval=1",
        "MappingKernelManager.cull_connected=True",
        "MappingKernelManager.cull_busy=True",
    )
    return {
        "silent": beside(play_silent_cell, stock),
        **{way: beside(play_work_beside_cells, server, way, gpu) for gpu, way in enumerate(WAYS)},
        "family": beside(play_family, server, "family", 3),
        "ended": beside(play_family, server, "ended", 4),
        "runtime": beside(play_runtime, server, 5),
        "stuck": beside(play_stuck, server, 6),
        "kept": beside(play_kept, server, 7),
    }


# --- work beside the cells ------------------------------------------------------------------------------------------


def play_work_beside_cells(server: GpuServer, way: str, gpu: int) -> dict[str, Any]:
    """The GPU is in use for two timeouts while no cell runs; then it rests."""
    kernel = server.start_kernel(way)
    load = server.load(kernel, way, gpu=gpu)
    server.reaches(kernel, verdict="active", reason="gpu_in_use")
    lived: list[dict[str, Any]] = []
    server.watch(
        LATEST, lambda status: lived.extend(k for k in status["kernels"] if k["kernel_id"] == kernel)
    )
    load.rest()
    rested = time.time()
    deadline = rested

    def gone() -> bool:
        nonlocal deadline
        now = server.kernel(kernel)
        if now is not None and now["state"] == "warned":
            deadline = moment(now["deadline"])
        return not server.has_kernel(kernel)

    server.until(gone, 40, f"the kernel of {way} is not ended")
    tombstone = server.culled(kernel)
    at = {row["action"]: moment(row["at"]) for row in server.happenings(kernel)}
    return {"lived": lived, "rested": rested, "deadline": deadline, "at": at, "tombstone": tombstone}


@pytest.mark.parametrize("way", WAYS)
def test_work_beside_the_cells_keeps_a_kernel(scenes, way):
    lived = scenes[way].result()["lived"]
    assert len(lived) >= 5
    assert {(k["execution_state"], k["verdict"], k["state"]) for k in lived} == {("idle", "active", "active")}
    # Two rounds that follow each other at once find no new sample between them: quiet for a moment, and not idle.
    assert {"gpu_in_use"} <= {k["reason"]["code"] for k in lived} <= {"gpu_in_use", "settling"}
    assert {share["attribution"] for k in lived for share in k["gpus"]} == {WAYS[way]}
    assert not any(k["warnings"] for k in lived)


@pytest.mark.parametrize("way", WAYS)
def test_who_stops_is_ended_in_time_and_not_before_the_deadline(scenes, way):
    scene = scenes[way].result()
    at, rested = scene["at"], scene["rested"]
    assert list(at) == ["warned", "save_requested", "saved", "culled"]
    assert at["warned"] >= rested + TIMEOUT - LEAD - ROUND
    assert at["save_requested"] >= scene["deadline"] >= rested + TIMEOUT - ROUND
    assert at["save_requested"] >= at["warned"] + LEAD
    assert at["save_requested"] <= rested + LATEST


@pytest.mark.parametrize("way", WAYS)
def test_the_tombstone_says_who_and_why(scenes, way):
    tombstone = scenes[way].result()["tombstone"]
    assert (tombstone["cause"], tombstone["reason"]["code"]) == ("idle", "idle_timeout")
    assert tombstone["notebooks"] == [way]
    assert [warning["lead_seconds"] for warning in tombstone["warnings"]] == [LEAD]


# --- what a kernel leaves -------------------------------------------------------------------------------------------


def play_family(server: GpuServer, notebook: str, gpu: int) -> dict[str, Any]:
    """A kernel with a child in a session of its own and a detached process, all of which hold memory of a GPU."""
    kernel = server.start_kernel(notebook)
    loads = {how: server.load(kernel, how, gpu=gpu) for how in ("thread", "session", "detached")}
    server.reaches(kernel, verdict="active", holds_gpu=True)
    for load in loads.values():
        load.rest()
    tombstone = server.culled(kernel, 60)
    alive = {how: is_alive(load.pid) for how, load in loads.items()}
    left = [other for other in server.guard()["unattributed"] if other["kernel_id"] == kernel]
    return {"tombstone": tombstone, "alive": alive, "left": left, "pid": loads["detached"].pid}


def test_descendants_go_with_the_kernel_and_detached_ones_are_told(scenes):
    scene = scenes["family"].result()
    assert scene["alive"] == {"thread": False, "session": False, "detached": True}
    assert scene["tombstone"]["survivors"] == 1
    assert scene["tombstone"]["memory_released_bytes"] == 2 * GIB
    (left,) = scene["left"]
    assert (left["owner"], left["pid"], left["memory_bytes"]) == ("orphan", scene["pid"], GIB)


def test_where_the_policy_says_so_the_detached_go_too(scenes):
    scene = scenes["ended"].result()
    assert scene["alive"] == {"thread": False, "session": False, "detached": False}
    assert scene["tombstone"]["survivors"] == 0
    assert scene["tombstone"]["memory_released_bytes"] == 3 * GIB
    assert scene["left"] == []


# --- other ends than idleness ---------------------------------------------------------------------------------------


def play_runtime(server: GpuServer, gpu: int) -> dict[str, Any]:
    """A kernel works on and on."""
    kernel = server.start_kernel("runtime")
    opened = time.time()
    server.load(kernel, gpu=gpu)
    tombstone = server.culled(kernel, 60)
    return {"opened": opened, "tombstone": tombstone, "rows": server.happenings(kernel)}


def test_max_runtime_ends_an_active_kernel_with_its_warning(scenes):
    scene = scenes["runtime"].result()
    rows = {row["action"]: row for row in scene["rows"]}
    assert list(rows) == ["warned", "save_requested", "saved", "culled"]
    assert {rows[action]["verdict"] for action in ("warned", "save_requested")} == {"active"}
    assert {row["reason"]["code"] for row in scene["rows"]} == {"max_runtime"}
    assert moment(rows["save_requested"]["at"]) >= scene["opened"] + 10
    assert moment(rows["save_requested"]["at"]) >= moment(rows["warned"]["at"]) + LEAD
    assert scene["tombstone"]["cause"] == "max_runtime"


def play_stuck(server: GpuServer, gpu: int) -> dict[str, Any]:
    """A cell runs that does nothing, far longer than stalled_timeout and the idle timeout together."""
    kernel = server.start_kernel("stuck")
    server.run(kernel, kernel_code(f"gpu = Context(gpu={gpu}, memory=1 << 30)"))
    server.begin(kernel, "import time; time.sleep(600)")
    stuck = server.reaches(kernel, 30, verdict="stalled")
    later: list[dict[str, Any]] = []
    server.watch(
        LATEST, lambda status: later.extend(k for k in status["kernels"] if k["kernel_id"] == kernel)
    )
    return {"stuck": stuck, "later": later, "rows": server.happenings(kernel)}


def test_a_stuck_kernel_is_only_warned_of_and_once(scenes):
    scene = scenes["stuck"].result()
    assert scene["stuck"]["reason"]["code"] == "busy_nothing_moves"
    assert scene["stuck"]["reason"]["params"]["seconds"] >= 4
    assert [row["action"] for row in scene["rows"]] == ["warned"]
    assert scene["rows"][0]["reason"]["code"] == "busy_nothing_moves"
    assert {(k["verdict"], k["reason"]["code"], k["state"]) for k in scene["later"]} == {
        ("stalled", "busy_nothing_moves", "idle")
    }
    assert {k["deadline"] for k in scene["later"]} == {None}


def test_scope_gpu_leaves_kernels_without_a_gpu_alone(scenes, server):
    kernel = scenes["kept"].result()["plain"]
    assert server.has_kernel(kernel)
    now = server.kernel(kernel)
    assert (now["holds_gpu"], now["verdict"], now["state"]) == (False, "idle", "idle")
    assert now["idle_seconds"] > LATEST
    assert (now["deadline"], now["deadline_reason"]["code"]) == (None, "out_of_scope")
    assert server.happenings(kernel) == []


# --- keeping --------------------------------------------------------------------------------------------------------


def play_kept(server: GpuServer, gpu: int) -> dict[str, Any]:
    """A kernel is kept when it has been warned; beside it lives one that holds no GPU."""
    plain = server.start_kernel("plain")
    server.run(plain, "1")
    kernel = server.start_kernel("kept")
    server.load(kernel, gpu=gpu).rest()
    path = f"gpu-guard/api/v1/kernels/{kernel}/keep-alive"
    warned = server.reaches(kernel, 30, state="warned")
    too_long = server.request("POST", path, {"seconds": 13})
    kept_at = time.time()
    kept = server.request("POST", path, {"seconds": 12, "reason": "lunch"})
    after = server.kernel(kernel)
    kept_for: list[dict[str, Any]] = []
    server.watch(5, lambda status: kept_for.extend(k for k in status["kernels"] if k["kernel_id"] == kernel))
    assert {(k["verdict"], k["reason"]["code"]) for k in kept_for} == {("idle", "idle")}
    used_up = server.request("POST", path, {"seconds": 12})
    tombstone = server.culled(kernel)
    return {
        "plain": plain,
        "warned": warned,
        "too_long": too_long,
        "kept_at": kept_at,
        "kept": kept,
        "after": after,
        "used_up": used_up,
        "tombstone": tombstone,
        "rows": server.happenings(kernel),
    }


def test_keeping_moves_the_deadline(scenes):
    scene = scenes["kept"].result()
    code, answer = scene["kept"]
    assert code == 201
    until = moment(answer["until"])
    assert scene["kept_at"] + 11 < until < scene["kept_at"] + 14
    assert moment(scene["warned"]["deadline"]) < scene["kept_at"] + LEAD + ROUND
    assert abs(moment(scene["after"]["deadline"]) - until) < 0.1
    assert scene["after"]["deadline_reason"]["code"] == "kept"
    assert (scene["after"]["state"], scene["after"]["warnings"]) == ("idle", [])
    assert moment(scene["after"]["keep_alive_until"]) == pytest.approx(until, abs=0.01)


def test_a_kept_kernel_is_warned_again_and_ended_after_it(scenes):
    scene = scenes["kept"].result()
    actions = [row["action"] for row in scene["rows"]]
    assert actions == ["warned", "keep_alive", "warned", "save_requested", "saved", "culled"]
    until = moment(scene["kept"][1]["until"])
    assert moment(scene["rows"][3]["at"]) >= until
    assert moment(scene["rows"][3]["at"]) <= until + 3 * ROUND


def test_keeping_is_limited(scenes):
    scene = scenes["kept"].result()
    code, answer = scene["too_long"]
    assert (code, answer["reason"]["code"]) == (403, "keep_alive_too_long")
    assert answer["reason"]["params"]["limit_seconds"] == 12
    code, answer = scene["used_up"]
    assert (code, answer["reason"]["code"]) == (403, "keep_alive_used_up")
    assert 0 < answer["reason"]["params"]["limit_seconds"] < 11


# --- beside Jupyter's own culler ------------------------------------------------------------------------------------


def play_silent_cell(server: GpuServer) -> dict[str, Any]:
    """Restart and run all, with a cell of 25 s that says nothing, beside a kernel that nobody uses."""
    server.start()
    kernel = server.start_kernel("silent")
    idle = server.start_kernel("nobody")
    server.run(kernel, "1")
    code, _ = server.request("POST", f"api/kernels/{kernel}/restart")
    assert code == 200
    server.run(kernel, kernel_code("gpu = Context(memory=1 << 30)"))
    began = time.monotonic()
    printed = server.run(kernel, "import time; time.sleep(25); print('done')", timeout=60)
    seconds = time.monotonic() - began
    seen = server.kernel(kernel)
    actions = server.actions(kernel)
    server.until(lambda: not server.has_kernel(idle), 10, "Jupyter's own culler is off")
    return {
        "printed": printed,
        "seconds": seconds,
        "actions": actions,
        "seen": seen,
        "idle": server.tombstones(idle),
        "tombstone": server.culled(kernel),
    }


def test_a_silent_cell_is_ended_neither_by_us_nor_by_jupyters_own_culler(scenes):
    scene = scenes["silent"].result()
    assert scene["printed"] == "done\n"
    assert scene["seconds"] >= 25
    assert scene["actions"] == []
    assert (scene["seen"]["verdict"], scene["seen"]["holds_gpu"]) == ("active", True)


def test_afterwards_it_is_ended_by_us_and_the_unused_one_by_jupyter(scenes):
    scene = scenes["silent"].result()
    assert scene["tombstone"]["cause"] == "idle"
    assert scene["idle"] == []
