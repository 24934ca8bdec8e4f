"""The list of reasons holds what is said somewhere, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_guard.core.reasons import TEXTS

PACKAGE = Path(__file__).resolve().parents[2] / "jupyter_gpu_guard"
CODE = "\n".join(
    path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "reasons.py" and path.is_file()
)


@pytest.mark.parametrize("code", sorted(TEXTS))
def test_every_reason_is_given_somewhere(code: str) -> None:
    assert f'"{code}"' in CODE
