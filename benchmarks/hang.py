"""What a driver that hangs does to the server: how fast `GET status` answers, and how long the server takes to end.

A call to the driver doesn't return while the status is asked again and again; beside it, the same without the hang and
Jupyter's own `GET /api/status` over the same time. Then SIGTERM, with the call still hanging, and to a server whose
driver is well.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.runner import Figure, arguments, median, percentile, report
from benchmarks.servers import STATUS, connection, latency, server, start_kernels
from tests.server.live import LiveServer
from tests.standin.driver import StandInDriver, build


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long to ask, each time (default: 30)"
    )
    options = parser.parse_args()
    seconds, kernels = (0.5, 0) if options.quick else (options.seconds, 2)
    figures: list[Figure] = []
    ends: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder / "library")
        for state in ("well", "hanging"):
            driver = StandInDriver(folder / f"driver-{state}", library)
            started = server(folder / state, driver, "GpuGuard.sample_interval=1s")
            found, ends[state] = lived(started, driver, state, kernels, seconds)
            figures += found
    figures += [
        Figure("SIGTERM to the end, driver well", ends["well"], "s"),
        Figure("SIGTERM to the end, driver hanging", ends["hanging"], "s", ends["well"] + 1),
    ]
    report(options, figures)


def lived(
    started: LiveServer, driver: StandInDriver, state: str, kernels: int, seconds: float
) -> tuple[list[Figure], float]:
    """The figures of one server, and how long it took to end."""
    try:
        started.start()
        start_kernels(started, kernels, gpus=2)
        started.until(lambda: telemetry(started) == "ok", 30, "the driver is not read")
        if state == "hanging":
            driver.hang("nvmlDeviceGet*")
        figures = asked(started, f"driver {state}", seconds)
        if state == "hanging":
            started.until(lambda: telemetry(started) == "stale", 20, "the hang is not seen")
    finally:
        ended = started.stop()
        driver.clear_rules()
    return figures, ended


def telemetry(of: LiveServer) -> str:
    """The state that the guard tells."""
    return str(of.guard()["telemetry"]["state"])


def asked(of: LiveServer, when: str, seconds: float) -> list[Figure]:
    """The two routes in turn, for so long."""
    guard: list[float] = []
    jupyter: list[float] = []
    end = time.monotonic() + seconds
    with connection(of) as over:
        while time.monotonic() < end:
            guard.append(latency(of, over, STATUS))
            jupyter.append(latency(of, over, "/api/status"))
            time.sleep(0.02)
    return [
        Figure(f"GET /api/status, {when}: p50", median(jupyter), "ms"),
        Figure(f"GET /api/status, {when}: p99", percentile(jupyter, 99), "ms"),
        Figure(f"GET /api/status, {when}: max", max(jupyter), "ms"),
        Figure(f"GET status, {when}: p50", median(guard), "ms", 50.0),
        Figure(f"GET status, {when}: p99", percentile(guard, 99), "ms", 50.0),
        Figure(f"GET status, {when}: max", max(guard), "ms", 50.0),
    ]


if __name__ == "__main__":
    main()
