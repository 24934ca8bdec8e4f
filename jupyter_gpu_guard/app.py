"""The Jupyter server extension: builds the edges, hands them to the guard, starts and stops it.

Not here: any decision. A wrong trait ends the start with one line; anything else that is missing or broken (driver,
policy file, history) is reported by the guard and never stops a server.
"""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Callable
from datetime import timezone
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir
from jupyter_server.extension.application import ExtensionApp

from ._version import __version__
from .config import GpuGuard, Settings
from .core.model import Terminal
from .core.policy import PolicyError
from .core.reasons import Reason, because
from .events import Events
from .extensions import Extensions
from .guard import Guard, instant
from .history import History
from .kernels import KernelWatch
from .metrics import Metrics
from .notebooks import Saver
from .nvml import NvmlReader, gpu_present
from .observer import GpuReader, Observer
from .policies import PolicyFile
from .presence import People
from .processes import ProcessReader
from .reclaim import Reclaimer
from .record import Recorder
from .recovery import RecoveryStore
from .routes import handlers
from .simulated import SimulatedReader
from .stock_cullers import StockCullers
from .stream import Stream, StreamHandler

#: How long the end of a server may wait for the guard.
STOP_SECONDS = 5.0


class GpuGuardApp(ExtensionApp):  # type: ignore[misc]
    """jupyter_gpu_guard as Jupyter loads it."""

    name = "jupyter_gpu_guard"
    description = "Reclaims GPUs that nobody uses, and loses nobody's work."
    version = __version__
    load_other_extensions = True
    extension_url = "/lab"
    classes = [GpuGuard]

    def initialize_settings(self) -> None:
        """Build everything that needs the server's settings; nothing is started yet."""
        config = GpuGuard(parent=self)
        try:
            settings = config.settings()
        except PolicyError as error:
            raise SystemExit(f"jupyter_gpu_guard: {error}") from None
        self._built = Assembly(self.serverapp, settings)
        self.settings["jupyter_gpu_guard_guard"] = self._built.guard

    def initialize_handlers(self) -> None:
        """Register routes and stream, and start the guard when the event loop runs."""
        built = self._built
        self.handlers.extend(handlers(built.guard))
        self.handlers.append((r"gpu-guard/api/v1/stream", StreamHandler, {"stream": built.stream}))
        self.serverapp.io_loop.add_callback(built.start)

    async def stop_extension(self) -> None:
        """Stop the guard; kernels are still alive at this moment."""
        try:
            await asyncio.wait_for(self._built.stop(), STOP_SECONDS)
        except asyncio.TimeoutError:
            self.log.warning("gpu_guard: did not stop in time")


class Assembly:
    """All parts of one server's guard, wired together."""

    def __init__(self, serverapp: Any, settings: Settings) -> None:
        log = serverapp.log
        data = Path(jupyter_data_dir()) / "gpu_guard"
        server = f"{serverapp.ip or 'localhost'}-{serverapp.port}".replace("/", "_").replace(":", "_")
        owner = os.environ.get("JUPYTERHUB_USER") or _user()
        history = History(settings.history_path or data / f"history-{server}.sqlite", server)
        reader, nothing, source, extra_env = gpu_reader(settings, Path(jupyter_runtime_dir()))
        web_app = serverapp.web_app
        self.watch = KernelWatch(serverapp.kernel_manager, serverapp.session_manager, instant, log, extra_env)
        self.watch.install(web_app.settings)
        self.people = People()
        self.recorder = Recorder(history, log)
        recovery = RecoveryStore(serverapp.contents_manager, settings.recovery_dir, data, instant, log)
        saver = Saver(serverapp.contents_manager, instant, recovery, log)
        self.reclaimer = Reclaimer(self.watch, saver, self.people, self.recorder, recovery, log, instant)
        terminals = terminals_of(web_app.settings)
        observer = Observer(
            reader, nothing, source, ProcessReader(), self.watch, self.people, terminals, instant, log
        )
        policy_file = PolicyFile(settings.policy_file) if settings.policy_file else None
        extensions = Extensions(self.recorder, owner)
        self.guard = Guard(
            settings,
            observer,
            self.watch,
            self.people,
            self.reclaimer,
            self.recorder,
            extensions,
            policy_file,
            log,
            instant,
        )
        self._wire(serverapp)

    def _wire(self, serverapp: Any) -> None:
        """Connect those who show to the guard."""
        guard = self.guard
        self.stream = Stream(guard)
        self.metrics = Metrics(guard)
        events = Events(serverapp.event_logger)
        cullers = StockCullers(guard, serverapp.web_app.settings["last_activity_times"])
        self.recorder.sinks = [events.happened, self.metrics.happened, self.stream.happened]
        self.reclaimer.on_request = self.stream.asked
        guard.observer.viewers = lambda: len(self.stream)
        guard.on_change = self.stream.changed
        guard.on_warning = self.stream.warned

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
        self.metrics.close()


def gpu_reader(settings: Settings, runtime: Path) -> tuple[GpuReader | None, Reason, str, dict[str, str]]:
    """What reads the GPUs, why there is nothing to read, the source's name, and what kernels need in their environment."""
    source = settings.gpu_source
    if source == "simulated":
        directory = runtime / f"gpu_guard_simulated-{os.getpid()}"
        return SimulatedReader(directory), because("no_samples"), source, {"JUPYTER_GPU_GUARD_SIMULATED": str(directory)}
    if source == "none":
        return None, because("gpu_disabled"), "none", {}
    if source == "auto" and not gpu_present():
        return None, because("no_gpu"), "none", {}
    return NvmlReader(), because("no_samples"), "nvml", {}


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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return str(os.getuid())

