"""An operation of PyTorch on a simulated device, against an empty mode of PyTorch's own.

Beside operations with numbers there are those of `--data off`, of which only time is simulated.

Process time, the best of several repeats; what is made takes memory of the simulated HBM.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

import _measure
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.bridge import bridged
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

SIZE = 8
CALLS = 1500
REPEATS = 9
LIMIT = 2.2


class Empty(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Runs each operation, and does nothing else."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def each_us(operation: Callable[[], object]) -> float:
    """Returns the process time of one call, the best of several repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        gc.disable()
        begin = time.process_time()
        for _ in range(CALLS):
            operation()
        best = min(best, time.process_time() - begin)
        gc.enable()
    return best / CALLS * 1e6


def times(device: str) -> dict[str, float]:
    """Returns the time of each operation, in microseconds."""
    a, b = torch.ones(SIZE, SIZE, device=device), torch.ones(SIZE, SIZE, device=device)
    cases: dict[str, Callable[[], object]] = {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "view": lambda: a.view(SIZE * SIZE),
        "add_": lambda: a.add_(b),
    }
    return {name: each_us(operation) for name, operation in cases.items()}


def simulated(*, data: bool) -> dict[str, float]:
    """Returns the time of each operation of a rank, with or without numbers."""
    found: dict[str, float] = {}
    engine = GraphEngine(
        load_topology("h200x8").topology_obj, enable_data=False, moves_at_call=True
    )
    with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
        torch.multiprocessing.spawn(lambda _: found.update(times("cuda")), nprocs=1)
    return found


def main() -> None:
    bare = times("cpu")
    with Empty():
        empty = times("cpu")
    rows = [
        [
            f"{name}, {kind}",
            f"{bare[name]:.2f}",
            f"{empty[name]:.2f}",
            f"{time:.2f}",
            f"{time / empty[name]:.2f}x",
            _measure.verdict(time / empty[name], LIMIT, at_least=False),
        ]
        for kind, data in (("numbers", True), ("time alone", False))
        for name, time in simulated(data=data).items()
    ]
    title = f"An operation of PyTorch, {SIZE} x {SIZE}, microseconds of process time each"
    _measure.show(title, ["", "PyTorch", "empty mode", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
