"""requirements/: the locked versions meet what pyproject.toml asks for, and name no place they come from."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked(name: str) -> dict[str, str]:
    """Name to version of one lock file, as far as this machine's markers apply."""
    requirements = [Requirement(line) for line in (ROOT / "requirements" / name).read_text().splitlines()]
    return {
        canonicalize_name(r.name): str(r.specifier).removeprefix("==")
        for r in requirements
        if r.marker is None or r.marker.evaluate()
    }


def asked() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["dependencies"],
        *extras["test"],
        *extras["lint"],
    ]
    return [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()]


@pytest.mark.parametrize("requirement", asked(), ids=str)
def test_lock_meets_the_project(requirement):
    version = locked("test.txt")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True)


def test_lock_of_node_meets_the_build_hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hatch_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hatch_build)
    wanted = Requirement(hatch_build.NODE_WHEEL)
    assert wanted.specifier.contains(locked("node.txt")[wanted.name])


@pytest.mark.parametrize("name", ["test.txt", "node.txt"])
def test_lock_names_packages_and_versions_only(name):
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text
    assert all("==" in line for line in text.splitlines())
