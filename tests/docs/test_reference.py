"""Whatever others hold on to is in the reference: a test fails with the name that is missing."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace

import yaml
from prometheus_client import CollectorRegistry

from jupyter_gpu_guard import cli
from jupyter_gpu_guard import stream as stream_module
from jupyter_gpu_guard.config import GpuGuard
from jupyter_gpu_guard.core.model import Instant
from jupyter_gpu_guard.core.policy_fields import BY_NAME
from jupyter_gpu_guard.core.reasons import TEXTS
from jupyter_gpu_guard.events import KERNEL, SCHEMAS, TELEMETRY
from jupyter_gpu_guard.guard import State
from jupyter_gpu_guard.metrics import PREFIX, Metrics
from jupyter_gpu_guard.route_handler import GuardHandler
from jupyter_gpu_guard.routes import handlers
from tests.core.world import at, sample
from tests.docs.repository import reference
from tests.server.wire_schemas import load


def missing(names: Iterator[str] | list[str] | set[str], text: str) -> list[str]:
    """Those that don't stand in the text as code."""
    return [name for name in sorted(names) if f"`{name}`" not in text]


def test_every_option() -> None:
    traits = set(GpuGuard.class_own_traits(config=True))
    assert len(traits) > 20
    assert missing(traits | set(BY_NAME), reference("configuration")) == []


def test_every_route() -> None:
    names = set()
    for pattern, handler, _ in handlers(None):  # type: ignore[arg-type]
        path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"<\1>", pattern).removeprefix("gpu-guard/api/v1/")
        for method in ("get", "post", "delete"):
            if getattr(handler, method) is not getattr(GuardHandler, method):
                names.add(f"{method.upper()} {path}")
    assert len(names) >= 14
    assert missing(names, reference("rest")) == []
    documented = set(re.findall(r"\| `((?:GET|POST|DELETE) [^`]+)` \|", reference("rest")))
    assert documented == names


def test_every_answer_has_its_schema_named() -> None:
    text = reference("rest", "stream", "reasons")
    for name in re.findall(r"(\w+\.json)", text):
        assert load(name.removesuffix(".json"))


def test_every_event_and_action() -> None:
    text = reference("events")
    assert missing([KERNEL, TELEMETRY], text) == []
    for path in SCHEMAS.glob("*.yaml"):
        schema = yaml.safe_load(path.read_text())
        assert missing(schema["properties"]["action"]["enum"], text) == []
        assert missing(set(schema["properties"]), text) == []


def test_every_metric_with_its_type_and_labels() -> None:
    guard = SimpleNamespace(state=State(sample()), policy_file=None, clock=_now)
    metrics = Metrics(guard, CollectorRegistry())  # type: ignore[arg-type]
    rows = set()
    for family in metrics.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.add(re.sub(" +", " ", f"| `{name}` | {family.type} | {labels} |"))
    text = reference("metrics")
    assert [row for row in sorted(rows) if row not in text] == []
    documented = set(re.findall(rf"\| `({PREFIX}\w+)` \|", text))
    assert documented == {row.split("`")[1] for row in rows}


def _now() -> Instant:
    return at(0)


def test_every_reason() -> None:
    assert missing(set(TEXTS), reference("reasons")) == []


def message_types() -> set[str]:
    """The types that stand in the source: literally in a message, or as the actions that are passed on."""
    tree = ast.parse(inspect.getsource(stream_module))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found |= {
                value.value
                for key, value in pairs
                if isinstance(key, ast.Constant) and key.value == "type" and isinstance(value, ast.Constant)
            }
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "happening.action":
            found |= set(ast.literal_eval(node.comparators[0]))
    return found


def test_every_message_of_the_stream() -> None:
    types = {one["properties"]["type"]["const"] for one in load("stream")["oneOf"]}
    assert types == message_types()
    assert missing(types, reference("stream")) == []


def commands(parser: argparse.ArgumentParser, words: str) -> Iterator[str]:
    """Every command of a command line, with the words before it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                deeper = list(commands(inner, f"{words} {name}"))
                yield from deeper or [f"{words} {name}"]


def test_every_command_and_its_options() -> None:
    found = list(commands(cli._parser(), "jupyter gpu-guard"))
    assert "jupyter gpu-guard policy check" in found
    text = reference("command-line")
    assert [command for command in found if f"{command} " not in text] == []
