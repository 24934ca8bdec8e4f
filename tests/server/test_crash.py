"""A server killed outright while kernels are in every phase of their lives: what the next one finds, closes and tells.

All phases are reached at once on one server, which is then killed; a second one starts on the same folders.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.server.gpu_server import GIB, GpuServer, Load, is_alive

pytestmark = pytest.mark.timeout(240)

#: Each notebook is named by the phase that its policy makes it stay in.
STAYS = {"window": 1.5, "warm_up": 0, "trusted": True}
POLICIES = [
    {"name": "active", "match": {"path": "active"}, "idle_timeout": 300, "warn_before": [5], **STAYS},
    {"name": "idle", "match": {"path": "idle"}, "idle_timeout": 300, "warn_before": [5], **STAYS},
    {"name": "warned", "match": {"path": "warned"}, "idle_timeout": 300, "warn_before": [298], **STAYS},
    {"name": "saving", "match": {"path": "saving"}, "idle_timeout": 3, "save_timeout": 300, **STAYS},
    {"name": "culling", "match": {"path": "culling"}, "idle_timeout": 3, **STAYS},
]
PHASES = [policy["name"] for policy in POLICIES]
#: Those that stand in the journal, with how far they have come there.
UNDER_WAY = ["saving", "culling"]


@dataclass
class Killed:
    """What was there when the first server was killed, and what the second one says."""

    kernels: dict[str, str]
    loads: dict[str, Load]
    states: dict[str, str]
    second: GpuServer
    status: dict[str, Any]


@pytest.fixture(scope="module")
def killed(make_server: Callable[..., GpuServer]) -> Killed:
    options = ("GpuGuard.mode=enforce", "GpuGuard.sample_interval=0.5")
    first = make_server(*options, policies=POLICIES, gpus=len(PHASES)).start()
    kernels = first.start_kernels(*PHASES)
    # What a cull sends first is ignored by this one's child, so that the cull is under way for a while.
    first.run(kernels["culling"], "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    loads = {
        phase: first.load(kernel, "session", gpu=gpu) for gpu, (phase, kernel) in enumerate(kernels.items())
    }
    document = {"path": "saving", "kernel_id": kernels["saving"], "dirty": True}
    code, answer = first.request("POST", "gpu-guard/api/v1/clients/tab", {"documents": [document]})
    assert code in (200, 204), answer
    for phase in ("idle", "warned", "saving"):
        loads[phase].rest()
    for phase in ("idle", "warned", "saving"):
        first.reaches(kernels[phase], 40, state=phase)
    loads["culling"].rest()
    first.reaches(kernels["culling"], 40, state="culling")
    states = {phase: first.kernel(kernel)["state"] for phase, kernel in kernels.items()}
    pids = [kernel["pid"] for kernel in first.guard()["kernels"] if kernel["pid"] is not None]
    first.stop(signal.SIGKILL)
    first.until(lambda: not any(map(is_alive, pids)), 30, "the kernels outlive their server")
    second = make_server(*options, policies=POLICIES, like=first).start()
    status = second.until(lambda: _with_orphans(second), 30, "the orphans are not seen")
    return Killed(kernels, loads, states, second, status)


def _with_orphans(server: GpuServer) -> dict[str, Any] | None:
    status: dict[str, Any] = server.guard()
    return status if len(status["unattributed"]) >= len(PHASES) else None


@pytest.mark.parametrize("phase", PHASES)
def test_the_server_was_killed_in_every_phase(killed, phase):
    assert killed.states[phase] == phase


@pytest.mark.parametrize("phase", UNDER_WAY)
def test_what_was_under_way_has_a_tombstone_that_says_so(killed, phase):
    (tombstone,) = killed.second.tombstones(killed.kernels[phase])
    assert tombstone["reason"]["code"] == "server_restarted"
    assert (tombstone["cause"], tombstone["step"]) == ("idle", phase)
    assert tombstone["notebooks"] == [phase]
    assert [warning["lead_seconds"] for warning in tombstone["warnings"]] == [1.5]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in UNDER_WAY])
def test_what_was_not_begun_has_none(killed, phase):
    assert killed.second.tombstones(killed.kernels[phase]) == []


def test_every_entry_of_the_journal_is_closed(killed):
    (path,) = (killed.second.folder / "data" / "gpu_guard").glob("history-*.sqlite")
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT kernel_id, step, outcome FROM journal").fetchall()
    assert sorted(rows) == sorted((killed.kernels[phase], phase, "server_restarted") for phase in UNDER_WAY)


@pytest.mark.parametrize("phase", PHASES)
def test_a_process_that_outlived_its_kernel_is_shown_as_its_orphan(killed, phase):
    assert is_alive(killed.loads[phase].pid)
    (orphan,) = [o for o in killed.status["unattributed"] if o["kernel_id"] == killed.kernels[phase]]
    assert (orphan["owner"], orphan["pid"]) == ("orphan", killed.loads[phase].pid)
    assert orphan["memory_bytes"] == GIB
    assert orphan["sm_ratio"] == (0.5 if phase == "active" else 0.0)


def test_the_history_tells_of_the_time_before(killed):
    assert killed.second.actions(killed.kernels["warned"]) == ["warned"]
    assert killed.second.actions(killed.kernels["culling"]) == ["warned", "save_requested", "saved"]
    assert killed.status["kernels"] == []
    assert killed.status["hold"] is None
