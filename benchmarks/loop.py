"""How late the server's event loop runs with 20 kernels, 20 open streams and a driver that takes 50 ms for each call.

Beside it, in the same run, the same server without the guard. A probe in the server ticks every 5 ms. How late a tick
comes depends on who else wants the cores; how long the loop's thread computes between two ticks does not.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from benchmarks.runner import Figure, arguments, median, percentile, report
from benchmarks.servers import server, start_kernels
from tests.server.live import LiveServer
from tests.standin.driver import StandInDriver, build

DELAY = 0.05
#: The time is watched in so many parts: what others do to the machine doesn't spoil all of them.
WINDOWS = 6


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch (default: 60)")
    parser.add_argument("--kernels", type=int, default=20, help="how many kernels and streams (default: 20)")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.kernels = 1.0, 1
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder / "library")
        for guard in (False, True):
            driver = StandInDriver(folder / f"driver-{guard}", library, 2 if options.quick else 8)
            figures += watched(folder / f"server-{guard}", driver, guard, options.kernels, options.seconds)
    report(options, figures)


def watched(folder: Path, driver: StandInDriver, guard: bool, kernels: int, seconds: float) -> list[Figure]:
    """The figures of one server."""
    probe = "ServerApp.jpserver_extensions=benchmarks.loop_probe=True"
    with server(folder, driver, probe, guard=guard) as started:
        start_kernels(started, kernels, gpus=2)
        driver.delay("nvml*", DELAY)
        with streams(started, kernels if guard else 0) as received:
            time.sleep(min(5.0, seconds))
            started.get("benchmark/loop")
            windows = []
            for _ in range(WINDOWS):
                time.sleep(seconds / WINDOWS)
                windows.append(started.get("benchmark/loop"))
            if guard and min(received) == 0:
                raise RuntimeError("a stream received nothing")
        driver.clear_rules()
    name = "with the guard" if guard else "without"
    late = [value for seen in windows for value in seen["late"]]
    computed = [value for seen in windows for value in seen["computed"]]
    target = 20.0 if guard else None
    return [
        Figure(f"late, {name}: p50", median(late), "ms"),
        Figure(f"late, {name}: p99", percentile(late, 99), "ms"),
        Figure(f"late, {name}: max, best window", min(max(seen["late"]) for seen in windows), "ms"),
        Figure(f"late, {name}: max, median window", median([max(w["late"]) for w in windows]), "ms", target),
        Figure(f"late, {name}: max", max(late), "ms", target),
        Figure(f"computed at a stretch, {name}: p99", percentile(computed, 99), "ms"),
        Figure(f"computed at a stretch, {name}: max", max(computed), "ms", target),
    ]


@contextmanager
def streams(of: LiveServer, number: int) -> Iterator[list[int]]:
    """Open streams; yields how many messages each has received."""
    received = [0] * number
    loop = asyncio.new_event_loop()

    async def listen(n: int) -> None:
        url = f"ws://127.0.0.1:{of.port}/gpu-guard/api/v1/stream?client_id=stream-{n}"
        request = HTTPRequest(url, headers={"Authorization": f"token {of.token}"})
        socket = await websocket_connect(request)
        while await socket.read_message() is not None:
            received[n] += 1

    async def listen_to_all() -> None:
        await asyncio.gather(*(listen(n) for n in range(number)))

    thread = threading.Thread(target=lambda: loop.run_until_complete(_until_cancelled(listen_to_all)))
    thread.start()
    try:
        yield received
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join()
        loop.close()


async def _until_cancelled(work: Callable[[], Awaitable[None]]) -> None:
    with suppress(asyncio.CancelledError):
        await work()


if __name__ == "__main__":
    main()
