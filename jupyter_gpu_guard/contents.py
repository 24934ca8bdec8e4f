"""Jupyter's contents manager, asked without blocking the event loop.

Covers what verifying a save needs: the hash of a file, its bytes, folders, and where a path lies on the local disk.
It never writes or renames a document.

Managers of local files block while they read, the asynchronous ones too (they look at, open and list files on the
loop). Both run in one daemon thread, the asynchronous ones on a loop of their own, which they can bear because they
keep nothing that belongs to a loop. Other asynchronous managers (object stores and the like) do keep such things and
are awaited where they belong. A call that takes longer than `DEADLINE` is given up.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jupyter_server.services.contents.filemanager import FileContentsManager
from jupyter_server.services.contents.manager import AsyncContentsManager
from tornado.web import HTTPError

from .worker import Hung, Worker
from .wrap import Wrap

T = TypeVar("T")

#: Seconds that one call may take.
DEADLINE = 20.0
NOT_FOUND = 404

#: Set in the thread, and in what a manager starts from there.
_in_the_thread: ContextVar[bool] = ContextVar("gpu_guard_contents_thread", default=False)


class ContentsError(Exception):
    """The contents manager could not answer; one line says why."""


@dataclass(frozen=True, slots=True)
class FileHash:
    """The hash of a file as it lies on disk. `by_manager`: the contents API gives the same one to browsers."""

    value: str
    by_manager: bool


class Contents:
    """One server's contents manager. Belongs to the event loop that it is first used on."""

    def __init__(self, manager: Any, deadline: float = DEADLINE) -> None:
        self._manager = manager
        self._deadline = deadline
        self._worker = Worker("gpu-guard-contents")
        self._emit: Wrap | None = None

    async def hash_of(self, path: str) -> FileHash | None:
        """The hash of the file at `path`; None when it isn't there.

        Managers that know no hashes are helped out: SHA-256 over the bytes that they give for the file.
        Raises `ContentsError` when neither can be had, and for a folder.
        """
        model = await self._model(path)
        if model is None:
            return None
        if model.get("type") == "directory":
            raise ContentsError(f"{path} is a folder")
        if model.get("hash"):
            return FileHash(str(model["hash"]), by_manager=True)
        data = await self.read(path)
        return None if data is None else FileHash(hashlib.sha256(data).hexdigest(), by_manager=False)

    async def read(self, path: str) -> bytes | None:
        """The bytes of the file at `path`, None when it isn't there. Raises `ContentsError`.

        A notebook is read as a plain file: read as a notebook, the manager of local files would replace a damaged one
        by its last backup, and the signature database would be asked on a thread that it doesn't know.
        """
        model = await self._get(path, content=True, type="file", format="base64")
        if model is None:
            return None
        content = model.get("content")
        if isinstance(content, str) and model.get("format") == "base64":
            return base64.b64decode(content)
        if isinstance(content, str) and model.get("format") == "text":
            return content.encode()
        raise ContentsError(f"{path} cannot be read as a file")

    async def make_folder(self, path: str) -> None:
        """Make the folder at `path`; its parent must be there. Raises `ContentsError`."""
        if not await self._ask("dir_exists", path):
            await self._ask("save", {"type": "directory"}, path)

    def local_path(self, path: str) -> Path | None:
        """Where `path` lies on the local disk; None for managers that keep files elsewhere. Touches the disk: call it
        through `run`. Raises `ContentsError` outside the root."""
        if not isinstance(self._manager, FileContentsManager):
            return None
        try:
            return Path(str(self._manager._get_os_path(path)))  # type: ignore[no-untyped-call]
        except HTTPError as exc:
            raise ContentsError(_one_line(exc)) from exc

    async def run(self, function: Callable[[], T]) -> T:
        """Run blocking file work in the same thread. Its own exceptions pass; a late one raises `ContentsError`."""
        try:
            return await self._worker.call(function, self._deadline)
        except Hung as exc:
            raise ContentsError(f"the disk gives {exc}") from exc

    def close(self) -> None:
        """End the thread and let the manager's events go their own way again."""
        self._worker.stop()
        if self._emit is not None:
            self._emit.take_off()
            self._emit = None

    async def _model(self, path: str) -> dict[str, Any] | None:
        try:
            return await self._get(path, content=False, require_hash=True)
        except _NoHashes:
            return await self._get(path, content=False)

    async def _get(self, path: str, **options: Any) -> dict[str, Any] | None:
        try:
            model: dict[str, Any] = await self._ask("get", path, **options)
        except _NotThere:
            return None
        return model

    async def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        call = functools.partial(getattr(self._manager, name), *args, **options)
        try:
            if self._belongs_on_loop():
                return await asyncio.wait_for(_finished(call), self._deadline)
            self._send_events_to_the_loop()
            return await self._worker.call(functools.partial(_run_to_end, call), self._deadline)
        except HTTPError as exc:
            raise (_NotThere if exc.status_code == NOT_FOUND else ContentsError)(_one_line(exc)) from exc
        except (Hung, asyncio.TimeoutError) as exc:
            raise ContentsError(f"no answer from the contents manager for {self._deadline:.0f} s") from exc
        except Exception as exc:  # third-party code: whatever it raises means "could not be read"
            knows_no_hashes = isinstance(exc, TypeError) and "require_hash" in str(exc)
            raise (_NoHashes if knows_no_hashes else ContentsError)(_one_line(exc)) from exc

    def _belongs_on_loop(self) -> bool:
        manager = self._manager
        if isinstance(manager, FileContentsManager):
            return False
        return isinstance(manager, AsyncContentsManager) or inspect.iscoroutinefunction(manager.get)

    def _send_events_to_the_loop(self) -> None:
        """Managers emit an event for each call, and jupyter_events starts its listeners as tasks of the running loop,
        which the thread lacks. So events of the thread, and no others, are handed over to the loop. At the logger, as a
        manager may pass calls on to others, which share nothing else."""
        logger = getattr(self._manager, "event_logger", None)
        if logger is None or self._emit is not None:
            return
        original, loop = logger.emit, asyncio.get_running_loop()

        @functools.wraps(original)
        def emit(**event: Any) -> Any:
            if not _in_the_thread.get():
                return original(**event)
            # In a context of its own: what listeners do later is not done in the thread.
            loop.call_soon_threadsafe(functools.partial(original, **event), context=Context())
            return None

        self._emit = Wrap(logger, "emit", emit)


class _NotThere(ContentsError):
    """There is nothing at that path."""


class _NoHashes(ContentsError):
    """The manager is older than hashes in the contents API and refuses to be asked for one."""


async def _finished(call: Callable[[], Any]) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


def _run_to_end(call: Callable[[], Any]) -> Any:
    _in_the_thread.set(True)
    result = call()
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _one_line(exc: Exception) -> str:
    text = (exc.log_message or exc.reason or "") if isinstance(exc, HTTPError) else str(exc)
    return " ".join((text or type(exc).__name__).split())[:300]
