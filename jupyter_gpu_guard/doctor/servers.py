"""Running servers: whether a guard runs in them, what keeps them active, and how much of the GPU time is judged.

Only what a server tells to its user over HTTP, by requests that do not count as activity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..kernel import words
from ..kernel.servers import NoAnswer, Server, ask, fetch
from .finding import Finding, fail, ok, warn

Json = dict[str, Any]

#: What happened this long ago still keeps a server from looking idle.
RECENT = timedelta(minutes=5)
#: A server's own last activity that is so much later than that of all its kernels and terminals came from a request.
LATER = timedelta(seconds=30)
#: Time that can't be judged is worth a warning from this share on.
TOO_MUCH = 0.05


def running(servers: Sequence[Server]) -> Iterator[Finding]:
    """All findings about the servers that run now."""
    if not servers:
        remedy = "Start one and run this again, to see what keeps it active and what can be judged."
        yield warn("running servers", "none of this user's", remedy)
    for server in servers:
        yield from _one(server)


def _one(server: Server) -> Iterator[Finding]:
    name = f"guard in {server.url}"
    try:
        status = ask(server, "status")
    except NoAnswer as error:
        remedy = "Restart the server after enabling the extension; its log says why if it was not loaded."
        yield (fail if error.code == 404 else warn)(name, str(error), remedy)
        return
    try:
        yield from _guard(name, status)
        yield _activity(server, status)
        yield _judged(server, status)
    except (NoAnswer, AttributeError, KeyError, TypeError, ValueError) as error:
        remedy = "Update jupyter_server and jupyter-gpu-guard to versions that belong together."
        yield warn(name, f"it answered something unexpected ({error!r})", remedy)


def _guard(name: str, status: Json) -> Iterator[Finding]:
    """The guard by its own account, and what holds it back."""
    found = (
        f"version {status['version']}, mode {status['mode']}, GPU readings: {status['telemetry']['state']}"
    )
    yield ok(name, found)
    if status["hold"]:
        remedy = "Make the history writable; until then nothing is shut down."
        yield fail(name, words.text_of(status["hold"], words.moment(status["server_time"])), remedy)
    if not status["policy"]["valid"]:
        remedy = "Correct the file; it is read again by itself. `policy check` lists all that is wrong."
        yield fail(
            name, words.text_of(status["policy"]["error"], words.moment(status["server_time"])), remedy
        )


def _activity(server: Server, status: Json) -> Finding:
    """What keeps a server from looking idle: to Jupyter's own shutdown, to a hub, to whoever stops idle servers."""
    name = f"what keeps {server.url} active"
    now = datetime.now(timezone.utc)
    server_says = _get(server, "api/status")
    last, started = words.moment(server_says["last_activity"]), words.moment(server_says["started"])
    kernels = _get(server, "api/kernels?no_track_activity=1")
    terminals = _terminals(server)
    reasons = [_why(kernel, now) for kernel in status["kernels"] if kernel["verdict"] == "active"]
    reasons += [f"kernel {_title(k)} is kept" for k in status["kernels"] if k["keep_alive_until"]]
    for terminal in status["terminals"]:
        if any((share["sm_ratio"] or 0) > 0 for share in terminal["gpus"]):
            reasons.append(f"terminal {terminal['name']} uses a GPU")
    for terminal in terminals:
        if now - words.moment(terminal["last_activity"]) < RECENT:
            reasons.append(f"terminal {terminal['name']} was used or printed something")
    connected = sum(kernel["connections"] > 0 for kernel in kernels)
    if connected:
        reasons.append(
            f"{connected} kernels have an open page, for which Jupyter's own culler may spare them"
        )
    others = [started, *(words.moment(item["last_activity"]) for item in (*kernels, *terminals))]
    if now - last < RECENT and all(last - other > LATER for other in others):
        asked = f"a request came at {words.clock(last, now)}, from no kernel and no terminal"
        remedy = (
            "Close the pages of this server and disable its other extensions one by one: one that asks at intervals "
            "keeps a server active for ever."
        )
        return warn(name, "; ".join([*reasons, asked]), remedy)
    if not reasons:
        return ok(name, f"nothing; its last activity was at {words.clock(last, now)}")
    return ok(name, "; ".join(reasons), "Nothing to do, unless it should be idle: then end what is listed.")


def _judged(server: Server, status: Json) -> Finding:
    """How much of the time for which kernels held a GPU was judged, since the server started."""
    name = f"judged GPU time of {server.url}"
    now = words.moment(status["server_time"])
    unjudged = [
        f"{_title(kernel)} ({words.text_of(kernel['reason'], now)})"
        for kernel in status["kernels"]
        if kernel["verdict"] == "unknown" and kernel["holds_gpu"] is not False
    ]
    held, unknown = _seconds(server)
    lost = sum(unknown.values())
    found = _share(held, lost)
    if lost:
        worst = max(unknown, key=unknown.__getitem__)
        found += f"; could not be judged: {words.duration(lost)}, most of it for {worst}"
    if unjudged:
        found += f"; cannot be judged now: {', '.join(unjudged)}"
    if not unjudged and lost <= TOO_MUCH * (held or 0.0):
        return ok(name, found)
    return warn(name, found, "See to what is named here; time that cannot be judged never counts as unused.")


def _share(held: float | None, lost: float) -> str:
    """A guard that does not count the whole can still tell what it could not judge."""
    if held is None:
        return "not all of it" if lost else "all of it"
    if not held:
        return "no kernel has held a GPU yet"
    return f"{words.percent(max(0.0, 1 - lost / held))} of {words.duration(held)}"


def _seconds(server: Server) -> tuple[float | None, dict[str, float]]:
    """GPU seconds held since the server started, and those that could not be judged, by reason."""
    held, unknown = None, {}
    for family in text_string_to_metric_families(fetch(server, "metrics").decode()):
        for sample in family.samples:
            if sample.name == "jupyter_gpu_guard_held_gpu_seconds_total":
                held = sample.value
            elif sample.name == "jupyter_gpu_guard_unknown_gpu_seconds_total":
                unknown[sample.labels["reason"]] = sample.value
    return held, unknown


def _terminals(server: Server) -> list[Json]:
    try:
        found: list[Json] = _get(server, "api/terminals?no_track_activity=1")
    except NoAnswer:
        return []  # a server without terminals has no such route
    return found


def _get(server: Server, path: str) -> Any:
    return json.loads(fetch(server, path))


def _why(kernel: Json, now: datetime) -> str:
    return f"kernel {_title(kernel)} is in use ({words.text_of(kernel['reason'], now)})"


def _title(kernel: Json) -> str:
    return ", ".join(kernel["notebooks"]) or str(kernel["kernel_id"])[:8]
