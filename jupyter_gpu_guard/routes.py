"""REST under `<base_url>gpu-guard/api/v1/`: which handler is where.

Every handler is authenticated and authorised like Jupyter's own, and none counts as activity. A mistake of the caller
is a 4xx with `{message, reason}` that names the key; nothing is changed by a request that is refused.
"""

from __future__ import annotations

from .commands import Commands
from .route_handler import GuardHandler, Json
from .route_history import HistoryHandler, RecoveryHandler, TombstoneHandler, TombstonesHandler
from .route_kernels import CullHandler, KeepAliveHandler, KernelHandler, PoliciesHandler, StatusHandler
from .route_pages import ClientHandler, CopyHandler, SavedHandler


def handlers(commands: Commands) -> list[tuple[str, type[GuardHandler], Json]]:
    """Every route of the REST interface, relative to the server's base URL."""
    kernel = r"(?P<kernel_id>[^/]+)"
    base = r"gpu-guard/api/v1"
    routes: list[tuple[str, type[GuardHandler]]] = [
        (rf"{base}/status", StatusHandler),
        (rf"{base}/kernels/{kernel}", KernelHandler),
        (rf"{base}/kernels/{kernel}/keep-alive", KeepAliveHandler),
        (rf"{base}/kernels/{kernel}/cull", CullHandler),
        (rf"{base}/kernels/{kernel}/saved", SavedHandler),
        (rf"{base}/kernels/{kernel}/copies", CopyHandler),
        (rf"{base}/clients/(?P<client_id>[^/]+)", ClientHandler),
        (rf"{base}/policies", PoliciesHandler),
        (rf"{base}/history", HistoryHandler),
        (rf"{base}/tombstones", TombstonesHandler),
        (rf"{base}/tombstones/{kernel}", TombstoneHandler),
        (rf"{base}/recovery/(?P<recovery_id>[\w-]+)", RecoveryHandler),
    ]
    return [(pattern, handler, {"commands": commands}) for pattern, handler in routes]
