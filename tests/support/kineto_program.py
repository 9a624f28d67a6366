"""A program with a bit of everything that traces show, and its files."""

from pathlib import Path
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.report import RankBreakdown, breakdown, write_kineto_files
from kernbench.torch.profiler import record_function

STEPS = 3


def worker(rank: int) -> None:
    dist.init_process_group("nccl")
    pair = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    a = torch.ones(512, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    g = torch.ones(1 << 20, dtype=torch.bfloat16, device="cuda")
    wide = torch.empty(4 << 20, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream()
    for step in range(STEPS):
        with record_function(f"ProfilerStep#{step}"):
            with record_function("forward"):
                work = dist.all_reduce(g, async_op=True)
                b = torch.nn.functional.gelu(a @ a)
            work.wait()
            b.sum().backward()
            dist.all_gather_into_tensor(wide, g, group=None)
            dist.reduce_scatter_tensor(g, wide)
            dist.all_reduce(g, op=dist.ReduceOp.AVG, group=pair)
            with torch.cuda.stream(side):
                c = torch.ones(1 << 20, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            g.cpu()
            if rank % 2:
                dist.send(c, rank - 1)
            else:
                dist.recv(c, rank + 1)
            done = torch.cuda.Event()
            done.record()
            done.synchronize()
            dist.broadcast(g, 1)
            dist.barrier()
    dist.destroy_process_group()


def write(ctx: Any, folder: Path) -> list[RankBreakdown]:
    """Writes the files of a run, and returns its breakdown."""
    log, topology, dispatch = ctx.engine.op_log, ctx.engine.topology, ctx.engine.dispatch_ps
    write_kineto_files(log, topology, folder, dispatch_ps=dispatch)
    return breakdown(log, dispatch)
