"""Jupyter's side: whether both extensions are found and enabled, and which kernels have the kernel half."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_config_path, jupyter_path
from jupyter_server.extension.config import ExtensionConfigManager
from jupyter_server.extension.manager import ExtensionPackage

from .finding import Finding, fail, ok, warn

SERVER_EXTENSION = "jupyter_gpu_guard"
LAB_EXTENSION = "jupyter-gpu-guard"
#: Seconds for a kernel's Python to start; a cold one on a network disk takes long.
START_SECONDS = 30.0

#: Names that Jupyter replaces by its own interpreter.
_OWN_PYTHON = {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}


def server_extension() -> Finding:
    """Whether a server started now would load the guard."""
    name = "server extension"
    manager: Any = ExtensionConfigManager(read_config_path=jupyter_config_path())
    enabled = manager.get_jpserver_extensions().get(SERVER_EXTENSION)
    if not enabled:
        said = "is disabled" if enabled is False else "is enabled nowhere"
        remedy = f"Run `jupyter server extension enable {SERVER_EXTENSION}`, then restart the server."
        return fail(name, f"{SERVER_EXTENSION} {said} in Jupyter's configuration", remedy)
    package: Any = ExtensionPackage
    try:
        points = package(name=SERVER_EXTENSION, enabled=True).extension_points.values()
        broken = [point.name for point in points if not point.validate()]
    except Exception as error:  # whatever an import may raise
        return fail(name, f"{SERVER_EXTENSION} cannot be loaded: {error}", "Install jupyter-gpu-guard again.")
    if broken:
        return fail(name, f"{SERVER_EXTENSION} cannot be loaded", "Install jupyter-gpu-guard again.")
    return ok(name, f"{SERVER_EXTENSION} is enabled")


def lab_extension() -> Finding:
    """Whether JupyterLab and Notebook would load the browser half."""
    name = "browser extension"
    try:
        from jupyterlab_server.config import get_federated_extensions, get_page_config
    except ImportError:
        return warn(
            name, "neither JupyterLab nor Notebook 7 is installed here", "Install jupyterlab or notebook."
        )
    folders = jupyter_path("labextensions")
    try:
        found: Mapping[str, Any] = get_federated_extensions(folders)
        disabled: list[str] = get_page_config(folders)["disabledExtensions"]
    except (OSError, ValueError, KeyError) as error:
        return warn(name, f"the extensions cannot be listed: {error}", "Run `jupyter labextension list`.")
    if LAB_EXTENSION not in found:
        remedy = "Install jupyter-gpu-guard into the environment of JupyterLab, or set JUPYTER_PATH to where it is."
        return fail(name, f"{LAB_EXTENSION} is in none of {', '.join(folders)}", remedy)
    # A single plugin of ours can be disabled too, as name:plugin.
    if any(entry.split(":")[0] == LAB_EXTENSION for entry in disabled):
        return fail(
            name, f"{LAB_EXTENSION} is disabled", f"Run `jupyter labextension enable {LAB_EXTENSION}`."
        )
    return ok(name, f"{LAB_EXTENSION} {found[LAB_EXTENSION]['version']} is enabled")


def kernel_halves() -> Iterator[Finding]:
    """For each Python kernel, whether %gpu_guard and the widget can be used in it. The guard works without."""
    specs = {
        name: entry["spec"]
        for name, entry in KernelSpecManager().get_all_specs().items()
        if str(entry["spec"].get("language", "")).lower() == "python"
    }
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(_kernel_half, specs, specs.values())


def _kernel_half(kernel: str, spec: Mapping[str, Any]) -> Finding:
    name = f"kernel {kernel}"
    python = interpreter(spec.get("argv", []))
    if python is None:
        remedy = "Look by hand whether `import jupyter_gpu_guard` works in it."
        return warn(name, "it starts by a script of its own, so its environment cannot be looked at", remedy)
    command = [*python, "-c", "import jupyter_gpu_guard.kernel.magic"]
    # Elsewhere than here: the current folder is on the path of `python -c`, but not of the kernel.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **spec.get("env", {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found = f"its Python did not start within {START_SECONDS:.0f} s"
            return warn(name, found, "Run this again; if it stays so, look at the disk of its environment.")
        except OSError as error:
            found = f"{python[0]} cannot be run: {error.strerror}"
            return warn(name, found, f"Repair its environment, or run `jupyter kernelspec remove {kernel}`.")
    if done.returncode:
        remedy = f"Run `{' '.join(python)} -m pip install --no-deps jupyter-gpu-guard`."
        return warn(name, "%gpu_guard and SimulatedGpu are missing in it; the guard itself works", remedy)
    return ok(name, "has the kernel half")


def interpreter(argv: list[str]) -> list[str] | None:
    """The part of a kernel's command that starts Python, such as `conda run -n x python`; None if it can't be told."""
    if "-m" not in argv[1:]:
        return None
    python = argv[: argv.index("-m", 1)]
    return [sys.executable, *python[1:]] if python[0] in _OWN_PYTHON else python
