"""One daemon thread for calls that may hang: the driver, a disk.

A thread of an executor is joined when the interpreter exits, so a hung call would keep a stopped server alive; a
daemon thread is not. A call that misses its deadline is left alone; until it returns, further calls are refused at
once, so that nothing piles up behind it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """The call has not returned in time. `seconds`: for how long it has been running."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {seconds:.1f} s")
        self.seconds = seconds


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    due: float  # by the monotonic clock
    started: float = 0.0


class Worker:
    """Runs calls one after the other in a daemon thread named `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: _Job | None = None

    @property
    def hung_for(self) -> float:
        """Seconds since the running call began; 0 when none runs."""
        running = self._running
        return 0.0 if running is None else time.monotonic() - running.started

    async def call(self, function: Callable[[], T], deadline: float) -> T:
        """Run `function` in the thread and return its result, or raise what it raises.

        Raises `Hung` after `deadline` seconds, or at once while an earlier call is past its own deadline.
        """
        self._start()
        running = self._running
        if running is not None and time.monotonic() > running.due:
            raise Hung(self.hung_for)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(function, loop, future, time.monotonic() + deadline)
        self._jobs.put(job)
        try:
            # Not wait_for: its TimeoutError could not be told from one that the function raised.
            await asyncio.wait({future}, timeout=deadline)
            if not future.done():
                job.due = 0.0  # the loop's timer may be a little ahead of the deadline
                raise Hung(max(self.hung_for, deadline))
            return future.result()
        finally:
            future.cancel()  # a call that has not begun must not run once nobody waits for it

    def stop(self) -> None:
        """Let the thread end after the call that it is in. Doesn't wait."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self._thread is not None:  # it was lost in a fork, with whatever it was running
            self._running = None
        # A queue of its own: the end of an earlier thread that still hangs may be waiting in the old one.
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._jobs,), name=self._name, daemon=True)
        self._thread.start()

    def _run(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            if job.future.cancelled():
                continue
            job.started = time.monotonic()
            self._running = job
            result, error = None, None
            try:
                result = job.function()
            except BaseException as exc:
                # Others than plain errors would stop the event loop, or could not be handed to it.
                plain = isinstance(exc, Exception) and not isinstance(exc, StopIteration)
                error = exc if plain else RuntimeError(f"the call was ended by {exc!r}")
            self._running = None
            try:
                job.loop.call_soon_threadsafe(_settle, job.future, result, error)
            except RuntimeError:
                continue  # its loop was closed while the call ran; others may have calls here


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
