"""Check JSON against the published schemas, more strictly than they are: a key that they don't name is a mistake too.

Readers of the schemas have to bear new keys; the server may not send one that is not written down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

import jupyter_gpu_guard

FOLDER = Path(jupyter_gpu_guard.__file__).parent / "schemas"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def _closed(schema: Any) -> Any:
    """The schema with every described object closed to other keys."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def load(name: str) -> dict[str, Any]:
    """A published schema as it is."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


_REGISTRY = Registry().with_resources(
    (f"{name}.json", Resource.from_contents(_closed(load(name)))) for name in NAMES
)


def check(name: str, value: Any) -> None:
    """Fail unless `value` is what the schema `name` says."""
    schema = {"$schema": Draft202012Validator.META_SCHEMA["$id"], "$ref": f"{name}.json"}
    validator = Draft202012Validator(schema, registry=_REGISTRY, format_checker=FormatChecker())
    error = best_match(validator.iter_errors(value))
    assert error is None, f"{name} at {error.json_path}: {error.message}"
