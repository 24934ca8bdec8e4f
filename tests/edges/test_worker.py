"""Calls that may hang, in a daemon thread of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_guard.worker import Hung, Worker

ROOT = Path(__file__).parents[2]


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("under test")
    yield worker
    worker.stop()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a call that hangs is waiting for."""
    gate = threading.Event()
    yield gate
    gate.set()


def raising(error: BaseException):
    def function() -> None:
        raise error

    return function


async def until_running(worker: Worker) -> None:
    while not worker.hung_for:
        await asyncio.sleep(0)


async def until_at_rest(worker: Worker) -> None:
    while worker.hung_for:
        await asyncio.sleep(0)


async def test_calls_run_one_after_the_other_in_one_daemon_thread(worker):
    order: list[int] = []

    def call(number: int) -> tuple[str, bool, int]:
        order.append(number)
        time.sleep(0.01)
        order.append(number)
        thread = threading.current_thread()
        return thread.name, thread.daemon, thread.ident

    results = await asyncio.gather(*(worker.call(lambda n=n: call(n), 30) for n in range(5)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {result[:2] for result in results} == {("under test", True)}
    assert {result[2] for result in results} != {threading.get_ident()}
    assert len({result[2] for result in results}) == 1


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own"), OSError(5, "disk"), Hung(3)])
async def test_the_caller_gets_what_the_function_raises(worker, error):
    with pytest.raises(type(error)) as raised:
        await worker.call(raising(error), 30)
    assert raised.value is error
    assert await worker.call(lambda: "next", 30) == "next"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
async def test_what_would_stop_the_event_loop_arrives_as_a_plain_error(worker, error):
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await worker.call(raising(error), 30)
    assert await worker.call(lambda: "next", 30) == "next"


async def test_the_event_loop_goes_on_meanwhile(worker, gate):
    call = asyncio.create_task(worker.call(gate.wait, 30))
    await until_running(worker)
    gate.set()  # could not be reached if the loop waited
    assert await call is True
    assert worker.hung_for == 0


async def test_a_late_call_is_left_alone_and_others_are_refused_until_it_returns(worker, gate):
    ran: list[str] = []
    with pytest.raises(Hung) as raised:
        await worker.call(gate.wait, 0.05)
    assert raised.value.seconds >= 0.05
    for _ in range(3):
        with pytest.raises(Hung) as refused:
            await worker.call(lambda: ran.append("behind it"), 3600)
        assert 0 < refused.value.seconds < 3600
    gate.set()
    await until_at_rest(worker)
    assert await worker.call(lambda: "again", 30) == "again"
    assert ran == []


async def test_a_call_that_waits_too_long_for_its_turn_does_not_run(worker, gate):
    ran: list[str] = []
    first = asyncio.create_task(worker.call(gate.wait, 3600))
    await until_running(worker)
    with pytest.raises(Hung):
        await worker.call(lambda: ran.append("late"), 0.05)
    gate.set()
    assert (
        await first is True
    )  # its own deadline is far away: the short one of the other is not held against it
    assert await worker.call(lambda: "again", 30) == "again"
    assert ran == []


async def test_a_call_is_given_its_own_deadline_behind_one_with_a_longer_one(worker, gate):
    first = asyncio.create_task(worker.call(gate.wait, 3600))
    await until_running(worker)
    await asyncio.sleep(0.1)
    second = asyncio.create_task(worker.call(lambda: "after it", 30))
    third = asyncio.create_task(worker.call(lambda: "and that", 0.01))
    with pytest.raises(Hung) as raised:
        await third
    assert raised.value.seconds >= 0.1
    gate.set()
    assert (await first, await second) == (True, "after it")


async def test_a_call_whose_caller_was_cancelled_does_not_begin(worker, gate):
    ran: list[str] = []
    first = asyncio.create_task(worker.call(gate.wait, 30))
    await until_running(worker)
    second = asyncio.create_task(worker.call(lambda: ran.append("unwanted"), 30))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    gate.set()
    assert await first is True
    assert await worker.call(lambda: "again", 30) == "again"
    assert (ran, second.cancelled()) == ([], True)


async def test_stopping_ends_the_thread_after_its_call_and_a_later_call_starts_another(worker, gate):
    thread = await worker.call(threading.current_thread, 30)
    call = asyncio.create_task(worker.call(gate.wait, 30))
    await until_running(worker)
    worker.stop()
    worker.stop()
    gate.set()
    assert await call is True
    thread.join(30)
    assert not thread.is_alive()
    assert await worker.call(threading.current_thread, 30) is not thread


async def test_a_thread_that_was_stopped_while_it_hung_does_not_take_the_next_call(worker, gate):
    thread = await worker.call(threading.current_thread, 30)
    with pytest.raises(Hung):
        await worker.call(gate.wait, 0.01)
    worker.stop()
    with pytest.raises(Hung):
        await worker.call(lambda: "too early", 30)
    gate.set()
    await until_at_rest(worker)
    assert await worker.call(threading.current_thread, 30) is not thread
    thread.join(30)
    assert not thread.is_alive()


def test_a_loop_that_closed_meanwhile_does_not_cost_the_next_one_its_call(worker, gate):
    async def abandon() -> None:
        with pytest.raises(Hung):
            await worker.call(gate.wait, 0.01)

    async def use() -> str:
        gate.set()
        await until_at_rest(worker)
        return await worker.call(lambda: "fine", 30)

    asyncio.run(abandon())
    assert asyncio.run(use()) == "fine"


def test_a_forked_child_has_a_thread_of_its_own(worker, gate):
    """It inherits neither the thread nor what that was hanging in."""

    async def hang() -> None:
        with pytest.raises(Hung):
            await worker.call(gate.wait, 0.01)

    asyncio.run(hang())
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sender, asyncio.run(worker.call(lambda: b"fine", 30)))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiver, 10) == b"fine"


def test_a_process_ends_while_a_call_hangs():
    code = """
import asyncio, time
from jupyter_gpu_guard.worker import Hung, Worker
async def main():
    try:
        await Worker("hangs").call(lambda: time.sleep(86400), 0.05)
    except Hung:
        print("hung")
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("hung\n", "")
