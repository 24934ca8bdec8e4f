"""Which execute requests of a kernel are running, read from its IOPub messages.

Covers the pairing of busy and idle by the request that they answer, lost messages, requests that tools send behind
the user's back, and `input()`. Knows nothing of sockets: the caller hands in what of a message matters. Jupyter's own
`execution_state` takes the last status of any request, so that a control or subshell request turns a kernel idle in
the middle of a silent cell; here only the `idle` of the request itself ends it.

Only execute requests count. Comm traffic (a live widget), completion, inspection, kernel_info, debugging and status
messages never do, whoever sends them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from .model import Instant

#: Message types that show a cell's output.
OUTPUT = frozenset({"stream", "display_data", "execute_result", "error", "update_display_data"})

#: A quiet request counts once it has run this long. Variable inspectors and their like send short ones after each
#: cell, or even from a timer: those must keep no kernel alive. Anything longer is work, whoever asked for it.
QUIET_SPAN = timedelta(seconds=1)

#: A kernel that can be heard and whose main shell has not answered for so long is running something whose beginning
#: nobody here heard: a restart-and-run-all begins before a new subscription stands.
UNANSWERED_SPAN = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Message:
    """What matters of one IOPub message. `shell` is the subshell id of its parent, None for the main shell; `quiet`
    says that the parent is known to have asked for no history."""

    kind: str
    parent_kind: str = ""
    parent_id: str = ""
    shell: str | None = None
    execution_state: str | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One execute request that has said busy and not yet idle."""

    msg_id: str
    shell: str | None
    since: Instant
    counts: bool = False  # its execute_input was seen, and it is not quiet
    inferred: bool = False  # its busy was not seen: known from its output only

    def counts_at(self, now: Instant) -> bool:
        """Whether it is work: announced by an execute_input, or running longer than `QUIET_SPAN`."""
        return self.counts or now.since(self.since) >= QUIET_SPAN


