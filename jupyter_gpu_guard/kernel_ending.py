"""End a kernel by Jupyter's own road.

Covers interrupt and shutdown. Not here: the processes that outlive a shutdown (processes.py), and a restart, which is
no end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jupyter_core.utils import ensure_async
from tornado import web

#: How long a shutdown may take before the kernel is gone from Jupyter's list; Jupyter itself kills after 5 s.
GONE_SECONDS = 30.0


class UnknownKernel(LookupError):
    """There is no such kernel. Its text is the kernel id."""


class ShutdownFailed(RuntimeError):
    """Jupyter could not shut the kernel down; it still runs. The text says why."""


class Ending:
    """Ends kernels of `kernel_manager`, with their sessions in `session_manager`. Lives on the event loop."""

    def __init__(self, kernel_manager: Any, session_manager: Any) -> None:
        self._mkm = kernel_manager
        self._sessions = session_manager
        self._tasks: set[asyncio.Task[None]] = set()

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt it as the button does. Raises UnknownKernel."""
        if kernel_id not in self._mkm:
            raise UnknownKernel(kernel_id)
        await ensure_async(self._mkm.interrupt_kernel(kernel_id))

    async def shutdown(self, kernel_id: str) -> None:
        """Shut it down through each of its sessions, so that other extensions tidy up what is theirs.

        Returns when it is gone from Jupyter's list. Goes on when the caller is cancelled: half a shutdown leaves a
        kernel that nobody owns. Raises UnknownKernel, or ShutdownFailed when the kernel still runs.
        """
        if kernel_id not in self._mkm:
            raise UnknownKernel(kernel_id)
        task = asyncio.get_running_loop().create_task(self._end(kernel_id))
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _end(self, kernel_id: str) -> None:
        try:
            for session in await self._sessions_of(kernel_id):
                await self._delete_session(session["id"])
                if getattr(self._mkm, "use_pending_kernels", False):
                    await self._gone(kernel_id)  # the call came back before the kernel had ended
            if kernel_id in self._mkm:
                await ensure_async(self._mkm.shutdown_kernel(kernel_id))
            await self._gone(kernel_id)
        except Exception as error:
            if kernel_id in self._mkm:
                raise ShutdownFailed(str(error) or type(error).__name__) from error

    async def _sessions_of(self, kernel_id: str) -> list[Mapping[str, Any]]:
        sessions = await ensure_async(self._sessions.list_sessions())
        return [s for s in sessions if (s.get("kernel") or {}).get("id") == kernel_id]

    async def _delete_session(self, session_id: str) -> None:
        """The first one ends the kernel; for the others Jupyter answers 404 and drops them."""
        try:
            await ensure_async(self._sessions.delete_session(session_id))
        except web.HTTPError as error:
            if error.status_code != 404:
                raise

    async def _gone(self, kernel_id: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GONE_SECONDS
        while kernel_id in self._mkm:
            if loop.time() > deadline:
                raise ShutdownFailed(f"still there after {GONE_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
