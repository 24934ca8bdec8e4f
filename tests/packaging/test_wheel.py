"""What is shipped: the contents of sdist and wheel, and the wheel at work where there was never a Node."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # a first build fetches all of the browser half's packages

ROOT = Path(__file__).parents[2]
VERSION = json.loads((ROOT / "labextension" / "package.json").read_text())["version"]

DATA = f"jupyter_gpu_guard-{VERSION}.data/data/"
ASSETS = DATA + "share/jupyter/labextensions/jupyter-gpu-guard/"


@pytest.fixture(scope="module")
def wheel(distributions):
    with zipfile.ZipFile(distributions.wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist_names(distributions) -> set[str]:
    with tarfile.open(distributions.sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def tracked_sources(*folders: str) -> set[str]:
    """The files below these folders of the package, as they are in the checkout."""
    files = {file for folder in folders for file in (ROOT / "jupyter_gpu_guard" / folder).rglob("*")}
    return {str(f.relative_to(ROOT)) for f in files if f.is_file() and "__pycache__" not in f.parts}


def test_both_bear_the_version_of_the_browser_half(distributions):
    assert distributions.wheel.name == f"jupyter_gpu_guard-{VERSION}-py3-none-any.whl"
    assert distributions.sdist.name == f"jupyter_gpu_guard-{VERSION}.tar.gz"


def test_wheel_has_the_prebuilt_labextension(wheel):
    built = json.loads(wheel.read(ASSETS + "package.json"))
    assert (built["name"], built["version"]) == ("jupyter-gpu-guard", VERSION)
    assert ASSETS + built["jupyterlab"]["_build"]["load"] in wheel.namelist()
    assert ASSETS + "static/style.js" in wheel.namelist()


def test_wheel_says_how_the_labextension_is_uninstalled(wheel):
    assert json.loads(wheel.read(ASSETS + "install.json"))["packageManager"] == "python"


def test_wheel_enables_the_server_extension(wheel):
    config = json.loads(wheel.read(DATA + "etc/jupyter/jupyter_server_config.d/jupyter_gpu_guard.json"))
    assert config == {"ServerApp": {"jpserver_extensions": {"jupyter_gpu_guard": True}}}


def test_wheel_has_every_file_of_the_kernel_half_and_the_schemas(wheel):
    wanted = tracked_sources("kernel", "schemas")
    assert {"jupyter_gpu_guard/kernel/__init__.py"} < wanted
    assert wanted <= set(wheel.namelist())


def test_wheel_has_nothing_but_the_package_its_data_and_metadata(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {
        "jupyter_gpu_guard",
        f"jupyter_gpu_guard-{VERSION}.data",
        f"jupyter_gpu_guard-{VERSION}.dist-info",
    }
    inside = {name for name in wheel.namelist() if name.startswith("jupyter_gpu_guard/")}
    assert "jupyter_gpu_guard/py.typed" in inside
    assert not {name for name in inside if name.startswith("jupyter_gpu_guard/labextension/")}


@pytest.mark.parametrize("folder", ["node_modules", "lib", ".yarn", ".venv", "__pycache__"])
def test_neither_has_what_a_build_leaves_behind(wheel, sdist_names, folder):
    assert not {name for name in sdist_names | set(wheel.namelist()) if folder in name.split("/")}


def test_sdist_has_sources_and_assets_so_that_it_builds_without_node(sdist_names):
    assert {
        "labextension/package.json",
        "labextension/yarn.lock",
        "labextension/src/index.ts",
        "jupyter_gpu_guard/labextension/package.json",
        "hatch_build.py",
        "LICENSE",
    } <= sdist_names


def test_server_extension_is_enabled_and_ok(clean_venv):
    lines = clean_venv.run("jupyter", "server", "extension", "list").splitlines()
    (enabled,) = [line for line in lines if line.split()[:2] == ["jupyter_gpu_guard", "enabled"]]
    (validated,) = [line for line in lines if line.split()[:2] == ["jupyter_gpu_guard", VERSION]]
    assert enabled and validated.split()[2:] == ["OK"]


def test_labextension_is_enabled_and_ok(clean_venv):
    lines = clean_venv.run("jupyter", "labextension", "list").splitlines()
    (line,) = [line for line in lines if "jupyter-gpu-guard" in line]
    assert f"v{VERSION} enabled OK (python, jupyter_gpu_guard)" in " ".join(line.split())


def test_importing_the_package_loads_neither_server_nor_driver(clean_venv):
    loaded = clean_venv.run("python", "-c", "import jupyter_gpu_guard, sys; print(*sys.modules)").split()
    assert "jupyter_gpu_guard" in loaded
    assert {"jupyter_server", "pynvml", "tornado", "traitlets", "anywidget"}.isdisjoint(loaded)


def test_the_command_says_its_version(clean_venv):
    assert VERSION in clean_venv.run("jupyter", "gpu-guard", "--version")
