"""Jupyter's own idle clock of one kernel, which the stock culler and a hub go by.

The guard moves it forward for a kernel that works, and puts it back after a probe of its own. It is only ever put back
to what it would be without the probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .core.model import Instant

#: For how long a probe's mark is held: the server may read the probe's messages later than the guard does.
MARK_LASTS = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ActivityMark:
    """Jupyter's idle clocks before a probe: that of the kernel, and that of all kernels together."""

    kernel: datetime
    manager: datetime
    taken: datetime

    def later(self, at: datetime | None) -> datetime | None:
        """`at` where it lies after the mark: what came before is in the mark already."""
        return at if at is not None and at > self.taken else None


class KernelClock:
    """`km.last_activity`. `counted`: when a message that was not the guard's own last moved it."""

    def __init__(self, km: Any, clock: Callable[[], Instant]) -> None:
        self.counted: datetime | None = None
        self._shielded: datetime | None = None
        self._km = km
        self._clock = clock
        self._mark: tuple[ActivityMark, Instant] | None = None

    def count(self, at: datetime) -> None:
        """A message that was not ours moves the clock to `at`."""
        self.counted = latest(self.counted, at)

    def shield(self, at: datetime) -> None:
        """Move it forward to `at`, never back."""
        self._shielded = latest(self._shielded, at)
        self._km.last_activity = latest(getattr(self._km, "last_activity", None), at)

    def put_back(self, mark: ActivityMark) -> None:
        """Undo what a probe did, now and as long as the mark is held."""
        self._mark = (mark, self._clock())
        self.hold()

    def hold(self) -> ActivityMark | None:
        """Set the clock to the mark, or to a later move or shield. None where no mark is held."""
        if self._mark is None:
            return None
        mark, since = self._mark
        if self._clock().since(since) > MARK_LASTS:
            self._mark = None
            return None
        self._km.last_activity = mark.later(latest(self.counted, self._shielded)) or mark.kernel
        return mark

    def forget(self) -> None:
        """The kernel was restarted, which is activity: let go of the mark."""
        self._mark = None


def latest(*times: datetime | None) -> datetime | None:
    """The last of the moments that there are."""
    return max((at for at in times if at is not None), default=None)


def stock_deadline(mkm: Any, km: Any) -> datetime | None:
    """When Jupyter's own culler would end this kernel if nothing moved its clock; None where it would not.

    By the rules of jupyter_server: the culler runs only where the server's `cull_idle_timeout` is above 0, but then a
    kernelspec's value is taken as it is, 0 included.
    """
    if getattr(mkm, "cull_idle_timeout", 0) <= 0 or getattr(km, "last_activity", None) is None:
        return None
    if km.execution_state == "busy" and not mkm.cull_busy:
        return None
    model = mkm.kernel_model(km.kernel_id)
    if isinstance(model, Mapping) and model.get("connections") and not mkm.cull_connected:
        return None
    seconds = km.kernel_spec.metadata.get("cull_idle_timeout", mkm.cull_idle_timeout)
    at: datetime = km.last_activity + timedelta(seconds=seconds)
    return at
