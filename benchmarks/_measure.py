"""What the scripts share: wall time without the collector, a table, a line about the machine.

Imported before numpy: where BLAS may choose, it then takes one thread.
"""

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def seconds(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Returns the time of one call, what exists before it frozen and the collector off.

    Args:
        function: What to call.
        clock: Reads the time: by default wall time, `time.process_time` for CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        begin = clock()
        function()
        return clock() - begin
    finally:
        gc.enable()
        gc.unfreeze()


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; its first column is text, the others are right-aligned."""
    print(f"{title}\n{os.cpu_count()} cores, CPython {platform.python_version()}", end="")
    used = [name for name in ("greenlet", "numpy", "simpy", "torch") if name in sys.modules]
    print("".join(f", {name} {version(name)}" for name in used))
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *right]).rstrip())


def verdict(ratio: float, target: float, *, at_least: bool) -> str:
    """Returns the target of a figure and whether it is reached."""
    reached = ratio >= target if at_least else ratio <= target
    return f"{'>=' if at_least else '<='} {target:g} {'yes' if reached else 'NO'}"
