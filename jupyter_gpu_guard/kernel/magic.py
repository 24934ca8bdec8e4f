"""`%gpu_guard` in a notebook: what the guard thinks of this kernel and why, and more time for it.

    %load_ext jupyter_gpu_guard
    %gpu_guard
    %gpu_guard keep 2h "the long evaluation starts at six"
    %gpu_guard keep off

It asks the server that started this kernel, as the same user. Where there is no guard it says so and goes on, so that
the notebook runs elsewhere too; a refusal or a slip is a UsageError. Standard library alone, but for IPython, which is
there when this is loaded. Running it is itself an execution, and counts as use like any other.
"""

from __future__ import annotations

import os
import re
import shlex
from datetime import datetime, timezone
from typing import Any

from . import words
from .servers import NoAnswer, ask, servers_in
from .widget import kernel_id

USAGE = (
    '%gpu_guard shows the state; %gpu_guard keep 2h "why" keeps this kernel for that long; '
    "%gpu_guard keep off takes that back"
)
_DOCTOR = "`jupyter gpu-guard doctor`, in a terminal where the server runs, says what is in the way."

#: What to do about a refusal, by the code of its reason.
_REMEDIES = {
    "keep_alive_off": "save what you need in time, or ask whoever runs the server to allow it",
    "shutting_down": "save the notebook, then start its kernel again",
    "not_extendable": "save what you need before then",
    "cannot_record": "try again once it can",
}

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SPAN = re.compile("".join(f"(?:(?P<{unit}>{_NUMBER.pattern}){unit})?" for unit in _SECONDS))


class Unguarded(Exception):
    """No guard looks after this kernel; `str()` is the sentence to say."""


class Mistake(Exception):
    """What was asked for can't be had; `str()` is the sentence to say."""


def load_ipython_extension(ip: Any) -> None:
    """Called by `%load_ext jupyter_gpu_guard`."""
    ip.register_magic_function(gpu_guard, "line", "gpu_guard")


def gpu_guard(line: str) -> None:
    """Show what the guard thinks of this kernel, or keep it: %gpu_guard [keep DURATION "why" | keep off]."""
    try:
        print(answer(line))
    except Unguarded as sentence:
        print(sentence)
    except Mistake as sentence:
        from IPython.core.error import UsageError

        raise UsageError(str(sentence)) from None


def answer(line: str) -> str:
    """What the magic prints. Raises Unguarded and Mistake."""
    try:
        words_given = shlex.split(line)
    except ValueError as error:
        raise Mistake(f"{error}: {USAGE}") from None
    if words_given in ([], ["status"]):
        return describe(_ask(""), datetime.now(timezone.utc))
    if words_given == ["keep", "off"]:
        return _keep_no_longer()
    if words_given[0] == "keep" and len(words_given) in (2, 3):
        return _keep(words_given[1], (words_given[2:] or [""])[0])
    raise Mistake(USAGE)


def describe(kernel: dict[str, Any], now: datetime) -> str:
    """The state of one kernel as the guard sent it, in a few lines."""
    use, why = words.use(kernel), words.text_of(kernel["reason"], now)
    lines = [why if why.startswith(use) else f"{use}: {why}"]
    for share in kernel["gpus"]:
        memory, ratio = words.size(share["memory_bytes"]), words.percent(share["sm_ratio"])
        lines.append(f"{share['uuid']}: {memory}, {ratio} in use")
    outlook = words.outlook(kernel, now)
    if outlook not in lines[0]:
        lines.append(outlook)
    return "\n".join(lines)


def seconds_of(text: str) -> float:
    """A duration in seconds from `90`, `90s`, `30m`, `1h30m`, `2d`. Raises Mistake."""
    match = _SPAN.fullmatch(f"{text}s" if _NUMBER.fullmatch(text) else text)
    parts = {} if match is None else {unit: part for unit, part in match.groupdict().items() if part}
    seconds = sum(float(part) * _SECONDS[unit] for unit, part in parts.items())
    if not seconds:
        raise Mistake(f"{text!r} is no duration; write 90s, 30m, 1h30m or 2d")
    return seconds


def _keep(duration: str, why: str) -> str:
    body = {"seconds": seconds_of(duration), "reason": why}
    kept = _ask("/keep-alive", "POST", body)
    until = words.clock(words.moment(kept["until"]), datetime.now(timezone.utc))
    left = words.duration(kept["remaining_total_seconds"])
    return f"kept until {until}; {left} of extensions are left"


def _keep_no_longer() -> str:
    if not _ask("")["keep_alive_until"]:
        return "this kernel was not kept"
    _ask("/keep-alive", "DELETE")
    return "no longer kept\n" + describe(_ask(""), datetime.now(timezone.utc))


def _refusal(reason: dict[str, Any], message: str) -> str:
    """What the guard said, and what to do about it."""
    said = words.text_of({**reason, "text": message}, datetime.now(timezone.utc))
    code, limit = str(reason.get("code")), reason["params"].get("limit_seconds")
    remedy = _REMEDIES.get(code)
    if code in ("keep_alive_too_long", "keep_alive_used_up"):
        least = words.typed(limit or 0)
        remedy = (
            f"%gpu_guard keep {least}" if least else "save what you need; a kernel in use is not shut down"
        )
    return f"{said}: {remedy}" if remedy else said


def _ask(path: str, method: str = "GET", body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of the guard that knows this kernel. Raises Unguarded and Mistake."""
    this = kernel_id()
    if not this:
        raise Unguarded(
            "No GPU guard looks after this kernel: it was not started by a Jupyter server in which jupyter_gpu_guard "
            "is enabled. There, `jupyter server extension enable jupyter_gpu_guard` and a restart enable it."
        )
    failures = []
    for server in servers_in(runtime_folders(), first_pid=_server_pid()):
        try:
            return ask(server, f"kernels/{this}{path}", method, body)
        except NoAnswer as error:
            unknown = error.reason is not None and error.reason.get("code") == "unknown_kernel"
            if error.reason is not None and not unknown:
                raise Mistake(_refusal(error.reason, str(error))) from None
            failures.append(f"{server.url}: {error}")
    tried = "; ".join(failures) or "its Jupyter server was not found on this machine"
    raise Unguarded(f"No GPU guard answers for this kernel ({tried}). {_DOCTOR}")


def _server_pid() -> int | None:
    """The process that started this kernel, as Jupyter names it in the environment."""
    pid = os.environ.get("JPY_PARENT_PID", "")
    return int(pid) if pid.isdigit() else None


def runtime_folders() -> list[str]:
    """Where servers leave their files: beside the file that this kernel was started with, and Jupyter's own folders."""
    home = os.path.expanduser("~")
    folders = [os.environ.get("JUPYTER_RUNTIME_DIR", "")]
    data = os.environ.get("JUPYTER_DATA_DIR") or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "jupyter"
    )
    folders.append(os.path.join(data, "runtime"))
    try:
        from ipykernel.connect import get_connection_file

        folders.insert(0, os.path.dirname(get_connection_file()))
    except Exception:  # another kind of kernel, or IPython in a terminal
        pass
    return [folder for folder in dict.fromkeys(folders) if folder]
