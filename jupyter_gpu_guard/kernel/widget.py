"""`GpuGuardWidget`: GPU use and countdown of this notebook's own kernel, shown in the notebook.

The kernel only says who it is. The page hears the rest from the server by itself: comm traffic would count as activity
and keep the kernel from ever being unused. Needs anywidget in the kernel's environment, imported on first use.
"""

import os
import re
from pathlib import Path

_HERE = Path(__file__).parent
_PAGE = ("countdown.js", "widget_words.js", "widget_feed.js", "widget.js")
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_CONNECTION_FILE = re.compile(r"kernel-([\w-]+)\.json$")


def kernel_id() -> str:
    """The id of this kernel as its server knows it, or "" where it can't be told.

    The server puts it into the environment. A kernel without it has it in the name of its connection file.
    """
    named = os.environ.get("JUPYTER_GPU_GUARD_KERNEL_ID", "")
    return named or id_of_connection_file(_connection_file())


def id_of_connection_file(path: str) -> str:
    """`…/kernel-<id>.json` -> `<id>`; "" for any other name."""
    found = _CONNECTION_FILE.search(path)
    return found.group(1) if found else ""


def _connection_file() -> str:
    try:
        from ipykernel.connect import get_connection_file

        return str(get_connection_file())
    except (ImportError, RuntimeError):  # no ipykernel, or not in one
        return ""


def _page() -> str:
    """The page's half as one module: it travels through the kernel, where its parts could not import each other."""
    parts = [(_HERE / name).read_text(encoding="utf-8") for name in _PAGE]
    return "\n".join(_IMPORT.sub("", part) for part in parts)


def _widget_class() -> type:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError("GpuGuardWidget needs anywidget in the environment of this kernel") from error

    class GpuGuardWidget(anywidget.AnyWidget):
        """Shows this kernel's GPU use and countdown, with a button to keep it. Nothing is sent after it is made."""

        _esm = _page()
        _css = _HERE / "widget.css"
        kernel_id = traitlets.Unicode(read_only=True).tag(sync=True)

        @traitlets.default("kernel_id")
        def _this_kernel(self) -> str:
            return kernel_id()

    return GpuGuardWidget


def __getattr__(name: str) -> type:
    """Make the class when it is first asked for, once."""
    if name != "GpuGuardWidget":
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))  # noqa: UP032
    made = _widget_class()
    globals()[name] = made
    return made
