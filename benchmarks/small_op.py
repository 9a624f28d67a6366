"""A small tensor operation: its wall time from the call to its effect, against bare numpy's.

Data on, record `summary`, 8 x 8 float32 on a device; the operation is issued, timed and executed.
"""

import statistics
from collections.abc import Callable

import _measure
import numpy as np

from kernbench import torch
from kernbench.runtime_api.context import RuntimeContext

SIZE = 8
CALLS = 2000
REPEATS = 15
LIMIT_US = 15


def each_us(operation: Callable[[], object]) -> float:
    """Returns the wall time of one call out of many."""

    def many() -> None:
        for _ in range(CALLS):
            operation()

    return _measure.seconds(many) / CALLS * 1e6


def main() -> None:
    with RuntimeContext():
        a = torch.ones(SIZE, SIZE, device="cuda")
        b = torch.ones(SIZE, SIZE, device="cuda")
        h = a.bfloat16()
        x, y = np.ones((SIZE, SIZE), np.float32), np.ones((SIZE, SIZE), np.float32)
        z = h.numpy()
        cases: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            ("a + b", lambda: x + y, lambda: a + b),
            ("a * 2.0", lambda: x * np.float32(2), lambda: a * 2.0),
            ("a += b", lambda: np.add(x, y, out=x), lambda: a.add_(b)),
            ("a @ b", lambda: x @ y, lambda: a @ b),
            ("a.sum()", x.sum, a.sum),
            ("h + h, bfloat16", lambda: z + z, lambda: h + h),
        ]
        rows = []
        for name, bare, ours in cases:
            pairs = [(each_us(bare), each_us(ours)) for _ in range(REPEATS)]
            low = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
            median = statistics.median(pair[1] for pair in pairs)
            verdict = _measure.verdict(low[1], LIMIT_US, at_least=False)
            ratio = f"{low[1] / low[0]:.0f}x"
            rows.append([name, f"{low[0]:.2f}", f"{low[1]:.1f}", f"{median:.1f}", ratio, verdict])
            a.fill_(1)
            x.fill(1)
    title = f"A small operation, {SIZE} x {SIZE}, microseconds of wall time each"
    _measure.show(title, ["", "numpy min", "kernbench min", "median", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
