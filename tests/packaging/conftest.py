"""The distributions, built once, and a virtual environment without Node that the wheel is installed into."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "test.txt"


def uv(*arguments: str | Path, path: str) -> None:
    """Run uv with PATH set to `path`; what it says is shown if it fails."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    environment = {**os.environ, "PATH": path}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def without_node(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that leads nowhere: no node, no jlpm."""
    path = str(tmp_path_factory.mktemp("empty-path"))
    assert shutil.which("node", path=path) is None
    return path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory, without_node: str) -> Distributions:
    """The sdist, built from the checkout, and the wheel, built from that sdist where there is no Node."""
    out = tmp_path_factory.mktemp("dist")
    pinned = ("--build-constraint", LOCK, "--out-dir", out)
    uv("build", "--sdist", *pinned, ROOT, path=os.environ["PATH"])
    (sdist,) = out.glob("*.tar.gz")
    uv("build", "--wheel", *pinned, sdist, path=without_node)
    (wheel,) = out.glob("*.whl")
    return Distributions(sdist, wheel)


class CleanVenv:
    """A virtual environment with nothing but the wheel and JupyterLab, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.home = folder / "home"
        self.home.mkdir()

    def run(self, *command: str) -> str:
        """Both outputs of a program of this environment, without colours; it must end with 0."""
        # Nothing of ours is handed on: JUPYTER_* or PYTHON* would lead out of the environment.
        environment = {"PATH": str(self.bin), "HOME": str(self.home), "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.home,
            check=False,
        )
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        assert done.returncode == 0, said
        return said


@pytest.fixture(scope="session")
def clean_venv(
    tmp_path_factory: pytest.TempPathFactory, distributions: Distributions, without_node: str
) -> CleanVenv:
    folder = tmp_path_factory.mktemp("clean")
    uv("venv", "-q", "--python", sys.executable, folder / "venv", path=without_node)
    python = folder / "venv" / "bin" / "python"
    uv(
        "pip", "install", "--python", python, "--constraint", LOCK, distributions.wheel, "jupyterlab",
        path=without_node,
    )  # fmt: skip
    return CleanVenv(folder)
