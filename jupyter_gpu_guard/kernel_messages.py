"""Follow one kernel: its IOPub messages, restarts, death and process.

Covers the sockets to one kernel and what its messages say; which kernels there are is kernels.py's. Nothing here sends
a kernel anything but `kernel_info_request`, which is what Jupyter itself asks of each kernel and counts as no activity.

Two things make the watch trustworthy:

* An own SUB socket with a long queue, read promptly. A subscriber that falls behind loses messages without notice,
  final `idle`s among them.
* A request of our own on the shell channel. A subscription takes effect some time after it is asked for, and what was
  published before is lost. When the *busy* of our own request is heard on IOPub, the subscription stands, and all that
  came before it on the main shell has ended. Until then the kernel counts as not watched. A busy kernel answers only
  when its cell ends; so one that can be heard (newer ones greet each subscriber, JEP 65) and owes the answer is busy.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol

from jupyter_client.session import Session

from .core.execution import Executions, Message
from .core.model import Instant, ProcessKey
from .kernel_process import age_seconds, behind_gateway, process_of, runs_elsewhere
from .wrap import Wrap

#: IOPub messages held for us while the event loop is busy elsewhere; the default of 1000 is lost in one print loop.
QUEUE_LENGTH = 100_000
#: A reply that comes without its status on IOPub means that the subscription did not stand yet: ask again after this.
ASK_AGAIN_SECONDS = 0.25
#: Ids of quiet requests that are remembered for each kernel.
QUIET_IDS = 256


class Listener(Protocol):
    """What the follower tells."""

    def changed_kernel(self, kernel_id: str) -> None:
        """It became busy, idle, waiting, watched, restarted or dead."""


class KernelFollower:
    """What is known of one kernel. `km` is its KernelManager; all methods run on the event loop."""

    def __init__(
        self, kernel_id: str, km: Any, listener: Listener, clock: Callable[[], Instant], log: logging.Logger
    ) -> None:
        self.kernel_id = kernel_id
        self.km = km
        self.executions = Executions()
        self.incarnation = 0
        self.started = clock()
        self.dead = False
        self.restarting = False
        self.process = process_of(km)
        self._listener = listener
        self._clock = clock
        self._log = log
        self._quiet: dict[str, None] = {}
        self._iopub: Any = None
        self._shell: Any = None
        self._session: Session | None = None
        self._again: asyncio.TimerHandle | None = None
        self._hook: Wrap | None = None

    # --- the connection ---

    @property
    def remote(self) -> bool:
        """Whether local telemetry cannot see it."""
        return runs_elsewhere(self.km)

    @property
    def watched(self) -> bool:
        """Whether each message since the last barrier has been heard."""
        return self._iopub is not None and self.executions.settled

    def follow(self, adopted: bool) -> None:
        """Attach to a kernel whose process has been launched; `adopted` ones have been running for a while."""
        self._hook_restart()
        self.km.add_restart_callback(self._on_dead, "dead")
        if adopted and self.process is not None:
            self.started = self._clock().plus(timedelta(seconds=-age_seconds(self.process)))
        self.attach()

    def attach(self) -> None:
        """Connect anew to where the kernel listens now. A kernel that cannot be reached stays not watched."""
        self.detach()
        if behind_gateway(self.km):
            return
        session = self.km.session
        self._session = Session(
            config=session.config,
            key=session.key,
            signature_scheme=session.signature_scheme,
            packer=session.packer,
        )
        try:
            self._iopub = self.km.connect_iopub()
            self._shell = self.km.connect_shell()
        except Exception as error:  # it has no ports yet, or a provisioner of another kind refuses
            self._log.debug("gpu_guard: kernel %s cannot be watched: %s", self.kernel_id, error)
            self.detach()
            return
        # libzmq applies this to standing connections too.
        self._iopub.socket.rcvhwm = QUEUE_LENGTH
        self._iopub.socket.linger = self._shell.socket.linger = 0
        self._iopub.on_recv(self._on_iopub)
        self._shell.on_recv(self._on_reply)
        self._ask()

    def detach(self) -> None:
        """Close our sockets."""
        if self._again is not None:
            self._again.cancel()
        self._close_shell()
        _close(self._iopub)
        self._iopub = self._again = None

    def leave(self) -> None:
        """Stop following: unhook and close. The kernel itself is left as it is, or is gone already."""
        self.detach()
        if self._hook is not None:
            self._hook.take_off()
        self._hook = None
        self.km.remove_restart_callback(self._on_dead, "dead")

    def _ask(self) -> None:
        self._again = None
        if self._shell is not None and self._session is not None:
            self._session.send(self._shell, "kernel_info_request")

    def _on_reply(self, _parts: list[Any]) -> None:
        if not self.executions.settled and self._again is None:
            self._again = asyncio.get_running_loop().call_later(ASK_AGAIN_SECONDS, self._ask)

    def _close_shell(self) -> None:
        _close(self._shell)
        self._shell = None

    # --- messages ---

    def _on_iopub(self, parts: list[Any]) -> None:
        try:
            message, parent_session = self._read(parts)
        except Exception as error:  # a damaged or unsigned message must not end the watch
            self._log.debug("gpu_guard: unreadable message from kernel %s: %s", self.kernel_id, error)
            return
        assert self._session is not None
        self.executions = self.executions.hear(self._clock())
        if parent_session == self._session.session:
            self._on_own_status(message)
        else:
            self._become(self.executions.see(message, self._clock()))

    def _read(self, parts: list[Any]) -> tuple[Message, str]:
        assert self._session is not None
        _, frames = self._session.feed_identities(parts, copy=True)
        raw = self._session.deserialize(frames, content=False)
        header, parent = raw["header"], raw["parent_header"] or {}
        state = None
        if header["msg_type"] == "status":
            state = self._session.unpack(frames[4]).get("execution_state")
        msg_id = parent.get("msg_id", "")
        message = Message(
            kind=header["msg_type"],
            parent_kind=parent.get("msg_type", ""),
            parent_id=msg_id,
            shell=parent.get("subshell_id"),
            execution_state=state,
            quiet=msg_id in self._quiet,
        )
        return message, parent.get("session", "")

    def _on_own_status(self, message: Message) -> None:
        if message.execution_state == "busy" and not self.executions.settled:
            self._close_shell()
            self._become(self.executions.settle(self._clock()))

    def _become(self, executions: Executions) -> None:
        now = self._clock()
        before = self._summary(now)
        self.executions = executions
        if self._summary(now) != before:
            self._listener.changed_kernel(self.kernel_id)

    def _summary(self, now: Instant) -> tuple[object, ...]:
        held = self.executions
        return (
            tuple(r.msg_id for r in held.running(now)),
            held.waiting_for_input(now),
            held.settled,
            held.last_end,
        )

    # --- input() and quiet requests, as a websocket sees them ---

    def asked(self, parent_id: str) -> None:
        """An input_request went out to a front end."""
        self._become(self.executions.ask(parent_id, self._clock()))

    def answered(self) -> None:
        """A front end answered an input_request."""
        self._become(self.executions.answer())

    def quiet(self, msg_id: str) -> None:
        """A front end sends an execute_request that asks for no history."""
        self._quiet[msg_id] = None
        if len(self._quiet) > QUIET_IDS:
            del self._quiet[next(iter(self._quiet))]

    # --- restarts and death ---

    def _hook_restart(self) -> None:
        """`restart_kernel` of the single manager is the one door through which a user's restart, an extension's and
        the automatic one after a crash all go, new ports or old."""
        original = self.km.restart_kernel

        @functools.wraps(original)
        def restart_kernel(*args: Any, **kwargs: Any) -> Any:
            self._restart_begins()
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._restart_ends()
                raise
            if inspect.isawaitable(result):
                return self._when_restarted(result)
            self._restart_ends()
            return result

        self._hook = Wrap(self.km, "restart_kernel", restart_kernel)

    async def _when_restarted(self, result: Awaitable[Any]) -> Any:
        try:
            return await result
        finally:
            self._restart_ends()

    def _restart_begins(self) -> None:
        if self._hook is None:
            return
        self.restarting = True
        self.detach()
        self._become(self.executions.stop(self._clock()))

    def _restart_ends(self) -> None:
        if self._hook is None:
            return
        self.restarting = False
        self._renew()

    def _renew(self) -> None:
        """There is a new process behind the same kernel id: nothing of the old one holds any more."""
        self.incarnation += 1
        self.started = self._clock()
        self.executions = Executions()
        self.process = process_of(self.km)
        self._quiet.clear()
        self.attach()
        self._listener.changed_kernel(self.kernel_id)

    def _on_dead(self) -> None:
        self.dead = True
        self.detach()
        self.executions = self.executions.stop(self._clock())
        self._listener.changed_kernel(self.kernel_id)

    # --- once a round ---

    def check(self) -> None:
        """Look at the process, and mend what messages cannot tell: a crash, a restart that went past our hook."""
        if self._hook is None or self.remote or self.restarting or self.dead:
            return
        found = process_of(self.km)
        if found is not None and self.process is not None and found != self.process:
            self._renew()
        elif found is not None and self.process is None:
            self.process = found
        elif found is None and self.process is not None:
            self._become(self.executions.stop(self._clock()))
        if self._iopub is None:
            self.attach()

    def live_process(self) -> ProcessKey | None:
        """Its process while it lives. A pid that the system has given to another process since is nobody's."""
        found = process_of(self.km)
        return found if found == self.process else None

    def execution_state(self, server_state: str) -> str:
        """starting, busy, idle, restarting or dead; before our own knowledge is sure, what the server says."""
        if self.dead or server_state == "dead":
            return "dead"
        if self.restarting:
            return "restarting"
        if not self.remote and self.process is not None and self.live_process() is None:
            return "restarting" if getattr(self.km, "autorestart", False) else "dead"
        if self.executions.running(self._clock()):
            return "busy"
        return "idle" if self.watched else server_state


def _close(stream: Any) -> None:
    if stream is not None and not stream.closed():
        stream.on_recv(None)
        stream.close()