@dataclass(frozen=True, slots=True)
class Executions:
    """The execute requests of one kernel process. Each method returns what holds afterwards.

    Until `settled` messages may have been missed (the kernel was running before the watch began), so output of an
    unknown request shows that the request runs; afterwards it is only a thread that an ended cell left behind.
    Until then, too, the main shell owes an answer: what keeps it from giving one counts as a request.
    """

    requests: tuple[Request, ...] = ()
    asking: str | None = None  # the request whose input() has not been answered
    settled: bool = False
    heard: Instant | None = (
        None  # since when the kernel is known to talk while its main shell owes the answer
    )
    last_start: Instant | None = None
    last_end: Instant | None = None
    last_seconds: float | None = (
        None  # None where its beginning or end was missed; at least so long where unseen
    )
    last_output: Instant | None = None

    def running(self, now: Instant) -> tuple[Request, ...]:
        """The requests that count as work now."""
        found = tuple(request for request in self.requests if request.counts_at(now))
        unseen = self._unseen(now)
        return found if unseen is None else (*found, unseen)

    def hear(self, now: Instant) -> Executions:
        """Any message of the kernel came in, be it of no matter: it has started, and can be heard."""
        return self if self.settled or self.heard is not None else replace(self, heard=now)

    def _unseen(self, now: Instant) -> Request | None:
        """What the main shell runs although nothing of it was heard."""
        if self.settled or self.heard is None or now.since(self.heard) < UNANSWERED_SPAN:
            return None
        if any(request.shell is None for request in self.requests):
            return None
        return Request("", None, self.heard, counts=True)

    def waiting_for_input(self, now: Instant) -> bool:
        """Whether all that runs waits for an answer to `input()`; a busy subshell beside it means work."""
        running = self.running(now)
        return bool(running) and all(request.msg_id == self.asking for request in running)

    def see(self, message: Message, now: Instant) -> Executions:
        """Take in one IOPub message."""
        if message.parent_kind != "execute_request" or not message.parent_id:
            return self
        if message.kind == "status" and message.execution_state == "busy":
            return self._begin(Request(message.parent_id, message.shell, now))
        if message.kind == "status" and message.execution_state == "idle":
            return self._end(message, now)
        if message.kind == "execute_input":
            return self._announce(message, now)
        if message.kind in OUTPUT:
            return self._output(message, now)
        return self

    def settle(self, now: Instant) -> Executions:
        """Nothing can have been missed from here on: the main shell has answered a request of ours on IOPub, and it
        answers in order. What was only inferred has therefore ended."""
        ended = self._end_unseen(now)
        return replace(
            ended, settled=True, heard=None, requests=tuple(r for r in ended.requests if not r.inferred)
        )

    def _end_unseen(self, now: Instant) -> Executions:
        """It ran since it was heard at the latest; the main shell owes its answer anew."""
        unseen = self._unseen(now)
        if unseen is None:
            return self
        return replace(self._close(unseen, now), heard=now)

    def ask(self, msg_id: str, now: Instant) -> Executions:
        """An input_request of the request `msg_id` went out. It comes by another socket, perhaps before the busy."""
        asking = replace(self, asking=msg_id)
        return (
            asking if self.settled else asking._begin(Request(msg_id, None, now, counts=True, inferred=True))
        )

    def answer(self) -> Executions:
        """An input_reply came in."""
        return replace(self, asking=None)

    def stop(self, now: Instant) -> Executions:
        """The process is gone, and everything in it has ended."""
        ended = replace(self._end_unseen(now), heard=None)
        for request in self.requests:
            ended = ended._close(request, now)
        return replace(ended, asking=None)

    def _find(self, msg_id: str) -> Request | None:
        return next((request for request in self.requests if request.msg_id == msg_id), None)

    def _begin(self, request: Request) -> Executions:
        if self._find(request.msg_id) is not None:
            return self
        last_start = request.since if request.counts else self.last_start
        return replace(self, requests=(*self.requests, request), last_start=last_start)

    def _announce(self, message: Message, now: Instant) -> Executions:
        """A shell runs one request at a time: earlier ones of the same shell have ended and their idle got lost (a
        slow subscriber loses messages without notice). When they ended is not known, so neither is their length."""
        known = self._find(message.parent_id) or Request(message.parent_id, message.shell, now)
        others = tuple(r for r in self.requests if r.msg_id != known.msg_id and r.shell != known.shell)
        lost = any(
            r.counts_at(now) and r.msg_id != known.msg_id and r.shell == known.shell for r in self.requests
        )
        request = replace(known, counts=not message.quiet, inferred=False)
        return replace(
            self,
            requests=(*others, request),
            last_start=request.since if request.counts else self.last_start,
            last_end=now if lost else self.last_end,
            last_seconds=None if lost else self.last_seconds,
        )

    def _end(self, message: Message, now: Instant) -> Executions:
        request = self._find(message.parent_id)
        if request is not None:
            return self._close(request, now)
        if message.shell is None and self._unseen(now) is not None:
            return self._end_unseen(now)
        # Its busy was missed. It ran until now all the same.
        return self if message.quiet else replace(self, last_end=now, last_seconds=None)

    def _close(self, request: Request, now: Instant) -> Executions:
        rest = replace(self, requests=tuple(r for r in self.requests if r.msg_id != request.msg_id))
        if not request.counts_at(now):
            return rest
        seconds = None if request.inferred else now.since(request.since).total_seconds()
        return replace(rest, last_start=request.since, last_end=now, last_seconds=seconds)

    def _output(self, message: Message, now: Instant) -> Executions:
        request = self._find(message.parent_id)
        if request is not None:
            return replace(self, last_output=now) if request.counts_at(now) else self
        if message.quiet:
            return self
        printed = replace(self, last_output=now)
        if self.settled:
            return printed
        return printed._begin(Request(message.parent_id, message.shell, now, counts=True, inferred=True))
