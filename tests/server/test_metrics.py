"""Metrics, on Jupyter's /metrics of a real server and over states made up for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpu_guard.core.judgement import fresh_track
from jupyter_gpu_guard.core.lifecycle import born
from jupyter_gpu_guard.core.model import GpuShare, Instant, Link, TelemetryState, Usage, Verdict, VerdictKind
from jupyter_gpu_guard.core.reasons import because
from jupyter_gpu_guard.guard import State
from jupyter_gpu_guard.metrics import PREFIX, Metrics
from jupyter_gpu_guard.record import Happening
from jupyter_gpu_guard.watched import Watched
from tests.core.world import at, gpu, kernel, policy, sample, unknown
from tests.server.gpu_server import GIB, GpuServer, moment

#: name without the prefix -> (type, labels), as dashboards rely on them.
METRICS: dict[str, tuple[str, set[str]]] = {
    "gpu_utilization_ratio": ("gauge", {"uuid"}),
    "gpu_memory_used_bytes": ("gauge", {"uuid"}),
    "gpu_power_watts": ("gauge", {"uuid"}),
    "kernel_gpu_memory_bytes": ("gauge", {"kernel_id", "uuid"}),
    "kernel_sm_ratio": ("gauge", {"kernel_id", "uuid"}),
    "kernel_idle_seconds": ("gauge", {"kernel_id"}),
    "kernels": ("gauge", {"verdict"}),
    "culls_total": ("counter", {"reason"}),
    "would_culls_total": ("counter", {"reason"}),
    "saves_total": ("counter", {"outcome"}),
    "postponed_kernels": ("gauge", {"reason"}),
    "idle_gpu_seconds_total": ("counter", set()),
    "reclaimed_gpu_seconds_total": ("counter", set()),
    "unknown_gpu_seconds_total": ("counter", {"reason"}),
    "policy_valid": ("gauge", set()),
    "last_success_timestamp_seconds": ("gauge", set()),
    "round_duration_seconds": ("histogram", set()),
}

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.splitlines() if PREFIX in line]
        self.values: Values = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                if one.name.startswith(PREFIX):
                    place = (one.name.removeprefix(PREFIX), frozenset(one.labels.items()))
                    assert place not in self.values, f"{place} is there twice"
                    self.values[place] = one.value

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of a series, None where there is none."""
        return self.values.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> set[frozenset[str]]:
        """The names of the labels of a metric's series."""
        return {frozenset(key for key, _ in labels) for found, labels in self.values if found == name}

    def types(self) -> dict[str, str]:
        """The TYPE of each metric that has a HELP too."""
        words = [line.split(maxsplit=3) for line in self.lines if line.startswith("# ")]
        helped = {name for _, kind, name, text in words if kind == "HELP" and text}
        kinds = {name: text for _, kind, name, text in words if kind == "TYPE"}
        assert helped == set(kinds)
        return {name.removeprefix(PREFIX): kind for name, kind in kinds.items()}


def scrape(server: GpuServer) -> Scraped:
    code, text = server.request("GET", "metrics")
    assert code == 200
    return Scraped(text.decode())


# --- on a real server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(make_server: Callable[..., GpuServer]) -> GpuServer:
    server = make_server("GpuGuard.mode=enforce", "GpuGuard.sample_interval=1")
    server.driver.set_gpu(1, power=None)
    server.start()
    return server


@pytest.fixture(scope="module")
def kernel_id(server: GpuServer) -> str:
    """A kernel in a folder of a telling name; it uses half of GPU 0, and its memory there can't be read."""
    (server.root / "secret-place").mkdir()
    kernel_id = server.start_kernel("secret-place/work.ipynb")
    server.load(kernel_id, sm=50, memory=3 * GIB)
    server.load(kernel_id, "child", gpu=1, sm=0, memory=None)
    server.reaches(kernel_id, reason="gpu_in_use")
    return kernel_id


