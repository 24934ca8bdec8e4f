"""Where the driver tells by its nature of no process (WSL): a kernel is left alone, or judged by the other signals if
the policy says so. What an error does is in test_failures; how such a card is read in tests/edges/test_nvml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.gpu_server import GpuServer, moment

OPTIONS = ("GpuGuard.mode=enforce", "GpuGuard.idle_timeout=3", "GpuGuard.warm_up=0")
POLICIES = [{"name": "judged", "match": {"path": "judged*"}, "unknown_policy": "other-signals"}]
LIST = "nvmlDeviceGetComputeRunningProcesses"


@pytest.fixture(scope="module")
def windows(make_server: Callable[..., GpuServer], tmp_path_factory: pytest.TempPathFactory) -> GpuServer:
    """A server that finds its card to be one of Windows."""
    folder = tmp_path_factory.mktemp("windows")
    code = f"""
from pathlib import Path
from jupyter_gpu_guard import nvml_card

nvml_card.WINDOWS_GPU = Path({str(folder)!r})
"""
    (folder / "jupyter_server_config.py").write_text(code)
    return make_server(*OPTIONS, gpus=1, policies=POLICIES, env={"JUPYTER_CONFIG_PATH": str(folder)})


@pytest.fixture(scope="module")
def failing(make_server: Callable[..., GpuServer]) -> GpuServer:
    """A server with the same policies, whose card is an ordinary one."""
    return make_server(*OPTIONS, gpus=1, policies=POLICIES)


def rest(server: GpuServer, *notebooks: str) -> dict[str, str]:
    """Kernels that used a GPU and now only hold it."""
    server.start()
    kernels = server.start_kernels(*notebooks)
    for load in [server.load(kernel) for kernel in kernels.values()]:
        load.rest()
    return kernels


def seen(server: GpuServer, kernel_id: str, seconds: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    server.watch(
        seconds, lambda status: found.extend(k for k in status["kernels"] if k["kernel_id"] == kernel_id)
    )
    return found


def test_on_wsl_the_policy_decides_whether_the_other_signals_speak(windows: GpuServer) -> None:
    kernels = rest(windows, "judged.ipynb", "other.ipynb")
    judged = windows.reaches(kernels["judged.ipynb"], verdict="idle", reason="idle_by_other_signals")
    assert judged["holds_gpu"] is None
    gone = windows.culled(kernels["judged.ipynb"], 30)
    assert gone["reason"]["code"] == "idle_timeout"
    assert gone["memory_released_bytes"] is None
    assert moment(gone["ended_at"]) - moment(judged["idle_since"]) >= 9  # three times the timeout
    spared = seen(windows, kernels["other.ipynb"], 1)[-1]
    assert (spared["verdict"], spared["reason"]["code"]) == ("unknown", "not_supported")
    assert (spared["state"], spared["warnings"]) == ("active", [])


def test_after_an_error_they_never_do(failing: GpuServer) -> None:
    failing.driver.fail(LIST, 999)
    kernels = rest(failing, "judged.ipynb")
    spared = seen(failing, kernels["judged.ipynb"], 9 + 1.5 + 3)
    assert {kernel["verdict"] for kernel in spared} <= {"active", "unknown"}
    assert (spared[-1]["reason"]["code"], spared[-1]["warnings"]) == ("driver_error", [])
