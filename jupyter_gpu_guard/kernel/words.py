"""What to say of a kernel in a terminal or under a cell, from the JSON that the guard gives.

The words are those of the screens in the browser: in use, unused, shuts down in, stuck?, can't tell, kept, shut down.
Standard library alone: the magic says them in the kernel, the command line beside it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Dict

Json = Dict[str, Any]

_UNDER_WAY = {"saving": "saving, then shuts down", "culling": "shutting down", "culled": "shut down"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: Reasons for which a kernel is shut down whether it is in use or not.
_REGARDLESS = {"max_runtime", "asked_by_user"}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TYPED = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def duration(seconds: float | None) -> str:
    """Two units at most, rounded down, so that a countdown never promises more than there is."""
    if seconds is None:
        return "?"
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    (large, small), units = (divmod(whole // 60, 60), ("h", "min"))
    if whole >= 2 * 86400:
        (large, small), units = (divmod(whole // 3600, 24), ("d", "h"))
    return f"{large} {units[0]} {small} {units[1]}" if small else f"{large} {units[0]}"


def size(amount: float | None) -> str:
    """Bytes in the largest unit that leaves at least one; what is unknown is `?`, never 0."""
    if amount is None:
        return "?"
    step = 0
    while amount >= 1024 and step < len(_UNITS) - 1:
        amount, step = amount / 1024, step + 1
    return f"{amount:.1f} {_UNITS[step]}" if step and amount < 99.95 else f"{amount:.0f} {_UNITS[step]}"


def percent(ratio: float | None) -> str:
    """Whole percent; a use below half a percent is not shown as none."""
    if ratio is None:
        return "?"
    return "<1 %" if 0 < ratio < 0.005 else f"{ratio * 100:.0f} %"


def moment(text: str) -> datetime:
    """A time of the wire. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def clock(at: datetime, now: datetime) -> str:
    """Local time with its zone, `14:05 CET`; with the date when that is not today's."""
    here, today = at.astimezone(), now.astimezone()
    return here.strftime("%H:%M %Z" if here.date() == today.date() else "%Y-%m-%d %H:%M %Z")


def typed(seconds: float) -> str:
    """A duration as it is typed in a command, `1h30m`, rounded down; empty below a second."""
    text, rest = "", max(0, int(seconds))
    for unit, length in _TYPED:
        count, rest = divmod(rest, length)
        text += f"{count}{unit}" if count else ""
    return text


def text_of(reason: Json | None, now: datetime) -> str:
    """The sentence of a reason, with spans and times as people say them: the guard's own is for logs, in seconds and
    UTC."""
    if reason is None:
        return ""
    text = str(reason["text"])
    for name, value in reason["params"].items():
        if name.endswith("seconds") and isinstance(value, (int, float)):
            text = re.sub(rf"(?<![\d.]){value:.0f} s\b", duration(value), text)
        elif isinstance(value, str) and _MOMENT.fullmatch(value):
            text = text.replace(value, clock(moment(value), now))
    return text


def use(kernel: Json) -> str:
    """Whether the kernel is in use."""
    verdict = kernel["verdict"]
    if verdict == "active":
        return "in use"
    if verdict == "idle":
        return f"unused for {duration(kernel['idle_seconds'])}"
    return "stuck?" if verdict == "stalled" else "can't tell – not counting"


def outlook(kernel: Json, now: datetime) -> str:
    """What happens next, and if nothing does, why."""
    state = kernel["state"]
    if state in _UNDER_WAY:
        return _UNDER_WAY[state]
    if state == "failed":
        return f"could not be shut down: {text_of(kernel['state_reason'], now)}"
    ending = _ending(kernel, now)
    if ending:
        return ending
    kept = kernel["keep_alive_until"]
    if kept and moment(kept) > now:
        return f"kept until {clock(moment(kept), now)}"
    if kernel["mode"] == "observe":
        return "observing: nothing will be shut down"
    if kernel["verdict"] != "idle":
        return text_of(kernel["reason"], now)
    if kernel["mode"] == "warn":
        return "only warning: nothing will be shut down"
    return text_of(kernel["deadline_reason"], now)


def _ending(kernel: Json, now: datetime) -> str:
    """The countdown, where there is one that runs; one that only holds if the use ends now is none."""
    if not kernel["deadline"]:
        return ""
    foreign = kernel["deadline_source"] != "guard"
    code = (kernel["deadline_reason"] or {}).get("code")
    counts = kernel["verdict"] in ("idle", "stalled") and not kernel["keep_alive_until"]
    if not (foreign or counts or code in _REGARDLESS):
        return ""
    at = moment(kernel["deadline"])
    left = (at - now).total_seconds()
    if left <= 0:
        return "shuts down any moment"
    by = f", by {kernel['deadline_source']}" if foreign else ""
    return f"shuts down in {duration(left)} (at {clock(at, now)}{by})"


def memory(kernel: Json) -> float | None:
    """Bytes that the kernel holds on all GPUs; None where one of them can't be told."""
    return _sum([share["memory_bytes"] for share in kernel["gpus"]])


def gpu_use(kernel: Json) -> float | None:
    """The largest share of a GPU's time that the kernel takes; None where one of them can't be told."""
    ratios = [share["sm_ratio"] for share in kernel["gpus"]]
    return None if None in ratios else max(ratios, default=None)


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
