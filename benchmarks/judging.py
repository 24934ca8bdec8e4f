"""The time to attribute and judge 100 kernels, on a machine of 1000 processes and 8 GPUs that exists only as values.

No driver, no /proc, no Jupyter: the core alone. One round in twelve has a full scan of the processes to survey.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from benchmarks.runner import Figure, arguments, costs, median, report
from jupyter_gpu_guard.core.attribution import AttributionMemory, attribute
from jupyter_gpu_guard.core.judgement import fresh_track, judge
from jupyter_gpu_guard.core.model import Observation, Presence
from tests.core import world


def main() -> None:
    options = arguments(__doc__).parse_args()
    kernels, processes, times = (3, 10, 3) if options.quick else (100, 1000, 120)
    seen = observation(kernels, processes)
    between = replace(seen, scan=replace(seen.scan, full=False))
    _, memory = attribute(seen, AttributionMemory())
    attribution, memory = attribute(between, memory)
    held = [share for usage in attribution.usages.values() for share in usage.shares]
    assert len(held) == 2 * kernels
    policy = world.policy()
    tracks = {k.kernel_id: fresh_track(k, seen.now) for k in seen.kernels}

    def judge_all() -> None:
        for kernel in seen.kernels:
            usage = attribution.usages[kernel.kernel_id]
            judge(kernel, usage, Presence(), between, policy, tracks[kernel.kernel_id])

    with_scan = costs(lambda: attribute(seen, AttributionMemory()), times)
    without = costs(lambda: attribute(between, memory), times)
    judged = costs(judge_all, times)
    middle = [median([cost.cpu for cost in found]) for found in (with_scan, without, judged)]
    report(
        options,
        [
            Figure(f"attribute, after a full scan of {processes} processes", middle[0], "ms CPU"),
            Figure("attribute, between full scans", middle[1], "ms CPU"),
            Figure(f"judge {kernels} kernels", middle[2], "ms CPU"),
            Figure(
                "attribute and judge, mean of twelve rounds",
                middle[0] / 12 + middle[1] * 11 / 12 + middle[2],
                "ms CPU",
            ),
        ],
    )


def observation(kernels: int, processes: int) -> Observation:
    """Each kernel has a child; both are on a GPU."""
    pids = [1000 + 10 * n for n in range(kernels)]
    roots = [world.process(pid, world.SERVER, opens_gpu=True) for pid in pids]
    children = [world.process(pid + 1, pid, opens_gpu=True) for pid in pids]
    others = [world.process(100_000 + n, world.SHELL) for n in range(processes)]
    scan = world.scan(*roots, *children, *others, now=3600)
    on_gpus = [
        [
            world.row(pid)
            for k, parent in enumerate(pids)
            if k % 8 in (g, (g + 4) % 8)
            for pid in [parent + (k % 8 != g)]
        ]
        for g in range(8)
    ]
    gpus = [world.gpu(*rows, uuid=f"GPU-{g}", index=g) for g, rows in enumerate(on_gpus)]
    told = tuple(world.kernel(f"k-{pid}", pid) for pid in pids)
    sample = replace(world.sample(*gpus, now=3600))
    return Observation(world.at(3600), sample, world.measured(scan, {}), told, (), {}, timedelta(0))


if __name__ == "__main__":
    main()
