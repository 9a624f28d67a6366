"""Collectives of a line of `collectives.csv`, run on a simulated machine."""

from collections.abc import Callable, Mapping
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology
from kernbench.topology.spec import MachineSpec, SystemSpec
from kernbench.units import PS_PER_US


def modelled_ps(system: SystemSpec, line: Mapping[str, str]) -> int:
    """Returns the picoseconds of a collective among the first ranks of a machine, by events.

    Args:
        line: Texts by column: `op`, `n` and `bytes` of the larger buffer, of bfloat16.

    Raises:
        UsageError: If there is no such collective, or the machine has too few SIPs.
    """
    ranks, nbytes = int(line["n"]), int(line["bytes"])
    if ranks > system.sips.count:
        raise UsageError(f"{ranks} ranks, and the machine has {system.sips.count} SIPs")
    found: list[float] = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=ranks)
        call = _call(line["op"], ranks, nbytes)
        busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.matmul(busy, busy)  # until its end, the host has issued all that follows
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(1000 * start.elapsed_time(end))
        dist.destroy_process_group()

    engine = GraphEngine(Topology(MachineSpec(system), {}), False)
    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
    # The tables have the mean of many calls between two events.
    return round(PS_PER_US * sum(found) / ranks) - system.sip.event


def _call(op: str, ranks: int, nbytes: int) -> Callable[[], Any]:
    whole = torch.empty(nbytes // 2, dtype=torch.bfloat16, device="cuda")
    part = torch.empty(nbytes // 2 // ranks, dtype=torch.bfloat16, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    if op not in calls:
        raise UsageError(f"no law for {op!r}")
    return calls[op]
