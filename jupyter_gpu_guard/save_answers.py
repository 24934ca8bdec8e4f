"""What a front end says when it was asked to save: read from JSON, checked for its form, not believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Its own file took the document.
IN_ITS_FILE = ("saved", "clean")
#: Its own file could not take it without harm, so it is in a recovery copy.
IN_A_COPY = ("conflict", "read_only", "deleted")
ANSWERS = (*IN_ITS_FILE, *IN_A_COPY, "failed")
#: The texts of an answered document, with their longest length; all but the first two may be missing.
TEXTS = {
    "path": 4096,
    "outcome": 32,
    "hash": 512,
    "recovery_path": 4096,
    "recovery_hash": 512,
    "recovery_id": 64,
    "error": 1024,
}
MAX_DOCUMENTS = 200


class BadAnswer(ValueError):
    """An answer that breaks the rules: `key` names the place in the body, `error` what is wrong there."""

    def __init__(self, key: str, error: str) -> None:
        super().__init__(f"{key}: {error}")
        self.key = key
        self.error = error


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """What a front end says of one document. `hash`: of the file as it was after the save; `recovery_hash`: of the
    recovery copy; `recovery_id`: of a copy that it handed to the server instead of writing it itself."""

    path: str
    outcome: str
    hash: str | None = None
    recovery_path: str | None = None
    recovery_hash: str | None = None
    recovery_id: str | None = None
    error: str | None = None


def parse_documents(value: object) -> list[DocumentAnswer]:
    """`documents` of `POST kernels/<kernel_id>/saved`. Raises `BadAnswer`."""
    if not isinstance(value, list) or len(value) > MAX_DOCUMENTS:
        raise BadAnswer("documents", f"expected a list of at most {MAX_DOCUMENTS}")
    return [_parse_document(document, f"documents[{i}]") for i, document in enumerate(value)]


def _parse_document(value: object, where: str) -> DocumentAnswer:
    if not isinstance(value, dict):
        raise BadAnswer(where, "expected an object")
    for name in value:
        if name not in TEXTS:
            raise BadAnswer(f"{where}.{name}", "is not known")
    texts = {name: _text(value, name, f"{where}.{name}") for name in TEXTS if value.get(name) is not None}
    for name in ("path", "outcome"):
        if name not in texts:
            raise BadAnswer(f"{where}.{name}", "is missing")
    if texts["outcome"] not in ANSWERS:
        raise BadAnswer(f"{where}.outcome", f"expected one of {', '.join(ANSWERS)}")
    return DocumentAnswer(**texts)


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value, longest = fields[name], TEXTS[name]
    if not isinstance(value, str) or not value or len(value) > longest:
        raise BadAnswer(where, f"expected a text of 1 to {longest} characters")
    return value
