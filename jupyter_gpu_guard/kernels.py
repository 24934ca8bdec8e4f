"""Which kernels there are and what they are doing; interrupt one, shut one down.

Covers Jupyter's kernel and session managers: kernels are followed from the moment they start, whoever starts them, and
those that run already are adopted. What the messages of one kernel say is kernel_messages.py's, its websockets are
kernel_input.py's. Nothing here counts as activity.

Managers are wrapped on the instance, so that any subclass is served as it is. Other extensions may wrap the same
methods: on `stop` ours is taken off where it is the outermost, and otherwise only passes calls on.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import datetime
from logging import Logger
from typing import Any

from jupyter_core.utils import ensure_async

from .core.model import Instant, Kernel
from .kernel_clock import shield, stock_deadline
from .kernel_ending import Ending, ShutdownFailed, UnknownKernel
from .kernel_input import watching
from .kernel_messages import KernelFollower
from .kernel_process import behind_gateway
from .wrap import Wrap

#: In the environment of each kernel: Jupyter gives kernels no id, and a detached child can be told by nothing else.
MARKER = "JUPYTER_GPU_GUARD_KERNEL_ID"
__all__ = ["MARKER", "KernelWatch", "ShutdownFailed", "UnknownKernel"]

CONNECTION_CLASS = "kernel_websocket_connection_class"


class KernelWatch:
    """Follows all kernels of one server. Lives on the event loop.

    `changed` is called with the kernel id when a kernel becomes busy, idle, waiting, watched, restarted or dead.
    """

    def __init__(
        self,
        kernel_manager: Any,
        session_manager: Any,
        clock: Callable[[], Instant],
        log: Logger,
        env: Mapping[str, str],
    ) -> None:
        self.changed: Callable[[str], None] | None = None
        self._mkm = kernel_manager
        self._sessions = session_manager
        self._clock = clock
        self._log = log
        self._env = dict(env)
        self._followers: dict[str, KernelFollower] = {}
        self._just_died: dict[str, KernelFollower] = {}
        self._wraps: list[Wrap] = []
        self._settings: tuple[MutableMapping[str, Any], Any, Any] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = Ending(kernel_manager, session_manager)
        self._paths: dict[str, tuple[str, ...]] = {}
        self._running = False

    # --- starting and stopping ---

    async def start(self) -> None:
        """Wrap the kernel manager and adopt the kernels that run already."""
        self._running = True
        self._wrap("start_kernel", self._start_kernel)
        if hasattr(self._mkm, "update_env"):  # jupyter_client >= 8.5
            self._wrap("update_env", self._update_env)
        self.refresh()

    def install(self, settings: MutableMapping[str, Any]) -> None:
        """Watch websockets too: `settings` are those of Jupyter's web application. Only connections that open from
        now on are seen. A second call does nothing."""
        present = settings.get(CONNECTION_CLASS)
        if present is None or self._settings is not None:
            return
        ours = watching(present, self, self._log)
        settings[CONNECTION_CLASS] = ours
        self._settings = (settings, present, ours)

    async def stop(self) -> None:
        """Take all wrappers off and close the sockets. Kernels run on."""
        self._running = False
        for wrap in self._wraps:
            wrap.take_off()
        self._wraps.clear()
        if self._settings is not None:
            settings, original, ours = self._settings
            if settings.get(CONNECTION_CLASS) is ours:
                settings[CONNECTION_CLASS] = original
            self._settings = None
        for task in list(self._tasks):
            task.cancel()
        for follower in [*self._followers.values(), *self._just_died.values()]:
            follower.leave()
        self._followers.clear()
        self._just_died.clear()

    def _wrap(self, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(self._mkm, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._running:
                return original(*args, **kwargs)
            return ours(original, *args, **kwargs)

        self._wraps.append(Wrap(self._mkm, name, wrapper))

    async def _start_kernel(self, original: Callable[..., Any], **kwargs: Any) -> Any:
        if hasattr(self._mkm, "kernels_url"):  # behind a gateway an id means "use that kernel"
            kernel_id = await ensure_async(original(**kwargs))
            self._follow(kernel_id, adopted=False)
            return kernel_id
        kernel_id = kwargs.pop("kernel_id", None)
        if kernel_id is None:
            kernel_id = self._mkm.new_kernel_id(**kwargs)
        if kernel_id not in self._mkm:
            env = kwargs.get("env")
            kwargs["env"] = self._with_marker(os.environ if env is None else env, kernel_id)
        kernel_id = await ensure_async(original(kernel_id=kernel_id, **kwargs))
        self._follow(kernel_id, adopted=False)
        return kernel_id

    def _update_env(self, original: Callable[..., Any], *, kernel_id: str, env: Mapping[str, str]) -> Any:
        """A renamed notebook replaces the environment for the next restart by one made from the server's own, which
        may hold the marker of another kernel, where a server runs inside a kernel."""
        return original(kernel_id=kernel_id, env=self._with_marker(env, kernel_id))

    def _with_marker(self, env: Mapping[str, str], kernel_id: str) -> dict[str, str]:
        return {**env, **self._env, MARKER: kernel_id}

    # --- following ---

    def refresh(self) -> None:
        """Adopt kernels that came without `start_kernel`, let go of those that are gone, look at the processes."""
        present = dict.fromkeys(self._mkm.list_kernel_ids())
        for kernel_id in [k for k in self._followers if k not in present]:
            self._let_go(kernel_id)
        for kernel_id in present:
            self._follow(kernel_id, adopted=True)
        for follower in self._followers.values():
            follower.check()

    def _follow(self, kernel_id: str, adopted: bool) -> None:
        if kernel_id not in self._mkm:
            return
        km = self._mkm.get_kernel(kernel_id)
        present = self._followers.get(kernel_id)
        if present is not None and present.km is km:
            return
        if present is not None:  # ended, and started anew under an id that the caller chose
            self._let_go(kernel_id)
        follower = self._followers[kernel_id] = KernelFollower(kernel_id, km, self, self._clock, self._log)
        if behind_gateway(km) or km.ready.done():
            follower.follow(adopted)
        else:
            self._spawn(self._follow_when_ready(follower))

    async def _follow_when_ready(self, follower: KernelFollower) -> None:
        """With pending kernels, ids are given out before there are ports."""
        ready = follower.km.ready
        try:
            await (ready if isinstance(ready, asyncio.Future) else asyncio.wrap_future(ready))
        except Exception as error:
            self._log.debug("gpu_guard: kernel %s did not start: %s", follower.kernel_id, error)
            return
        if self._followers.get(follower.kernel_id) is follower:
            follower.follow(adopted=False)

    def _let_go(self, kernel_id: str) -> None:
        follower = self._followers.pop(kernel_id)
        follower.leave()
        if follower.dead:
            # Jupyter forgets a kernel at once when its restarts have failed: say once what became of it.
            self._just_died[kernel_id] = follower

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what the followers and websockets tell ---

    def changed_kernel(self, kernel_id: str) -> None:
        """Pass a change on to the guard."""
        if self.changed is None or not self._running:
            return
        try:
            self.changed(kernel_id)
        except Exception:
            self._log.exception("gpu_guard: a change of kernel %s was not handled", kernel_id)

    def input_requested(self, kernel_id: str, parent_id: str) -> None:
        """An execution asked a question through a websocket."""
        if kernel_id in self._followers:
            self._followers[kernel_id].asked(parent_id)

    def input_replied(self, kernel_id: str) -> None:
        """A websocket brought the answer."""
        if kernel_id in self._followers:
            self._followers[kernel_id].answered()

    def quiet_request(self, kernel_id: str, msg_id: str) -> None:
        """A websocket brought a request that wants no history."""
        if kernel_id in self._followers:
            self._followers[kernel_id].quiet(msg_id)

    # --- for the guard ---

    async def kernels(self) -> tuple[Kernel, ...]:
        """All kernels as they are now. One whose restarts have failed is given once more, as `dead`."""
        self.refresh()
        notebooks = await self._notebooks()
        died, self._just_died = self._just_died, {}
        found = []
        for kernel_id, follower in [*self._followers.items(), *died.items()]:
            found.append(self._kernel(follower, await self._model(kernel_id), notebooks.get(kernel_id, ())))
        return tuple(found)

    def _kernel(self, follower: KernelFollower, model: Mapping[str, Any], notebooks: Iterable[str]) -> Kernel:
        now, held = self._clock(), follower.executions
        running, process = held.running(now), follower.live_process()
        return Kernel(
            kernel_id=follower.kernel_id,
            name=follower.km.kernel_name or model.get("name", ""),
            pid=None if process is None else process.pid,
            start_ticks=None if process is None else process.start_ticks,
            started=follower.started,
            execution_state=follower.execution_state(model.get("execution_state") or "starting"),
            executing=len(running),
            executing_since=min((request.since for request in running), default=None),
            waiting_for_input=held.waiting_for_input(now),
            last_execution_start=held.last_start,
            last_execution_end=held.last_end,
            last_execution_seconds=held.last_seconds,
            last_output=held.last_output,
            connections=int(model.get("connections") or 0),
            notebooks=tuple(notebooks),
            watched=follower.watched,
            remote=follower.remote,
            incarnation=follower.incarnation,
            language=_language(follower.km),
        )

    async def _model(self, kernel_id: str) -> Mapping[str, Any]:
        try:
            model = await ensure_async(self._mkm.kernel_model(kernel_id))
        except Exception:  # gone since, or too young to have all that a model shows
            return {}
        return model or {}

    async def _notebooks(self) -> dict[str, tuple[str, ...]]:
        """The notebooks of each kernel, by one query for all. Consoles are sessions too, but have no file."""
        try:
            sessions = await ensure_async(self._sessions.list_sessions())
        except Exception as error:  # a locked session database is no reason to lose sight of the kernels
            self._log.warning("gpu_guard: the sessions cannot be listed: %s", error)
            return self._paths
        found: dict[str, dict[str, None]] = {}
        for session in sessions:
            if session.get("type") == "notebook" and session.get("path") and session.get("kernel"):
                found.setdefault(session["kernel"]["id"], {})[session["path"]] = None
        self._paths = {kernel_id: tuple(paths) for kernel_id, paths in found.items()}
        return self._paths

    # --- ending a kernel ---

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt it as the button does. Raises UnknownKernel."""
        await self._ending.interrupt(kernel_id)

    async def shutdown(self, kernel_id: str) -> None:
        """Shut it down gracefully, with all its sessions. Returns when it is gone, and ends even if the caller is
        cancelled. Raises UnknownKernel, or ShutdownFailed when the kernel still runs."""
        await self._ending.shutdown(kernel_id)
        self.refresh()

    # --- Jupyter's own idle clock ---

    @property
    def cull_idle_timeout(self) -> int:
        """Jupyter's own option, in seconds; 0 where its culler is off."""
        return max(0, int(getattr(self._mkm, "cull_idle_timeout", 0)))

    def stock_deadline(self, kernel_id: str) -> datetime | None:
        """When Jupyter's own culler would end the kernel if nothing moved; None where it would not."""
        follower = self._followers.get(kernel_id)
        if follower is None or follower.remote:
            return None
        return stock_deadline(self._mkm, follower.km)

    def shield(self, kernel_id: str, at: datetime) -> None:
        """Tell Jupyter's culler to spare the kernel: move its `last_activity` to `at`, and never back. A kernel that
        is gone needs no shield. The server's own activity stays as it is: a kernel that is spared, such as one that
        has been warned, doesn't always work, and the hub may then end the server."""
        if kernel_id in self._followers:
            shield(self._followers[kernel_id].km, at)


def _language(km: Any) -> str:
    spec = getattr(km, "kernel_spec", None)
    return "" if spec is None else str(spec.language)
