"""Who is told to Jupyter's culler and to a hub, for every standing of a kernel. On a server: test_activity_neutral."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest

from jupyter_gpu_guard.core.judgement import fresh_track
from jupyter_gpu_guard.core.lifecycle import Phase, born
from jupyter_gpu_guard.core.model import UnattributedProcess, Verdict, VerdictKind
from jupyter_gpu_guard.core.policy import Mode
from jupyter_gpu_guard.core.reasons import Reason
from jupyter_gpu_guard.stock_cullers import ACTIVITY, StockCullers
from tests.core.world import at, kernel, policy, sample


@pytest.mark.parametrize(
    ("kind", "code", "phase", "spared", "works"),
    [
        (VerdictKind.ACTIVE, "gpu_in_use", "active", True, True),
        (VerdictKind.ACTIVE, "cpu_in_use", "active", True, True),
        (VerdictKind.ACTIVE, "executing", "active", True, True),
        (VerdictKind.ACTIVE, "settling", "active", False, False),
        (VerdictKind.ACTIVE, "executed", "active", False, False),
        (VerdictKind.UNKNOWN, "not_measured_yet", "active", False, False),
        (VerdictKind.ACTIVE, "present", "active", True, False),
        (VerdictKind.IDLE, "idle", "idle", False, False),
        (VerdictKind.IDLE, "idle", "warned", True, False),
        (VerdictKind.IDLE, "idle", "saving", True, False),
        (VerdictKind.IDLE, "idle", "culling", True, False),
        (VerdictKind.STALLED, "spinning", "idle", False, False),
        (VerdictKind.UNKNOWN, "gpu_lost", "idle", True, False),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_who_is_spared_and_who_holds_the_server_up(
    mode: Mode, kind: VerdictKind, code: str, phase: str, spared: bool, works: bool
) -> None:
    shielded, times = told(mode, kind, code, phase)
    acts = mode is Mode.ENFORCE
    assert shielded == (["k"] if spared and acts else [])
    assert times == ({ACTIVITY: at(50).at} if works and acts else {})


@pytest.mark.parametrize(
    ("owner", "ratio", "works"),
    [("terminal", 0.3, True), ("orphan", 0.3, True), ("terminal", 0.0, False), ("foreign", 0.9, False)],
)
def test_work_of_terminals_and_orphans_holds_the_server_up(owner: str, ratio: float, works: bool) -> None:
    other = UnattributedProcess("GPU-0", 1, ratio, owner)
    _, times = told(Mode.ENFORCE, VerdictKind.IDLE, "idle", "idle", other)
    assert (ACTIVITY in times) is works


def told(
    mode: Mode, kind: VerdictKind, code: str, phase: str, *others: UnattributedProcess
) -> tuple[list[str], dict[str, datetime]]:
    """One round of a guard with one kernel: whose clock was moved, and the server's activity."""
    verdict = Verdict(kind, Reason(code))
    life = replace(born("k", at(0)), phase=Phase(phase))
    track = replace(fresh_track(kernel("k"), at(0)), last_good=at(40))
    watched = SimpleNamespace(
        kernel=kernel("k"), life=life, verdict=verdict, policy=policy(mode=mode), track=track
    )
    shielded: list[str] = []
    state = SimpleNamespace(
        watched={"k": watched},
        attribution=SimpleNamespace(others=others),
        sample=replace(sample(), last_success=at(40)),
    )
    guard = SimpleNamespace(
        state=state,
        general_policy=policy(mode=mode),
        clock=lambda: at(50),
        settings=SimpleNamespace(shields=lambda m: m is Mode.ENFORCE),
        watch=SimpleNamespace(shield=lambda kernel_id, when: shielded.append(kernel_id)),
    )
    times: dict[str, datetime] = {}
    StockCullers(guard, times).round()  # type: ignore[arg-type]
    return shielded, times
