"""The forward pass of a tensor-parallel MLP with data, against the numpy calls that it stands for.

Eight ranks of one process; hidden 1024, ffn 4096, float32, one BLAS thread. With the library kernel
the limit is the same matmuls, activations and sums in bare numpy; with the tile kernel, the bare
loop over the same tiles. PyTorch's `LocalTensorMode`, which computes all ranks' values one after
the other, is asked where torch is installed; else the figure of another machine of two cores stands
in.
"""

import gc
import time
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import _measure
import numpy as np

from kernbench import torch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.kernels import BLOCK
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear

Array = np.ndarray[Any, Any]

RANKS = 8
HIDDEN = 1024
FFN = 4096
TOKENS = 1024
FEW_TOKENS = 128
REPEATS = 7
LIMIT = 1.3
LOCAL_TENSORS_ELSEWHERE = 0.047


class Mlp(torch.nn.Module):
    def __init__(self, kernel: GemmKernel) -> None:
        super().__init__()
        config = ModelParallelConfig(tensor_model_parallel_size=RANKS, kernel=kernel)
        group = dist.group.WORLD
        self.up = ColumnParallelLinear(
            HIDDEN,
            FFN,
            config=config,
            init_method=torch.nn.init.xavier_normal_,
            bias=False,
            tp_group=group,
        )
        self.down = RowParallelLinear(
            FFN,
            HIDDEN,
            config=config,
            init_method=torch.nn.init.xavier_normal_,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=False,
            tp_group=group,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, _ = self.up(x)
        out: torch.Tensor
        out, _ = self.down(torch.nn.functional.gelu(wide, approximate="tanh"))
        return out


# The same in bare numpy


def matmul(a: Array, b: Array) -> Array:
    return a @ b


def tiled(a: Array, b: Array) -> Array:
    """Multiplies as the tile kernel does: block by block, inner blocks one after the other."""
    (m, k), n = a.shape, b.shape[1]
    c = np.empty((m, n), a.dtype)
    for top in range(0, m, BLOCK):
        rows = slice(top, top + BLOCK)
        for left in range(0, n, BLOCK):
            columns = slice(left, left + BLOCK)
            acc = np.zeros(c[rows, columns].shape, a.dtype)
            for start in range(0, k, BLOCK):
                inner = slice(start, start + BLOCK)
                acc += a[rows, inner] @ b[inner, columns]
            c[rows, columns] = acc
    return c


def gelu(x: Array) -> Array:
    root = x.dtype.type(np.sqrt(2 / np.pi))
    inner = root * (x + x.dtype.type(0.044715) * x * x * x)
    activated: Array = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return activated


def bare(multiply: Callable[[Array, Array], Array], x: Array, ups: Array, downs: Array) -> Array:
    parts = [multiply(gelu(multiply(x, up.T)), down.T) for up, down in zip(ups, downs, strict=True)]
    total: Array = reduce(np.add, parts)
    return total


# The runs


def ours(tokens: int, kernel: GemmKernel) -> tuple[float, float]:
    """Returns the seconds of the bare calls and of the forward pass, the fastest of repeats."""
    begins: list[float] = []
    ends: list[float] = []
    limits: list[float] = []
    times: list[float] = []
    ups, downs, outs = (
        np.empty((RANKS, *shape), np.float32)
        for shape in ((FFN // RANKS, HIDDEN), (HIDDEN, FFN // RANKS), (tokens, HIDDEN))
    )

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.manual_seed(1)
        model = Mlp(kernel)
        x = torch.randn(tokens, 1, HIDDEN, device="cuda")
        here = x.cpu().numpy()[:, 0]
        assert model.up.weight is not None
        ups[rank] = model.up.weight.detach().cpu().numpy()
        downs[rank] = model.down.weight.detach().cpu().numpy()
        multiply = matmul if kernel == "library" else tiled
        for _ in range(REPEATS + 1):
            dist.barrier()
            torch.cuda.synchronize()
            if rank == 0:
                limits.append(_measure.seconds(lambda: bare(multiply, here, ups, downs)))
                begins.clear()
                ends.clear()
                gc.disable()
            dist.barrier()
            torch.cuda.synchronize()
            begins.append(time.perf_counter())
            with torch.no_grad():
                out = model(x)
            torch.cuda.synchronize()
            ends.append(time.perf_counter())
            if len(ends) == RANKS:
                gc.enable()
                times.append(max(ends) - min(begins))
        outs[rank] = out.cpu().numpy()[:, 0]
        dist.barrier()
        if rank == 0:
            expected = bare(multiply, here, ups, downs)
            for each in outs:
                np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4)

    with RuntimeContext() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    return min(limits), min(times)


def local_tensors(tokens: int) -> float:
    """Returns the seconds of the forward pass in PyTorch's `LocalTensorMode`."""
    real, distributed = import_module("torch"), import_module("torch.distributed")
    mode = import_module("torch.distributed._local_tensor").LocalTensorMode
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    real.set_num_threads(1)
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=store)
    try:
        with real.no_grad(), mode(RANKS) as everyone:
            x = everyone.rank_map(lambda _: real.randn(tokens, HIDDEN))
            up = everyone.rank_map(lambda _: real.randn(FFN // RANKS, HIDDEN))
            down = everyone.rank_map(lambda _: real.randn(HIDDEN, FFN // RANKS))

            def forward() -> None:
                wide = real.nn.functional.gelu(x @ up.T, approximate="tanh")
                distributed.all_reduce(wide @ down.T)

            forward()
            return min(_measure.seconds(forward) for _ in range(REPEATS))
    finally:
        distributed.destroy_process_group()


def main() -> None:
    there = find_spec("torch") is not None
    rows: list[list[object]] = []

    def add(name: str, limit: str, seconds: tuple[float, float], target: float) -> None:
        ratio = seconds[1] / seconds[0]
        figures = [f"{limit} {seconds[0] * 1e3:.1f}", f"{seconds[1] * 1e3:.1f}", f"{ratio:.2f}x"]
        rows.append([name, *figures, _measure.verdict(ratio, target, at_least=False)])

    add(f"{TOKENS} tokens, library", "the same calls", ours(TOKENS, "library"), LIMIT)
    add(f"{TOKENS} tokens, tile kernel", "bare loop", ours(TOKENS, "tile"), LIMIT)
    theirs = local_tensors(FEW_TOKENS) if there else LOCAL_TENSORS_ELSEWHERE
    peer = "LocalTensorMode" if there else "LocalTensorMode (elsewhere)"
    add(f"{FEW_TOKENS} tokens, library", peer, (theirs, ours(FEW_TOKENS, "library")[1]), 1.0)
    add(f"{FEW_TOKENS} tokens, tile kernel", peer, (theirs, ours(FEW_TOKENS, "tile")[1]), 1.0)
    _measure.show(
        f"Forward pass of an MLP on {RANKS} ranks with data, ms",
        ["", "limit", "kernbench", "ratio", "target"],
        rows,
    )


if __name__ == "__main__":
    main()
