"""A small program with a bit of everything; prints its trace or its golden records."""

import sys
from pathlib import Path

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.report import dump_records, write_trace
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.dials import Fidelity


@tl.jit
def scale(x: tl.Pointer, factor: float, n: int, block: tl.constexpr) -> None:
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


def worker(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.rand((50 * (rank + 1), 4), device="cuda")
    y = (x.t() @ x).sum() * torch.ones(2000)
    scale[tl.cdiv(2000, 256),](y, 0.5, 2000, 256)
    work = dist.all_reduce(y, async_op=True)
    z = torch.exp(x) + 1
    assert work is not None
    work.wait()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y += 1
    torch.cuda.current_stream().wait_stream(side)
    dist.all_reduce(z[:50].contiguous())
    dist.barrier()
    y[0].item()


def run(fidelity: Fidelity, changed: str = "[]", *, shadow: bool = False) -> RuntimeContext:
    """Returns the context in which the program has run.

    Args:
        fidelity: How closely time is simulated.
        changed: `system.sips.changed`.
        shadow: Whether what caches answer is compared.
    """
    overrides = (f"system.sips.changed={changed}", "defaults.algorithm=ring_allreduce_tcm")
    spec = RunSpec(
        topology="torus4x4",
        overrides=overrides,
        fidelity=fidelity,
        record="full",
        shadow=shadow,
    )
    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=6)
    return ctx


def golden(fidelity: Fidelity, *, shadow: bool = False) -> str:
    log = run(fidelity, shadow=shadow).engine.op_log
    return "".join(f"{line}\n" for line in dump_records(log))


if __name__ == "__main__":
    ctx = run("kernel")
    engine = ctx.engine
    write_trace(engine.op_log, engine.topology, Path(sys.argv[1]), dispatch_ps=engine.dispatch_ps)
