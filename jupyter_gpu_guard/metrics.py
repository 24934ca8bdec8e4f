"""The record and the state as Prometheus metrics, on Jupyter's own `/metrics`.

Gauges are read from the guard's state when they are asked for; what can't be read has no series. No pids, no command
lines, no paths.

Not here: costs and hours over weeks (accounting).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .core.model import TelemetryState, Unknown, VerdictKind
from .guard import Guard
from .record import Happening
from .watched import Watched

PREFIX = "jupyter_gpu_guard_"
#: Reclaimed time counts until the same owner holds a GPU again, and this long at most.
RECLAIM_LIMIT_SECONDS = 24 * 3600.0


class Metrics(Collector):
    """A collector over the guard's state, with the counters of what happened."""

    def __init__(self, guard: Guard, registry: CollectorRegistry = REGISTRY) -> None:
        self._guard = guard
        self._registry = registry
        self._culls: Counter[str] = Counter()
        self._would: Counter[str] = Counter()
        self._saves: Counter[str] = Counter()
        self._idle_seconds = 0.0
        self._unknown_seconds: defaultdict[str, float] = defaultdict(float)
        self._reclaimed_seconds = 0.0
        self._released: list[float] = []  # when each card was given back that nobody has taken again
        self._held = 0
        self._last_round: float | None = None
        self._last_success: datetime | None = None
        self.round_duration = Histogram(
            f"{PREFIX}round_duration_seconds",
            "Time of one round, readings included",
            registry=None,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        registry.register(self)

    def close(self) -> None:
        """Take the metrics off the registry again."""
        self._registry.unregister(self)

    # --- counting ---

    def happened(self, happening: Happening) -> None:
        """Count what happened."""
        code = happening.reason.code
        if happening.action == "culled":
            self._culls[code] += 1
            watched = self._guard.state.watched.get(happening.kernel_id)
            verified = watched is not None and watched.released
            cards = len(watched.usage.shares) if watched is not None and verified else 0
            self._released += [self._guard.clock().monotonic] * cards
        elif happening.action == "would_cull":
            self._would[code] += 1
        elif happening.action in ("saved", "save_failed"):
            self._saves["saved" if happening.action == "saved" else "failed"] += 1

    def round(self) -> None:
        """Add the time since the last round to what was idle, unknown or reclaimed in it."""
        now = self._guard.clock().monotonic
        elapsed = 0.0 if self._last_round is None else now - self._last_round
        self._last_round = now
        if self._guard.state.sample.last_success is not None:
            self._last_success = self._guard.state.sample.last_success.at
        for watched in self._guard.state.watched.values():
            cards = len(watched.usage.shares)
            kind = None if watched.verdict is None else watched.verdict.kind
            if kind in (VerdictKind.IDLE, VerdictKind.STALLED):
                self._idle_seconds += elapsed * cards
            elif kind is VerdictKind.UNKNOWN and watched.verdict is not None:
                # A card that can't be told is one as well; a kernel that surely holds none wastes none.
                unclear = 0 if watched.usage.holds_gpu is False else 1
                self._unknown_seconds[watched.verdict.reason.code] += elapsed * max(cards, unclear)
        self._reclaim(now, elapsed)

    def _reclaim(self, now: float, elapsed: float) -> None:
        """A card that was given back counts until this owner takes one more than before."""
        held = sum(len(watched.usage.shares) for watched in self._guard.state.watched.values())
        taken = max(held - self._held, 0)
        self._held = held
        self._released = [at for at in self._released[taken:] if now - at < RECLAIM_LIMIT_SECONDS]
        self._reclaimed_seconds += elapsed * len(self._released)

    # --- showing ---

    def describe(self) -> list[Any]:
        """Nothing: what is collected depends on the state, and registering must not read it."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics, as Prometheus asks for them."""
        yield from self._gpus()
        yield from self._kernels()
        yield from self._counters()
        yield from self.round_duration.collect()

    def _gpus(self) -> Iterator[GaugeMetricFamily]:
        fields = {
            "gpu_utilization_ratio": "Share of the last sample period in which the GPU worked",
            "gpu_memory_used_bytes": "GPU memory in use",
            "gpu_power_watts": "Power drawn",
        }
        sample = self._guard.state.sample
        for name, text in fields.items():
            family = GaugeMetricFamily(PREFIX + name, text, labels=["uuid"])
            if sample.state is TelemetryState.OK:
                for gpu in sample.gpus:
                    value = getattr(gpu, name.removeprefix("gpu_"))
                    if not isinstance(value, Unknown):
                        family.add_metric([gpu.uuid], value)
            yield family

    def _kernels(self) -> Iterator[GaugeMetricFamily]:
        watched = list(self._guard.state.watched.values())
        labels = ["kernel_id", "uuid"]
        memory = GaugeMetricFamily(
            f"{PREFIX}kernel_gpu_memory_bytes", "GPU memory of a kernel's processes", labels=labels
        )
        ratio = GaugeMetricFamily(
            f"{PREFIX}kernel_sm_ratio", "Share of the GPU that a kernel's processes use", labels=labels
        )
        idle = GaugeMetricFamily(
            f"{PREFIX}kernel_idle_seconds", "Observed idle time of a kernel", labels=["kernel_id"]
        )
        kinds = GaugeMetricFamily(f"{PREFIX}kernels", "Kernels by verdict", labels=["verdict"])
        postponed = GaugeMetricFamily(
            f"{PREFIX}postponed_kernels", "Kernels whose shutdown waits", labels=["reason"]
        )
        for one in watched:
            for share in one.usage.shares:
                for family, value in ((memory, share.memory_bytes), (ratio, share.sm_ratio)):
                    if not isinstance(value, Unknown):
                        family.add_metric([one.kernel.kernel_id, share.uuid], value)
            if one.verdict is not None and one.verdict.kind in (VerdictKind.IDLE, VerdictKind.STALLED):
                idle.add_metric([one.kernel.kernel_id], one.verdict.idle_for.total_seconds())
        counts = Counter("unknown" if w.verdict is None else w.verdict.kind.value for w in watched)
        for kind in VerdictKind:
            kinds.add_metric([kind.value], counts[kind.value])
        for code, number in Counter(_postponed(w) for w in watched if w.life.not_before is not None).items():
            postponed.add_metric([code], number)
        yield from (memory, ratio, idle, kinds, postponed)

    def _counters(self) -> Iterator[Any]:
        yield _counted("culls", "Kernels shut down", "reason", self._culls)
        yield _counted("would_culls", "Kernels that would have been shut down", "reason", self._would)
        yield _counted("saves", "Save requests by outcome", "outcome", self._saves)
        yield _counted(
            "unknown_gpu_seconds", "GPU time that could not be judged", "reason", self._unknown_seconds
        )
        yield CounterMetricFamily(
            f"{PREFIX}idle_gpu_seconds", "GPU time held by idle kernels", self._idle_seconds
        )
        text = "GPU time between a verified release and the same owner's next hold, a day at most"
        yield CounterMetricFamily(f"{PREFIX}reclaimed_gpu_seconds", text, self._reclaimed_seconds)
        valid = self._guard.policy_file is None or self._guard.policy_file.valid
        yield GaugeMetricFamily(
            f"{PREFIX}policy_valid", "1 when the policy file is valid or absent", float(valid)
        )
        success = GaugeMetricFamily(
            f"{PREFIX}last_success_timestamp_seconds", "Last good reading of the GPUs", labels=[]
        )
        if self._last_success is not None:
            success.add_metric([], self._last_success.timestamp())
        yield success


def _postponed(watched: Watched) -> str:
    return "unknown" if watched.life.reason is None else watched.life.reason.code


def _counted(name: str, text: str, label: str, counts: Any) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, number in counts.items():
        family.add_metric([key], number)
    return family
