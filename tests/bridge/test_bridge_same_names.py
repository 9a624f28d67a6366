"""A kernel has one name, whichever torch runs it: that of the operator in PyTorch's profiler."""

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import both_torches
import pytest

from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.pytorch_versions import minor_of

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Program = Callable[[Any, int], None]
"""A program of a rank; takes the torch, and the rank."""

ON_DEVICE = ("compute", "copy", "collective")


def _names_of(program: Program, nprocs: int) -> tuple[set[str], set[str]]:
    """Returns what a program's ranks run on devices under `kernbench.torch`, and under PyTorch."""
    import torch as real

    import kernbench.torch as own
    from kernbench.bridge import bridged

    spec = RunSpec(topology="h200x8", data=False, record="full", default_device="cpu")
    with RuntimeContext(spec, quiet=True) as ctx:
        ctx.multiprocessing.spawn(partial(program, own), nprocs=nprocs)
        first = _names(ctx)
    with RuntimeContext(spec, quiet=True) as ctx, bridged(data=False):
        real.multiprocessing.spawn(partial(_run, program), nprocs=nprocs)
        return first, _names(ctx)


def _run(program: Program, rank: int) -> None:
    import torch

    program(torch, rank)


def _names(ctx: RuntimeContext) -> set[str]:
    return {one.name for one in ctx.engine.op_log.records if one.category in ON_DEVICE}


def _train(torch: Any, rank: int) -> None:
    """The script of the README, without what it prints."""
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(rank)
    linear = torch.nn.Linear(256, 256).to(rank)
    model = torch.nn.parallel.DistributedDataParallel(linear, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(64, 256, device=rank)).pow(2).mean()
        loss.backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


def _block(torch: Any, optimizer: Callable[[Any, Any], Any]) -> Program:
    """A step of a transformer's block, with labels, clipped gradients and an optimiser."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 64)
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
            self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64)
            self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
            self.drop, self.head = nn.Dropout(0.1), nn.Linear(64, 100, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            batch, length, width = x.shape
            q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, width // 4).unbind(2)
            heads = [one.transpose(1, 2) for one in (q, k, v)]
            seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
            return self.head(x + self.mlp(self.second(x)))

    def main(torch: Any, rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = nn.parallel.DistributedDataParallel(Block().to(rank), device_ids=[rank])
        chosen = optimizer(torch, model.parameters())
        ids = torch.zeros(2, 16, dtype=torch.int64, device=rank)
        for _ in range(2):
            loss = functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            chosen.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
        torch.distributed.destroy_process_group()

    return main


def _with(optimizer: Callable[[Any, Any], Any]) -> Program:
    return lambda torch, rank: _block(torch, optimizer)(torch, rank)


def _collectives(torch: Any, rank: int) -> None:
    dist = torch.distributed
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    mine, other = torch.ones(8, device=rank), torch.ones(8, device=rank)
    dist.all_reduce(mine)
    dist.broadcast(mine, 0)
    dist.reduce(mine, 0)
    dist.barrier(device_ids=[rank])
    dist.all_gather_into_tensor(torch.empty(16, device=rank), mine)
    dist.reduce_scatter_tensor(torch.empty(4, device=rank), mine)
    dist.all_to_all_single(torch.empty(8, device=rank), mine)
    dist.all_gather([torch.empty(8, device=rank) for _ in range(2)], mine)
    dist.gather(mine, [torch.empty(8, device=rank) for _ in range(2)] if rank == 0 else None, 0)
    dist.scatter(mine, [other, other] if rank == 0 else None, 0)
    (dist.send if rank == 0 else dist.recv)(mine, 1 - rank)
    (dist.isend if rank == 0 else dist.irecv)(mine, 1 - rank).wait()
    ways = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


PROGRAMS: dict[str, tuple[Program, int]] = {
    "train": (_train, 4),
    "block_adamw": (_with(lambda torch, given: torch.optim.AdamW(given, lr=1e-3)), 2),
    "block_fused": (_with(lambda torch, given: torch.optim.AdamW(given, fused=True)), 2),
    "block_sgd": (
        _with(lambda torch, given: torch.optim.SGD(given, 0.1, momentum=0.9, weight_decay=0.1)),
        2,
    ),
    "collectives": (_collectives, 2),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # names of collectives that 2.15 renames
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_kernels_of_the_same_names_under_both_torches(name: str) -> None:
    program, nprocs = PROGRAMS[name]

    own, real = _names_of(program, nprocs)

    assert own == real
    assert any(each.startswith("aten::") for each in own)


@cache
def _operations() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    return (
        both_torches.of_own_torch(both_torches.names_of),
        both_torches.of_real_torch(both_torches.names_of),
    )


OTHERWISE_SINCE_2_14 = frozenset({"clamp_backward", "clamp_min_backward", "maximum_backward"})
"""Gradients that PyTorch computes by other kernels now; `kernbench.torch` is PyTorch 2.13."""


@pytest.mark.parametrize("name", both_torches.NAMED)
def test_an_operation_runs_the_same_kernels_under_both_torches(name: str) -> None:
    if name in OTHERWISE_SINCE_2_14 and minor_of(version("torch")) >= (2, 14):
        pytest.skip("PyTorch 2.14 computes it by other kernels than 2.13")
    own, real = (names[name] for names in _operations())

    assert sorted(own) == sorted(real)
