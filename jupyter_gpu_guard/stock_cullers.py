"""Towards Jupyter's own cullers and the hub's: what we know to be working, kept or under way is reported as active.

A kernel that works without a message looks idle to them; they would end what we spare. In `enforce` (or with
`shield_working`) its `last_activity` is moved. Only work that really goes on also sets the server's
`last_activity_times`, which the hub's culler reads: an idle kernel that is kept or warned holds no server up. Nothing
is ever moved back.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import datetime, timedelta

from .core.lifecycle import Phase
from .core.model import Instant, VerdictKind
from .guard import Guard
from .watched import Watched

#: The name under which the server's activity is set.
ACTIVITY = "gpu_guard"
UNDER_WAY = (Phase.WARNED, Phase.SAVING, Phase.CULLING)


class StockCullers:
    """Tells the stock cullers of work, once a round."""

    def __init__(self, guard: Guard, activity_times: MutableMapping[str, datetime]) -> None:
        self._guard = guard
        self._times = activity_times

    def round(self) -> None:
        """Move what has to be moved now."""
        now = self._guard.clock()
        working = False
        for watched in self._guard.state.watched.values():
            if not self._shielded(watched):
                continue
            if self._spared(watched, now):
                self._guard.watch.shield(watched.kernel.kernel_id, now.at)
            working = working or _works(watched)
        others = self._guard.state.attribution.others
        if self._guard.settings.shields(self._guard.general_policy.mode):
            working = working or any(
                o.owner in ("terminal", "orphan") and isinstance(o.sm_ratio, float) and o.sm_ratio > 0
                for o in others
            )
        if working:
            self._times[ACTIVITY] = now.at

    def _shielded(self, watched: Watched) -> bool:
        return self._guard.settings.shields(watched.policy.mode)

    def _spared(self, watched: Watched, now: Instant) -> bool:
        """In use, kept, warned, saving, ending; unknown too, for idle_timeout after the last good reading."""
        verdict, life = watched.verdict, watched.life
        if life.phase in UNDER_WAY or (life.keep_until is not None and life.keep_until > now.at):
            return True
        if verdict is None or verdict.reason.code in SEEN_BY_JUPYTER:
            return False
        if verdict.kind is VerdictKind.ACTIVE:
            return True
        if verdict.kind is VerdictKind.UNKNOWN:
            limit = watched.policy.idle_timeout or timedelta(hours=2)
            return now.since(watched.track.last_good) <= limit
        return False


def _works(watched: Watched) -> bool:
    """Whether something really goes on: not a kernel that has just fallen quiet."""
    verdict = watched.verdict
    if verdict is None or verdict.kind is not VerdictKind.ACTIVE:
        return False
    return verdict.reason.code not in SEEN_BY_JUPYTER | {"present"}


#: Reasons behind which nothing works any more, or not yet. Jupyter's clock started with what they follow, and runs as
#: its admin has set it.
SEEN_BY_JUPYTER = frozenset({"settling", "just_started", "executed", "not_measured_yet"})
