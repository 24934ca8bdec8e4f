"""What all benchmarks share: the command line, the table of figures, the JSON, and how a cost is measured.

Doesn't cover what is measured: each script says that itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `target`: what it should be at most; None where there is nothing to reach."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call took, in milliseconds: CPU time of this process in all its threads, and time on the wall."""

    cpu: float
    wall: float


def costs(work: Callable[[], object], times: int, before: Callable[[], object] | None = None) -> list[Cost]:
    """Call `work` so many times, and `before`, unmeasured, ahead of each."""
    found = []
    for _ in range(times):
        if before is not None:
            before()
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        found.append(Cost(1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as JSON; - for the screen")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small run that shows that the script works; its figures mean little",
    )
    return parser


def report(options: argparse.Namespace, figures: Sequence[Figure]) -> None:
    """Show the figures, or write them where `--json` says."""
    result = {
        "benchmark": Path(sys.argv[0]).stem,
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "machine": machine(),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }
    if options.json == "-":
        print(json.dumps(result, indent=2))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    for line in table(figures):
        print(line)


def machine() -> dict[str, Any]:
    """What the figures depend on. The load tells whether others ran beside."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1_minute": round(os.getloadavg()[0], 1),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(figures: Sequence[Figure]) -> list[str]:
    """One line for each figure."""
    width = max(len(figure.name) for figure in figures)
    return [
        f"{figure.name:<{width}}  {_number(figure.value):>9} {figure.unit:<8}{_goal(figure)}"
        for figure in figures
    ]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def _goal(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"target: at most {_number(figure.target)}  {'met' if figure.met else 'MISSED'}"