def test_each_metric_is_there_with_its_type_and_labels(server: GpuServer, kernel_id: str) -> None:
    found = scrape(server)
    types = {name: kind for name, kind in found.types().items() if name != "round_duration_seconds_created"}
    assert types == {name: kind for name, (kind, _) in METRICS.items()}
    for name, (kind, labels) in METRICS.items():
        series = f"{name}_count" if kind == "histogram" else name
        assert found.labels(series) <= {frozenset(labels)}, name


def test_the_values_are_those_of_the_status(server: GpuServer, kernel_id: str) -> None:
    server.until(lambda: server.guard()["gpus"], 10, "no GPU")
    first, second = (g["uuid"] for g in server.guard()["gpus"])
    # A card's memory is read less often than its use.
    server.until(
        lambda: scrape(server)("gpu_memory_used_bytes", uuid=first) == 3 * GIB, 20, "no memory is used"
    )
    found = scrape(server)
    assert found("gpu_utilization_ratio", uuid=first) == 0.5
    assert found("gpu_utilization_ratio", uuid=second) == 0.0
    assert found("gpu_power_watts", uuid=first) == 90.0
    assert found("kernel_gpu_memory_bytes", kernel_id=kernel_id, uuid=first) == 3 * GIB
    assert found("kernel_sm_ratio", kernel_id=kernel_id, uuid=first) == 0.5
    assert found("kernels", verdict="active") == 1.0
    assert [found("kernels", verdict=kind) for kind in ("idle", "stalled", "unknown")] == [0.0, 0.0, 0.0]
    assert found("policy_valid") == 1.0
    server.until(lambda: (scrape(server)("round_duration_seconds_count") or 0) >= 3, 20, "no rounds")
    found = scrape(server)
    success = server.guard()["telemetry"]["last_success"]
    assert found("last_success_timestamp_seconds") == pytest.approx(moment(success), abs=5)
    rounds = found("round_duration_seconds_count")
    assert found("round_duration_seconds_bucket", le="+Inf") == rounds


def test_what_cannot_be_read_has_no_series(server: GpuServer, kernel_id: str) -> None:
    second = server.guard()["gpus"][1]
    assert {"power_watts"} <= second["unreadable"].keys()
    found = scrape(server)
    assert found("gpu_power_watts", uuid=second["uuid"]) is None
    assert found("kernel_gpu_memory_bytes", kernel_id=kernel_id, uuid=second["uuid"]) is None
    assert found("kernel_idle_seconds", kernel_id=kernel_id) is None  # it isn't idle


def test_nothing_tells_of_processes_commands_or_paths(server: GpuServer, kernel_id: str) -> None:
    text = "\n".join(scrape(server).lines)
    pid = server.kernel(kernel_id)["pid"]
    assert f'"{pid}"' not in text
    for word in ("secret-place", "ipynb", "python", "/", "Anonymous"):
        assert word not in text.replace('le="', ""), word


def test_nobody_reads_them_without_the_token(server: GpuServer) -> None:
    assert server.request("GET", "metrics", token="")[0] in (302, 403)


def test_ends_and_saves_are_counted(server: GpuServer, kernel_id: str) -> None:
    other = server.start_kernel("other.ipynb")
    server.reaches(other)
    assert server.request("POST", f"gpu-guard/api/v1/kernels/{other}/cull", {"save": True})[0] == 202
    server.culled(other)
    found = scrape(server)
    assert found("culls_total", reason="asked_by_user") == 1.0
    assert found("saves_total", outcome="saved") == 1.0


# --- several servers in one process ---------------------------------------------------------------------------------


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    return {
        "ServerApp": {"jpserver_extensions": {"jupyter_gpu_guard": True}},
        "GpuGuard": {"gpu_source": "none"},
    }


