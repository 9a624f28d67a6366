"""Averages of integers are NCCL's, and callbacks of futures are called."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench


@pytest.mark.parametrize("backend", ["nccl", "ccl"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_averages_of_integers_drop_the_fraction(
    kernbench: Kernbench, backend: str, dtype: str
) -> None:
    kind = np.dtype(dtype)
    low = 0 if dtype == "uint8" else -20
    given = np.random.default_rng(3).integers(low, 20, (3, 40)).astype(kind)
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        x = torch.tensor(given[rank], device="cuda")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        found[rank] = x.tolist()
        with pytest.raises(RuntimeError, match="avg is not defined for torch"):
            dist.all_reduce(x > 0, dist.ReduceOp.AVG)

    kernbench.spawn(worker, nprocs=3)
    # Division of C, of Python numbers: towards 0.
    expected = [int(sum(map(int, column)) / 3) for column in given.T]
    assert found == dict.fromkeys(range(3), expected)


def test_averages_of_large_integers_are_exact(kernbench: Kernbench) -> None:
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.tensor([2**61 + 1, -(2**61) - 1], device="cuda")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        found[rank] = x.tolist()

    kernbench.spawn(worker, nprocs=2)
    assert found == {rank: [2**61 + 1, -(2**61) - 1] for rank in range(2)}


def test_callbacks_of_futures(kernbench: Kernbench) -> None:
    seen: list[tuple[int, Any]] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((2,), float(rank + 1), device="cuda")
        future = dist.all_reduce(x, async_op=True).get_future()
        future.add_done_callback(lambda done: seen.append((rank, done.value()[0].tolist())))
        future.wait()

    kernbench.spawn(worker, nprocs=2)
    assert sorted(seen) == [(0, [3.0, 3.0]), (1, [3.0, 3.0])]
