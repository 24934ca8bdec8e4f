"""The Jupyter server extension: builds the edges, hands them to the guard, starts and stops it.

Not here: any decision. A wrong trait ends the start with one line; anything else that is missing or broken (driver,
policy file, history) is reported by the guard and never stops a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import grp
import hashlib
import os
import re
import socket
from collections.abc import Callable
from datetime import timezone
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir
from jupyter_server.extension.application import ExtensionApp

from ._version import __version__
from .commands import Commands
from .config import GpuGuard, Settings
from .contents import Contents
from .core.model import Terminal
from .core.policy import PolicyError
from .core.reasons import Reason, because
from .events import Events
from .extensions import Extensions
from .guard import Guard, instant
from .history import History
from .kernels import KernelWatch
from .labels import Labels
from .metrics import Metrics
from .notebooks import Saver
from .nvml import NvmlReader, gpu_present
from .observer import GpuReader, Observer
from .policies import PolicyFile
from .presence import People
from .processes import GPU_FILES, ProcessReader
from .reclaim import Reclaimer
from .record import Recorder
from .recovery import RecoveryStore
from .routes import handlers
from .simulated import SimulatedReader
from .stock_cullers import StockCullers
from .stream import Stream, StreamHandler

#: How long the end of a server may wait for the guard.
STOP_SECONDS = 5.0


class GpuGuardApp(ExtensionApp):
    """jupyter_gpu_guard as Jupyter loads it."""

    name = "jupyter_gpu_guard"
    description = "Reclaims GPUs that nobody uses, and loses nobody's work."
    version = __version__
    load_other_extensions = True
    extension_url = "/lab"
    classes = [GpuGuard]  # noqa: RUF012  (traitlets' own way)
    _built: Assembly | None = None

    def initialize_settings(self) -> None:
        """Read the configuration and build everything; nothing is started yet."""
        assert self.serverapp is not None
        try:
            settings = GpuGuard(parent=self).settings()
        except PolicyError as error:
            raise SystemExit(f"jupyter_gpu_guard: {error}") from None
        self._built = Assembly(self.serverapp, settings)

    def initialize_handlers(self) -> None:
        """Register routes and stream, and start the guard as soon as the event loop runs."""
        assert self.serverapp is not None
        built = self._built
        assert built is not None, "settings come first"
        self.handlers.extend(handlers(built.commands))
        self.handlers.append((r"gpu-guard/api/v1/stream", StreamHandler, {"stream": built.stream}))
        self.serverapp.io_loop.add_callback(built.start)

    async def stop_extension(self) -> None:
        """Stop the guard; kernels are still alive at this moment."""
        if self._built is None:
            return
        try:
            await asyncio.wait_for(self._built.stop(), STOP_SECONDS)
        except asyncio.TimeoutError:
            self.log.warning("gpu_guard: did not stop in time")


class Assembly:
    """All parts of one server's guard, wired together."""

    def __init__(self, serverapp: Any, settings: Settings) -> None:
        log, web_settings = serverapp.log, serverapp.web_app.settings
        data = Path(jupyter_data_dir()) / "gpu_guard"
        server = server_name(serverapp.root_dir)
        reader, nothing, gpu_files, extra_env = gpu_reader(settings, Path(jupyter_runtime_dir()))
        self.watch = KernelWatch(serverapp.kernel_manager, serverapp.session_manager, instant, log, extra_env)
        self.watch.install(web_settings)
        self.people = People()
        path = settings.history_path or data / f"history-{server}.sqlite"
        self.recorder = Recorder(History(path, server, instant, log), log)
        self.contents = Contents(serverapp.contents_manager)
        recovery = RecoveryStore(self.contents, settings.recovery_dir, data, instant, log)
        saver = Saver(self.contents, instant, recovery, log)
        self.reclaimer = Reclaimer(self.watch, saver, self.people, self.recorder, log, instant)
        observer = Observer(
            reader,
            nothing,
            settings.gpu_source,
            ProcessReader(gpu_files=gpu_files),
            self.watch,
            self.people,
            terminals_of(web_settings),
            instant,
            log,
        )
        extensions = Extensions(self.recorder, os.environ.get("JUPYTERHUB_USER") or _user())
        self.guard = Guard(
            settings,
            observer,
            self.watch,
            self.reclaimer,
            self.recorder,
            extensions,
            Labels(self.contents, log),
            _groups(),
            PolicyFile(settings.policy_file, settings.layers) if settings.policy_file else None,
            log,
            instant,
        )
        self.commands = Commands(self.guard, self.people, saver, recovery, self.reclaimer, extensions)
        self._show(serverapp.event_logger, web_settings["last_activity_times"])

    def _show(self, event_logger: Any, activity_times: Any) -> None:
        """Connect those who show to the guard."""
        guard = self.guard
        self.stream = Stream(self.commands)
        self.metrics = Metrics(guard)
        events = Events(event_logger)
        cullers = StockCullers(guard, activity_times)
        self.recorder.sinks = [events.happened, self.metrics.happened, self.stream.happened]
        self.reclaimer.on_request = self.stream.asked
        guard.observer.viewers = self.stream.viewers
        guard.steps.on_change = self.stream.changed
        guard.steps.on_warning = self.stream.warned

        def after_round() -> None:
            self.metrics.round()
            cullers.round()
            events.sampled(guard.state.sample)
            self.stream.round()

        guard.on_round = after_round
        guard.on_round_duration = self.metrics.round_duration.observe

    async def start(self) -> None:
        """Attach to the kernels and begin the rounds."""
        await self.watch.start()
        await self.guard.start()

    async def stop(self) -> None:
        """Stop in the opposite order."""
        self.stream.close()
        await self.guard.stop()
        await self.watch.stop()
        self.contents.close()
        self.metrics.close()


