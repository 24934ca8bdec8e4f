"""A server extension that watches its event loop: how late a timer comes, and how long the loop's thread computes.

`GET /benchmark/loop` answers with what was seen since it was asked last, in milliseconds. Lateness also grows when the
machine gives its cores to others; computing (CPU time of the thread between two ticks) does not.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from tornado import web

#: Seconds between two ticks.
TICK = 0.005


class Probe:
    """Ticks, and notes how it went."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.computed: list[float] = []

    async def run(self) -> None:
        """Tick until the loop ends."""
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(1e3 * (time.perf_counter() - wall - TICK))
            self.computed.append(1e3 * (time.thread_time() - cpu))


class ProbeHandler(JupyterHandler):
    def initialize(self, probe: Probe) -> None:
        self._probe = probe

    @web.authenticated
    def get(self) -> None:
        probe = self._probe
        self.finish(json.dumps({"late": probe.late, "computed": probe.computed}))
        probe.late, probe.computed = [], []


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "benchmarks.loop_probe"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    probe = Probe()
    serverapp.web_app.add_handlers(
        ".*$", [(serverapp.base_url + "benchmark/loop", ProbeHandler, {"probe": probe})]
    )
    serverapp.io_loop.add_callback(probe.run)
