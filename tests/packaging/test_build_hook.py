"""hatch_build.py: which Node will do, when assets are stale, and what the build asks for."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hatch_build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def node_says(tmp_path, monkeypatch):
    """Puts a `node` that prints the given version on an otherwise empty PATH; none for None."""

    def put(version: str | None) -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "bin").mkdir()
        if version is not None:
            node = tmp_path / "bin" / "node"
            node.write_text(f"#!/bin/sh\necho {version}\n")
            node.chmod(0o755)

    return put


@pytest.fixture
def project(tmp_path):
    """A project whose sources date from second 100 and whose assets date from second 200."""
    root = tmp_path / "project"
    for name, when in {
        "labextension/package.json": 100,
        "labextension/src/index.ts": 100,
        "labextension/node_modules/some/index.js": 100,
        "jupyter_gpu_guard/kernel/countdown.js": 100,
        "jupyter_gpu_guard/kernel/widget.js": 100,
        "jupyter_gpu_guard/labextension/package.json": 150,
        "jupyter_gpu_guard/labextension/static/style.js": 200,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        os.utime(root / name, (when, when))
    return root


@pytest.fixture
def hook(hatch_build, project):
    return hatch_build.AssetsHook(str(project), {}, None, None, str(project / "dist"), "wheel")


@pytest.mark.parametrize(
    ("version", "will_do"),
    [
        (None, False),
        ("nonsense", False),
        ("v18.20.4", False),
        ("v20.18.3", False),
        ("v20.19.0", True),
        ("v21.7.3", False),
        ("v22.11.0", False),
        ("v22.12.0", True),
        ("v23.1.0", True),
        ("v24.19.0", True),
    ],
)
def test_which_node_will_do(hatch_build, node_says, version, will_do):
    node_says(version)
    assert hatch_build.node_can_build() is will_do


@pytest.mark.parametrize(
    ("changed", "when", "stale"),
    [
        ("labextension/src/index.ts", 200, False),
        ("labextension/src/index.ts", 201, True),
        ("labextension/package.json", 201, True),
        ("labextension/node_modules/some/index.js", 201, False),
        ("jupyter_gpu_guard/kernel/countdown.js", 201, True),
        ("jupyter_gpu_guard/kernel/widget.js", 201, False),
    ],
)
def test_assets_are_stale_when_a_source_is_newer(hatch_build, project, changed, when, stale):
    os.utime(project / changed, (when, when))
    assert hatch_build.assets_are_stale(project) is stale


def test_stale_assets_are_removed_before_the_build(hook, project):
    os.utime(project / "labextension/src/index.ts", (201, 201))
    hook.initialize("standard", {})
    assert not (project / "jupyter_gpu_guard/labextension").exists()


def test_fresh_assets_stay(hook, project):
    hook.initialize("standard", {})
    assert (project / "jupyter_gpu_guard/labextension/static/style.js").exists()


def test_node_is_asked_for_only_where_assets_must_be_built_without_one(hatch_build, hook, project, node_says):
    node_says(None)
    assert hook.dependencies() == []
    os.utime(project / "labextension/src/index.ts", (201, 201))
    assert hook.dependencies() == [hatch_build.NODE_WHEEL]


def test_node_on_path_is_used(hook, project, node_says):
    node_says("v22.12.0")
    os.utime(project / "labextension/src/index.ts", (201, 201))
    assert hook.dependencies() == []


def test_the_sources_are_there(hatch_build):
    assert [name for name in hatch_build.SOURCES if not (ROOT / name).exists()] == []


def test_what_the_browser_half_takes_from_the_kernel_half_counts_as_a_source(hatch_build):
    taken = re.compile(r"from '\.\./\.\./(jupyter_gpu_guard/[^']*)'")
    sources = (ROOT / "labextension" / "src").rglob("*.ts")
    assert {name for path in sources for name in taken.findall(path.read_text())} == {
        name for name in hatch_build.SOURCES if name.startswith("jupyter_gpu_guard/")
    }