def server_name(root_dir: str) -> str:
    """What a server is called in the name of its history: the same after a restart, whatever its port.

    In a hub its user and server name; elsewhere this machine and the root folder.
    """
    user = os.environ.get("JUPYTERHUB_USER")
    if user:
        whole = f"{user}/{os.environ.get('JUPYTERHUB_SERVER_NAME', '')}"
    else:
        whole = f"{socket.gethostname()}{os.path.abspath(root_dir)}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", whole)[-40:].strip("-") or "server"
    return f"{label}-{digest}"


def gpu_reader(
    settings: Settings, runtime: Path
) -> tuple[GpuReader | None, Reason, tuple[str, ...], dict[str, str]]:
    """What reads the GPUs; why there is nothing to read; by which open files a process shows that it uses one; what
    kernels need in their environment."""
    source = settings.gpu_source
    if source == "simulated":
        folder = runtime / f"gpu_guard_simulated-{os.getpid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # kernels look for it before the first reading
        env = {"JUPYTER_GPU_GUARD_SIMULATED": str(folder)}
        return SimulatedReader(folder), because("no_samples"), (f"{folder}/*",), env
    if source == "none":
        return None, because("gpu_disabled"), (), {}
    if source == "auto" and not gpu_present():
        return None, because("no_gpu"), (), {}
    return NvmlReader(), because("no_samples"), GPU_FILES, {}


def terminals_of(web_settings: dict[str, Any]) -> Callable[[], tuple[Terminal, ...]]:
    """The server's terminals, where the terminals extension is loaded (it may load after us: asked each time)."""

    def terminals() -> tuple[Terminal, ...]:
        manager = web_settings.get("terminal_manager")
        if manager is None:
            return ()
        found = []
        for name, terminal in list(manager.terminals.items()):
            process = getattr(terminal, "ptyproc", None)
            last = getattr(terminal, "last_activity", None)
            at = None if last is None else last.astimezone(timezone.utc)
            found.append(Terminal(name, getattr(process, "pid", None), at))
        return tuple(found)

    return terminals


def _groups() -> tuple[str, ...]:
    """The names of the groups that this server's user is in, on this machine."""
    names = []
    for number in os.getgroups():
        with contextlib.suppress(KeyError):  # a group without a name
            names.append(grp.getgrgid(number).gr_name)
    return tuple(names)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return str(os.getuid())
