"""A driver call that doesn't return: the server answers, says so, ends nobody, and can itself be ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.server.gpu_server import GpuServer, moment

pytestmark = pytest.mark.timeout(300)

OPTIONS = ("GpuGuard.mode=enforce", "GpuGuard.idle_timeout=3", "GpuGuard.warm_up=0")
#: Longer than the deadline of a reading (5 s) and the end of an idle kernel (timeout, warning, three rounds) together.
HANGS_FOR = 5 + 3 + 1.5 + 3 * 0.5
#: The call that hangs would not return for a day. A plain server takes 1 to 9 s, by how busy the machine is.
STOPS_WITHIN = 30.0


@pytest.fixture(scope="module")
def scenes(
    make_server: Callable[..., GpuServer], beside: Callable[..., Future[Any]]
) -> dict[str, Future[Any]]:
    return {
        "hang": beside(play_hang, make_server(*OPTIONS)),
        "stop": beside(play_stop, make_server(*OPTIONS), False),
        "stop while it hangs": beside(play_stop, make_server(*OPTIONS), True),
    }


def play_hang(server: GpuServer) -> dict[str, Any]:
    """The driver hangs while one kernel is idle and one works; then it answers again."""
    driver = server.start().driver
    kernels = server.start_kernels("idle", "working")
    idle = server.load(kernels["idle"])
    working = server.load(kernels["working"])
    for kernel in kernels.values():
        server.reaches(kernel, verdict="active", holds_gpu=True)
    answered = [_seconds(server.guard) for _ in range(20)]
    driver.hang("nvmlDeviceGet*")
    began = time.time()
    idle.rest()
    statuses: list[dict[str, Any]] = []
    hanging: list[float] = []

    def look(status: dict[str, Any]) -> None:
        statuses.append(status)
        hanging.append(_seconds(lambda: server.get("api/kernels")))
        hanging.append(_seconds(server.guard))

    server.watch(HANGS_FOR, look)
    computed = server.run(kernels["working"], "print(6 * 7)")
    actions = {name: server.actions(kernel) for name, kernel in kernels.items()}
    driver.clear_rules()
    released = time.time()
    server.until(lambda: server.guard()["telemetry"]["state"] == "ok", 20, "the driver is not read again")
    tombstone = server.culled(kernels["idle"])
    still = server.reaches(kernels["working"], verdict="active", state="active")
    working.rest()
    return {
        "answered": answered,
        "hanging": hanging,
        "statuses": statuses,
        "computed": computed,
        "actions": actions,
        "began": began,
        "released": released,
        "tombstone": tombstone,
        "still": still,
        "second": server.culled(kernels["working"]),
    }


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_the_server_answers_while_the_driver_hangs(scenes):
    scene = scenes["hang"].result()
    assert len(scene["statuses"]) >= 5
    assert scene["computed"] == "42\n"
    for name in ("answered", "hanging"):
        times = sorted(scene[name])
        print(f"{name}: median {times[len(times) // 2] * 1000:.1f} ms, longest {times[-1] * 1000:.1f} ms")


def test_it_says_that_the_reading_is_stale(scenes):
    scene = scenes["hang"].result()
    states = [status["telemetry"]["state"] for status in scene["statuses"]]
    assert states == sorted(states)  # first ok, then stale
    assert states[-1] == "stale"
    last = scene["statuses"][-1]
    assert last["telemetry"]["reason"]["code"] == "driver_timeout"
    assert last["telemetry"]["reason"]["params"]["seconds"] >= 5
    assert moment(last["telemetry"]["last_success"]) <= scene["began"] + 1
    assert {(k["verdict"], k["reason"]["code"]) for k in last["kernels"]} == {("unknown", "driver_timeout")}


def test_nobody_is_ended_meanwhile(scenes):
    scene = scenes["hang"].result()
    assert scene["actions"] == {"idle": [], "working": []}
    states = {kernel["state"] for status in scene["statuses"] for kernel in status["kernels"]}
    assert states == {"active"}


def test_once_it_answers_the_idle_kernel_is_ended_and_the_working_one_lives_until_it_rests(scenes):
    scene = scenes["hang"].result()
    assert scene["tombstone"]["cause"] == "idle"
    assert moment(scene["tombstone"]["warnings"][0]["at"]) >= scene["released"]
    assert scene["still"]["warnings"] == []
    assert moment(scene["second"]["ended_at"]) > moment(scene["tombstone"]["ended_at"])


def play_stop(server: GpuServer, hangs: bool) -> float:
    """How long a server with a kernel takes to end; with `hangs` while a call of the driver doesn't return."""
    driver = server.start().driver
    kernel = server.start_kernel("working")
    server.load(kernel)
    server.reaches(kernel, verdict="active", holds_gpu=True)
    if hangs:
        driver.hang("nvmlDeviceGet*")
        server.until(lambda: server.guard()["telemetry"]["state"] == "stale", 20, "the hang is not noticed")
    return server.stop(timeout=60)


def test_the_server_ends_without_waiting_for_the_driver(scenes):
    plain, hanging = scenes["stop"].result(), scenes["stop while it hangs"].result()
    print(f"stopped in {plain:.2f} s, while the driver hangs in {hanging:.2f} s")
    assert hanging < STOPS_WITHIN
