"""Jupyter's own idle clock of one kernel, which the stock culler and a hub go by."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any


def shield(km: Any, at: datetime) -> None:
    """Move the clock of this kernel forward to `at`, never back."""
    last = getattr(km, "last_activity", None)
    km.last_activity = at if last is None else max(last, at)


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
