"""The kernel half goes into other people's kernel environments: Python 3.8, the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jupyter_gpu_guard"
FILES = sorted(
    [PACKAGE / "__init__.py", PACKAGE / "_version.py", *(PACKAGE / "kernel").rglob("*.py")],
    key=lambda file: file.name,
)
MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in FILES
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_it_parses_as_python_3_8(file):
    assert ast.parse(file.read_text(), str(file), feature_version=(3, 8)).body


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_without_any_installed_package(module):
    # -I -S: no site-packages, no PYTHONPATH, not the folder we stand in.
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {module}; print({module}.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith(str(PACKAGE))
