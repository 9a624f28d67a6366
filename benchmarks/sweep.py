"""A sweep of many small runs: milliseconds a run with one process, and what a second one gains.

Each run is `ccl_allreduce` of one small size on 8 ranks: of the same size with another seed; or
each of a size of its own, for which everything is planned and timed anew. CPU time is that of the
workers and of the process that gives them work, imports and all; it says what a run costs where
other programs share the cores.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import _measure

import kernbench
from kernbench.run_spec import RunSpec

LIMIT_MS = 25
GAIN = 1.8


class Took(NamedTuple):
    wall_s: float
    cpu_s: float
    parent_s: float


def _cpu() -> tuple[float, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, others = (each.ru_utime + each.ru_stime for each in used)
    return own, others


def _spec(number: int, sizes: bool) -> RunSpec:
    size = str(1024 + 4 * number if sizes else 1024)
    return RunSpec(bench="ccl_allreduce", arguments=("-b", size, "-e", size), seed=number)


def sweep(runs: int, jobs: int, folder: Path, sizes: bool = False) -> Took:
    """Runs a sweep with its files, workers and all."""
    specs = [_spec(number, sizes) for number in range(runs)]
    own, others = _cpu()
    begin = time.perf_counter()
    records = kernbench.sweep(
        specs=specs, jobs=jobs, json=folder / f"{jobs}.json", csv=folder / f"{jobs}.csv"
    )
    wall_s = time.perf_counter() - begin
    assert all(record.ok for record in records)
    own, others = (after - before for after, before in zip(_cpu(), (own, others), strict=True))
    return Took(wall_s, own + others, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    took: dict[int, list[Took]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.repeats):
            for jobs, found in took.items():
                found.append(sweep(given.runs, jobs, Path(folder)))
        new = [sweep(given.runs, 1, Path(folder), sizes=True) for _ in range(given.repeats)]
    best = {jobs: min(found) for jobs, found in took.items()}
    ms = {jobs: each.wall_s / given.runs * 1e3 for jobs, each in best.items()}
    cpu_ms = min(each.cpu_s for each in took[1]) / given.runs * 1e3
    parent_ms = min(each.parent_s for each in took[1]) / given.runs * 1e3
    gain = statistics.median(
        one.wall_s / two.wall_s for one, two in zip(took[1], took[2], strict=True)
    )
    rows = [
        [
            f"{given.runs} runs, --jobs 1",
            f"{LIMIT_MS}",
            f"{ms[1]:.1f}",
            f"{ms[1] / LIMIT_MS:.1f}x",
            _measure.verdict(ms[1] / LIMIT_MS, 1, at_least=False),
        ],
        ["  of it CPU time, all processes", "", f"{cpu_ms:.1f}", "", ""],
        ["  of it CPU time, the process that gives work", "", f"{parent_ms:.1f}", "", ""],
        [
            "--jobs 2",
            f"{ms[1]:.1f}",
            f"{ms[2]:.1f}",
            f"{gain:.2f}x",
            _measure.verdict(gain, GAIN, at_least=True),
        ],
    ]
    each = min(new)
    new_ms, new_cpu_ms = (seconds / given.runs * 1e3 for seconds in (each.wall_s, each.cpu_s))
    rows += [
        ["each of a size of its own, --jobs 1", "", f"{new_ms:.1f}", "", ""],
        ["  of it CPU time, all processes", "", f"{new_cpu_ms:.1f}", "", ""],
    ]
    load = os.getloadavg()[0]
    title = f"A sweep, wall ms a run (load {load:.1f})"
    _measure.show(title, ["", "limit or 1 job", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
