"""The published schemas are current: what is derived is derived anew, and every choice is that of the code."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from enum import Enum
from typing import Any

import pytest
import yaml

from jupyter_gpu_guard.core import lifecycle
from jupyter_gpu_guard.core.deadline import Cause
from jupyter_gpu_guard.core.life import Phase
from jupyter_gpu_guard.core.model import Link, TelemetryState, VerdictKind
from jupyter_gpu_guard.core.policy import Mode
from jupyter_gpu_guard.core.reasons import because
from jupyter_gpu_guard.events import SCHEMAS
from tests.docs.repository import ROOT
from tests.server.wire_schemas import check, load

KERNEL = load("kernel")
EVENT = yaml.safe_load((SCHEMAS / "kernel.yaml").read_text())["properties"]


def test_what_is_derived_from_the_reasons_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "schemas"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("schema", "choices"),
    [
        (KERNEL["properties"]["state"], Phase),
        (KERNEL["properties"]["verdict"], VerdictKind),
        (KERNEL["properties"]["mode"], Mode),
        (KERNEL["$defs"]["share"]["properties"]["attribution"], Link),
        (KERNEL["$defs"]["warning"]["properties"]["cause"], Cause),
        (load("status")["$defs"]["telemetry"]["properties"]["state"], TelemetryState),
        (load("status")["properties"]["mode"], Mode),
        (load("tombstone")["properties"]["cause"], Cause),
        (EVENT["state"], Phase),
    ],
)
def test_each_choice_is_that_of_the_code(schema: dict[str, Any], choices: type[Enum]) -> None:
    assert schema["enum"] == [choice.value for choice in choices]


def test_history_and_events_tell_the_same_actions() -> None:
    recorded = {
        node.args[0].value
        for node in ast.walk(ast.parse(inspect.getsource(lifecycle)))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Record"
        and isinstance(node.args[0], ast.Constant)
    }
    assert load("transition")["properties"]["action"]["enum"] == EVENT["action"]["enum"]
    assert recorded <= set(EVENT["action"]["enum"])


def test_a_reason_needs_the_params_of_its_code() -> None:
    whole = because("old_nonce").to_wire()
    check("reasons", whole)
    check("reasons", because("keep_alive_too_long", limit_seconds=60.0).to_wire())
    for wrong in (
        {**whole, "code": "made_up"},
        {**whole, "params": {"seconds": 1}},
        because("keep_alive_too_long").to_wire(),
        because("keep_alive_too_long", limit_seconds="60").to_wire(),
    ):
        with pytest.raises(AssertionError):
            check("reasons", wrong)
