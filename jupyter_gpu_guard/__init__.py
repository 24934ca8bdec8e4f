"""jupyter_gpu_guard: a GPU that nobody uses comes back, and nobody's work is lost.

What Jupyter looks for, and the names that notebooks use. Everything is resolved on first use: importing the package
loads neither the server nor the driver, so the kernel half works where only the standard library is.
"""

import importlib
import sys

from ._version import __version__

#: name -> where it lives
_LAZY = {
    "GpuGuardWidget": "jupyter_gpu_guard.kernel.widget",
    "SimulatedGpu": "jupyter_gpu_guard.kernel.simulated_gpu",
    "load_ipython_extension": "jupyter_gpu_guard.kernel.magic",
}

__all__ = [
    "GpuGuardWidget",
    "SimulatedGpu",
    "__version__",
    "_jupyter_labextension_paths",
    "_jupyter_server_extension_points",
    "load_ipython_extension",
]


def __getattr__(name):  # type: ignore[no-untyped-def]  # annotations here would need newer Pythons than kernels have
    """Resolve the kernel's names when they are asked for."""
    try:
        module = _LAZY[name]
    except KeyError:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name)) from None  # noqa: UP032
    return getattr(importlib.import_module(module), name)


def _jupyter_server_extension_points():  # type: ignore[no-untyped-def]
    """The server extension. Raises RuntimeError where Python is too old for it: the kernel half alone bears 3.8."""
    if sys.version_info < (3, 10):
        found = "{}.{}".format(*sys.version_info[:2])
        raise RuntimeError("jupyter_gpu_guard needs Python 3.10 or newer for the server, this is " + found)
    app = importlib.import_module("jupyter_gpu_guard.app")
    return [{"module": "jupyter_gpu_guard", "app": app.GpuGuardApp}]


def _jupyter_labextension_paths():  # type: ignore[no-untyped-def]
    """The prebuilt JupyterLab extension."""
    return [{"src": "labextension", "dest": "jupyter-gpu-guard"}]
