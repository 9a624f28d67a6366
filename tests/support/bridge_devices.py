"""Runs functions as ranks of the real PyTorch on simulated devices, in one process."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

_MACHINE = "h200x8"


@contextlib.contextmanager
def machine(
    *, data: bool = True, hbm: str | None = None, fake: bool = False
) -> Iterator[RuntimeContext]:
    """A block in which `torch.multiprocessing.spawn` starts ranks on simulated devices.

    Args:
        data: Whether tensors have numbers.
        hbm: Capacity of each device, as `64MiB`; None for that of the machine file.
        fake: Whether values that are read are made up if there are none.
    """
    from kernbench.bridge import bridged

    changes = [] if hbm is None else [f"system.sip.cube.hbm.capacity={hbm}"]
    topology = load_topology(_MACHINE, overrides=changes).topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=data)
    with RuntimeContext(engine=engine, quiet=True) as ctx, bridged(data=data, fake=fake):
        yield ctx


def on_ranks(
    worker: Callable[[int], Any], nprocs: int = 1, *, data: bool = True, hbm: str | None = None
) -> list[Any]:
    """Runs a function as ranks, and returns what it returned on each.

    Args:
        worker: The function; it gets the number of the rank.
        data: Whether tensors have numbers.
        hbm: See `machine`.
    """
    import torch

    results: dict[int, Any] = {}

    def rank_main(rank: int) -> None:
        results[rank] = worker(rank)

    with machine(data=data, hbm=hbm):
        torch.multiprocessing.spawn(rank_main, nprocs=nprocs)
    return [results[rank] for rank in sorted(results)]


def in_main(work: Callable[[], Any], machine: str = _MACHINE) -> Any:
    """Runs a function as a program without ranks, and returns what it returns.

    Args:
        work: The function.
        machine: Name of the machine file.
    """
    from kernbench.bridge import bridged

    topology = load_topology(machine).topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=True)
    with RuntimeContext(engine=engine, quiet=True), bridged(data=True) as run, run.main():
        return work()


def milliseconds(work: Callable[[], object]) -> float:
    """Returns how long the calling rank's device takes for work, its host ahead of it."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")  # the host gets ahead of the device
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last))
