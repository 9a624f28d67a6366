"""What it costs to choose an algorithm, of all that a run of a large ring takes.

Runs `ccl` (nccl-tests' all-reduce of 64 MiB, without data) on `ring1024` with 1,024 and 8,192
SIPs, and times all of the run, and of it `Choices.choose`. At most 5 % are asked for. What a choice
finds, such as the plan of what is chosen, is not found again by the simulation.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import _measure

from kernbench.ccl.tuner import Choices
from kernbench.cli import main

MOST = 0.05
RANKS = 1024, 8192


def timed(inside: list[float]) -> Callable[..., Any]:
    """Returns `Choices.choose` that adds its CPU time to a list."""
    choose = Choices.choose

    def run(*args: Any, **keywords: Any) -> Any:
        begin = time.process_time()
        try:
            return choose(*args, **keywords)
        finally:
            inside.append(time.process_time() - begin)

    return run


def measure(ranks: int) -> tuple[float, float]:
    """Returns the seconds of CPU time of a run, and of its choices."""
    inside: list[float] = []
    plain = Choices.choose
    Choices.choose = timed(inside)  # type: ignore[method-assign]
    begin = time.process_time()
    sys.argv[1:] = [
        *("run", "ccl", "--topology", "ring1024", "--set", f"system.sips.count={ranks}"),
        *("--data", "off", "--quiet", "--"),
        *("--op", "all_reduce", "-b", "64M", "-e", "64M", "-n", "1", "-w", "0"),
    ]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        Choices.choose = plain  # type: ignore[method-assign]
    return time.process_time() - begin, sum(inside)


def table() -> None:
    rows = []
    for ranks in RANKS:
        whole, choices = measure(ranks)
        verdict = _measure.verdict(choices / (whole - choices), MOST, at_least=False)
        rows.append([f"{ranks} ranks", f"{whole:.1f}", f"{choices:.2f}", verdict])
    _measure.show("Choosing an algorithm", ["ring", "run (s)", "of it choosing (s)", ""], rows)


if __name__ == "__main__":
    table()