@pytest.mark.parametrize("load", ["first", "second"])
async def test_a_second_load_in_one_process_shows_each_metric_once(
    jp_serverapp: Any, jp_fetch: Any, load: str
) -> None:
    (app,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpu_guard"]
    while not app._built.guard.state.rounds:
        await asyncio.sleep(0.05)
    answer = await jp_fetch("metrics")
    found = Scraped(answer.body.decode())  # fails on a series that is there twice
    assert found("policy_valid") == 1.0
    assert found("last_success_timestamp_seconds") is None
    assert [line for line in found.lines if line.startswith(f"# TYPE {PREFIX}kernels ")] == [
        f"# TYPE {PREFIX}kernels gauge"
    ]


def test_a_server_that_has_ended_leaves_no_metrics() -> None:
    assert PREFIX not in generate_latest(REGISTRY).decode()


# --- over states that are made up -----------------------------------------------------------------------------------


@dataclass
class Standing:
    """What metrics read of a guard, moved on by hand."""

    state: State = field(default_factory=lambda: State(sample(gpu())))
    now: float = 0.0
    policy_file: Any = None

    def clock(self) -> Instant:
        return at(self.now)


@pytest.fixture
def standing() -> Standing:
    return Standing()


@pytest.fixture
def metrics(standing: Standing) -> Metrics:
    return Metrics(standing, CollectorRegistry())  # type: ignore[arg-type]


def shown(metrics: Metrics) -> Scraped:
    return Scraped(generate_latest(metrics._registry).decode())


def share(uuid: str = "GPU-0") -> GpuShare:
    return GpuShare(uuid, GIB, 0.0, 0.0, Link.KERNEL, frozenset({200}))


def watched(kernel_id: str, kind: VerdictKind, *shares: GpuShare, holds: Any = None) -> Watched:
    one = kernel(kernel_id)
    reason = because("gpu_lost", call="x") if kind is VerdictKind.UNKNOWN else because("no_samples")
    held = bool(shares) if holds is None else holds
    verdict = Verdict(kind, reason, idle_for=timedelta(seconds=77))
    life = born(kernel_id, at(0))
    usage = Usage(kernel_id, shares, holds_gpu=held)
    return Watched(one, life, fresh_track(one, at(0)), policy(), usage, verdict)


def play(standing: Standing, metrics: Metrics, until: float, *kernels: Watched) -> None:
    """Rounds, 10 s apart, in which these kernels are there."""
    standing.state.watched = {one.kernel.kernel_id: one for one in kernels}
    while standing.now <= until:
        metrics.round()
        standing.now += 10


def happened(action: str, kernel_id: str = "a", code: str = "idle_timeout") -> Happening:
    params: dict[str, Any] = {"seconds": 1.0} if code == "idle_timeout" else {}
    return Happening(at(0).at, kernel_id, action, "idle", "culled", because(code, **params))


def test_idle_time_is_counted_for_each_card(standing: Standing, metrics: Metrics) -> None:
    idle = watched("a", VerdictKind.IDLE, share(), share("GPU-1"))
    stuck = watched("b", VerdictKind.STALLED, share())
    active = watched("c", VerdictKind.ACTIVE, share())
    play(standing, metrics, 100, idle, stuck, active)
    found = shown(metrics)
    assert found("idle_gpu_seconds_total") == 300.0
    assert found("kernel_idle_seconds", kernel_id="a") == 77.0
    assert found("kernel_idle_seconds", kernel_id="c") is None
    assert {kind.value: found("kernels", verdict=kind.value) for kind in VerdictKind} == {
        "active": 1.0,
        "idle": 1.0,
        "stalled": 1.0,
        "unknown": 0.0,
    }


def test_unknown_time_is_counted_only_where_a_card_may_be_held(standing: Standing, metrics: Metrics) -> None:
    two = watched("a", VerdictKind.UNKNOWN, share(), share("GPU-1"))
    unclear = watched("b", VerdictKind.UNKNOWN, holds=unknown())
    surely_none = watched("c", VerdictKind.UNKNOWN, holds=False)
    play(standing, metrics, 100, two, unclear, surely_none)
    assert shown(metrics)("unknown_gpu_seconds_total", reason="gpu_lost") == 300.0
    assert shown(metrics)("idle_gpu_seconds_total") == 0.0


def test_a_card_is_reclaimed_until_its_owner_takes_one_more(standing: Standing, metrics: Metrics) -> None:
    first, other = watched("a", VerdictKind.IDLE, share()), watched("b", VerdictKind.ACTIVE, share("GPU-1"))
    play(standing, metrics, 50, first, other)
    first.released = True
    metrics.happened(happened("culled"))
    play(standing, metrics, 150, other)  # the card that is held all along is no new one
    assert shown(metrics)("reclaimed_gpu_seconds_total") == 100.0
    play(standing, metrics, 250, other, watched("c", VerdictKind.ACTIVE, share()))
    assert shown(metrics)("reclaimed_gpu_seconds_total") == 100.0


def test_a_card_is_reclaimed_for_a_day_at_most(standing: Standing, metrics: Metrics) -> None:
    first = watched("a", VerdictKind.IDLE, share())
    first.released = True
    play(standing, metrics, 0, first)
    metrics.happened(happened("culled"))
    play(standing, metrics, 3 * 86400)
    assert shown(metrics)("reclaimed_gpu_seconds_total") == pytest.approx(86400, abs=20)


def test_a_card_that_did_not_come_back_is_not_reclaimed(standing: Standing, metrics: Metrics) -> None:
    play(standing, metrics, 0, watched("a", VerdictKind.IDLE, share()))
    metrics.happened(happened("culled"))
    play(standing, metrics, 500)
    assert shown(metrics)("reclaimed_gpu_seconds_total") == 0.0


def test_what_happened_is_counted_by_its_reason(standing: Standing, metrics: Metrics) -> None:
    for action in ("culled", "would_cull", "would_cull", "saved", "save_failed", "warned", "cull_failed"):
        metrics.happened(happened(action))
    metrics.happened(happened("culled", code="no_timeout"))
    found = shown(metrics)
    assert found("culls_total", reason="idle_timeout") == 1.0
    assert found("culls_total", reason="no_timeout") == 1.0
    assert found("would_culls_total", reason="idle_timeout") == 2.0
    assert (found("saves_total", outcome="saved"), found("saves_total", outcome="failed")) == (1.0, 1.0)


def test_a_shutdown_that_waits_is_shown_with_its_reason(standing: Standing, metrics: Metrics) -> None:
    waiting = watched("a", VerdictKind.IDLE, share())
    reason = because("save_failed", path="/secret/a.ipynb", error="disk full")
    waiting.life = replace(waiting.life, not_before=at(600), reason=reason)
    play(standing, metrics, 0, waiting)
    found = shown(metrics)
    assert found("postponed_kernels", reason="save_failed") == 1.0
    assert "secret" not in "\n".join(found.lines)


def test_late_readings_are_not_shown_as_if_they_were_fresh(standing: Standing, metrics: Metrics) -> None:
    standing.state.sample = replace(sample(gpu(power_watts=unknown())), last_success=at(0))
    play(standing, metrics, 0)
    assert shown(metrics)("gpu_memory_used_bytes", uuid="GPU-0") == GIB
    assert shown(metrics)("gpu_power_watts", uuid="GPU-0") is None
    standing.state.sample = replace(standing.state.sample, state=TelemetryState.STALE)
    play(standing, metrics, 20)
    assert shown(metrics)("gpu_memory_used_bytes", uuid="GPU-0") is None
    assert shown(metrics)("last_success_timestamp_seconds") == at(0).at.timestamp()


def test_a_wrong_policy_file_is_shown(standing: Standing, metrics: Metrics) -> None:
    standing.policy_file = SimpleNamespace(valid=False)
    assert shown(metrics)("policy_valid") == 0.0
