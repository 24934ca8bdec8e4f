"""What the guard costs an idle JupyterLab server: CPU and memory beside the same server without the guard.

Four servers run at once: with and without the guard, without a kernel and with one that holds a GPU. After they have
settled, their use is read from /proc at both ends of a window. Rounds are made every 5 s.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.runner import Figure, arguments, report
from benchmarks.servers import cpu_seconds, memory_mib, server, start_kernels
from tests.server.live import LiveServer
from tests.standin.driver import StandInDriver, build


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the window (default: 120)")
    options = parser.parse_args()
    settle, seconds = (0.5, 1.0) if options.quick else (30.0, options.seconds)
    app = "jupyter_server" if options.quick else "jupyterlab"
    figures = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        library = build(folder / "library")
        pairs: dict[str, list[LiveServer]] = {}
        cases = (("no kernel", 0), ("a kernel that holds a GPU", 1))
        for case, kernels in cases[:1] if options.quick else cases:
            for guard in (True, False):
                place = folder / f"{kernels}-{guard}"
                driver = StandInDriver(folder / f"driver-{kernels}-{guard}", library)
                started = stack.enter_context(server(place, driver, guard=guard, app=app))
                start_kernels(started, kernels, gpus=2)
                pairs.setdefault(case, []).append(started)
        time.sleep(settle)
        for case, (guarded, plain) in window(pairs, seconds).items():
            figures += [
                Figure(f"{case}: CPU with the guard", guarded[0], "% core"),
                Figure(f"{case}: CPU without", plain[0], "% core"),
                Figure(f"{case}: CPU of the guard", guarded[0] - plain[0], "% core", 0.3),
                Figure(f"{case}: memory with the guard", guarded[1], "MiB"),
                Figure(f"{case}: memory without", plain[1], "MiB"),
                Figure(f"{case}: memory of the guard", guarded[1] - plain[1], "MiB", 20.0),
            ]
    report(options, figures)


Use = tuple[float, float]


def window(pairs: dict[str, list[LiveServer]], seconds: float) -> dict[str, tuple[Use, ...]]:
    """Percent of a core, and memory at the end, of each server."""
    pids = {case: [s.process.pid for s in pair if s.process] for case, pair in pairs.items()}
    before = {pid: cpu_seconds(pid) for pair in pids.values() for pid in pair}
    began = time.monotonic()
    time.sleep(seconds)
    after = {pid: cpu_seconds(pid) for pid in before}
    took = time.monotonic() - began
    return {
        case: tuple((100 * (after[pid] - before[pid]) / took, memory_mib(pid)) for pid in pair)
        for case, pair in pids.items()
    }


if __name__ == "__main__":
    main()
