"""Events of jupyter_events: known before anybody subscribes, true to their schemas, and emitted once each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from jupyter_events import EventLogger

from jupyter_gpu_guard.core.lifecycle import Phase
from jupyter_gpu_guard.core.model import Instant, Sample, TelemetryState
from jupyter_gpu_guard.core.reasons import because
from jupyter_gpu_guard.events import KERNEL, SCHEMAS, TELEMETRY, Events
from jupyter_gpu_guard.record import Happening
from tests.server.gpu_server import GpuServer
from tests.server.listeners import Listener, connect
from tests.server.wire_schemas import check

UNKNOWN_ERROR = 999
SPECS = {path.stem: yaml.safe_load(path.read_text()) for path in SCHEMAS.glob("*.yaml")}
ACTIONS = SPECS["kernel"]["properties"]["action"]["enum"]
NOW = Instant(100.0, datetime(2026, 5, 1, 12, tzinfo=UTC))


class Collected:
    """An event logger of its own, and what came out of it."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        self.logger = EventLogger(handlers=[logging.StreamHandler(self._out)])
        self.events = Events(self.logger)

    def rows(self) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self._out.getvalue().splitlines()]
        return [
            {k: v for k, v in row.items() if not k.startswith("__")} | {"id": row["__schema__"]}
            for row in rows
        ]


def happening(action: str) -> Happening:
    return Happening(
        at=NOW.at,
        kernel_id="k-1",
        action=action,
        before="idle",
        after="warned",
        reason=because("idle_timeout", seconds=7200.0),
        kernel_name="python3",
        notebooks=("a.ipynb",),
        policy="default",
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_is_emitted_as_its_schema_says(action: str) -> None:
    collected = Collected()
    collected.events.happened(happening(action))  # jupyter_events raises for what breaks the schema
    (row,) = collected.rows()
    assert row.pop("id") == KERNEL
    assert row == {
        "action": action,
        "kernel_id": "k-1",
        "kernel_name": "python3",
        "notebooks": ["a.ipynb"],
        "state": "warned",
        "policy": "default",
        "reason": because("idle_timeout", seconds=7200.0).to_wire(),
    }


def test_what_is_no_action_breaks_the_schema() -> None:
    with pytest.raises(ValidationError, match="terminated"):
        Collected().events.happened(happening("terminated"))


def test_a_kernel_may_be_in_any_state_afterwards() -> None:
    collected = Collected()
    for phase in Phase:
        collected.events.happened(replace(happening("keep_alive"), after=phase.value))
    assert [row["state"] for row in collected.rows()] == [phase.value for phase in Phase]


def test_lost_readings_are_told_once_each_way() -> None:
    collected = Collected()
    ok, stale, failing, nothing = (Sample(NOW, "nvml", state) for state in TelemetryState)
    failing = replace(failing, reason=because("driver_not_loaded", call="nvmlInit_v2"))
    for sample in (nothing, ok, ok, stale, failing, failing, nothing, failing, ok, ok, nothing, ok):
        collected.events.sampled(sample)
    assert [(row["id"], row["action"], row["state"]) for row in collected.rows()] == [
        (TELEMETRY, "lost", "stale"),
        (TELEMETRY, "back", "ok"),
    ]


def test_a_second_guard_in_one_process_registers_nothing_twice() -> None:
    logger = EventLogger()
    Events(logger)
    Events(logger)
    assert {KERNEL, TELEMETRY} <= set(logger.schemas.schema_ids)


# --- on a real server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(make_server: Callable[..., GpuServer]) -> Iterator[tuple[GpuServer, dict[str, str], Listener]]:
    """A browser subscribes first of all; then kernels come, are kept, fall idle, and the driver fails for a while."""
    server = make_server(
        "GpuGuard.idle_timeout=3",
        policies=[
            {"name": "exam", "match": {"path": "exam.ipynb"}, "mode": "enforce", "trusted": True},
            {"name": "kept", "match": {"path": "kept.ipynb"}, "mode": "enforce", "trusted": True},
        ],
    )
    server.start()
    listener = Subscriber("browser", connect(server, "api/events/subscribe"))
    kernels = server.start_kernels("seen.ipynb", "exam.ipynb", "kept.ipynb")
    keep = f"gpu-guard/api/v1/kernels/{kernels['kept.ipynb']}/keep-alive"
    server.reaches(kernels["kept.ipynb"])
    assert server.request("POST", keep, {"seconds": 600})[0] == 201
    for kernel_id in kernels.values():
        server.load(kernel_id, sm=0)
    server.until(lambda: listener.actions(kernels["exam.ipynb"])[-1:] == ["culled"], 40, "no end")
    server.until(lambda: "would_cull" in listener.actions(kernels["seen.ipynb"]), 40, "no end")
    rule = server.driver.fail("nvmlDeviceGet*", UNKNOWN_ERROR)
    server.until(lambda: server.guard()["telemetry"]["state"] == "unavailable", 20, "the driver works")
    server.driver.remove_rule(rule)
    server.until(lambda: server.guard()["telemetry"]["state"] == "ok", 40, "the driver stays away")
    listener.close()
    yield server, kernels, listener


class Subscriber(Listener):
    """Listens to Jupyter's event bus."""

    def events(self, schema: str) -> list[dict[str, Any]]:
        """The events of a schema, as a browser gets them."""
        return [e for _, e in list(self.messages) if e["schema_id"] == schema]

    def actions(self, kernel_id: str) -> list[str]:
        return [e["action"] for e in self.events(KERNEL) if e["kernel_id"] == kernel_id]


def test_a_browser_that_subscribed_first_hears_everything(
    told: tuple[GpuServer, dict[str, str], Subscriber],
) -> None:
    server, kernels, listener = told
    assert listener.actions(kernels["seen.ipynb"]) == ["would_warn", "would_cull"]
    assert listener.actions(kernels["exam.ipynb"]) == ["warned", "save_requested", "saved", "culled"]
    assert listener.actions(kernels["kept.ipynb"]) == ["keep_alive"]
    for kernel_id in kernels.values():
        assert server.actions(kernel_id) == listener.actions(kernel_id)


def test_what_a_browser_gets_is_what_the_schemas_say(
    told: tuple[GpuServer, dict[str, str], Subscriber],
) -> None:
    listener = told[2]
    for name, schema in (("kernel", KERNEL), ("telemetry", TELEMETRY)):
        for event in listener.events(schema):
            data = {k: v for k, v in event.items() if k != "schema_id"}
            Draft202012Validator(SPECS[name]).validate(data)
            if data["reason"] is not None:
                check("reasons", data["reason"])


def test_the_driver_is_lost_once_and_back_once(told: tuple[GpuServer, dict[str, str], Subscriber]) -> None:
    events = told[2].events(TELEMETRY)
    assert [(e["action"], e["state"]) for e in events] == [("lost", "unavailable"), ("back", "ok")]
    assert events[0]["reason"]["code"] == "driver_error"
