"""Exchanges along any dimension of any group: what arrives, and what its gradient is."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import differentiable, exchanges
from kernbench.parallel.exchanges import Cut, Exchange
from kernbench.parallel.members import Group, ParallelAssertionError
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode

RANKS = 4
SHAPE = (4, 8, 12)

Array = np.ndarray[Any, Any]


def values(seed: int, *shape: int) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def spawn(kernbench: Kernbench, worker: Callable[[Group, int], None], nprocs: int = RANKS) -> Any:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.group.WORLD
        assert group is not None
        worker(group, rank)

    return kernbench.spawn(run, nprocs=nprocs)


def on_device(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).cuda().requires_grad_()


def host(tensor: torch.Tensor | None) -> Array:
    assert tensor is not None
    array: Array = tensor.detach().cpu().numpy()
    return array


def repartitioned(everyone: list[Array], rank: int, split_dim: int, cat_dim: int) -> Array:
    """What a rank gets: its part of one dimension from each rank, side by side."""
    parts = [np.split(each, RANKS, split_dim)[rank] for each in everyone]
    return np.concatenate(parts, cat_dim)


@pytest.mark.parametrize(("split_dim", "cat_dim"), list(product([0, 1, -1], repeat=2)))
def test_a_repartition_and_its_gradient(kernbench: Kernbench, split_dim: int, cat_dim: int) -> None:
    everyone = [values(rank, *SHAPE) for rank in range(RANKS)]
    outs = [repartitioned(everyone, rank, split_dim, cat_dim) for rank in range(RANKS)]
    grads = [values(10 + rank, *outs[rank].shape) for rank in range(RANKS)]

    def worker(group: Group, rank: int) -> None:
        x = on_device(everyone[rank])
        with CommDebugMode() as mode:
            out = differentiable.repartition(x, group, split_dim, cat_dim)
            out.backward(torch.from_numpy(grads[rank]).cuda())
        assert mode.get_comm_counts() == {"all_to_all_single": 2}
        np.testing.assert_array_equal(host(out), outs[rank])
        back = repartitioned(grads, rank, cat_dim, split_dim)
        np.testing.assert_array_equal(host(x.grad), back)
        np.testing.assert_array_equal(host(x), everyone[rank])

    spawn(kernbench, worker)


def test_heads_for_tokens_and_back(kernbench: Kernbench) -> None:
    """What context parallelism does with `[s/cp, b, h, d]`."""
    whole = values(1, 8, 2, 4, 3)

    def worker(group: Group, rank: int) -> None:
        mine = on_device(np.ascontiguousarray(np.split(whole, RANKS, 0)[rank]))
        heads = differentiable.repartition(mine, group, split_dim=2, cat_dim=0)
        np.testing.assert_array_equal(host(heads), np.split(whole, RANKS, 2)[rank])
        tokens = differentiable.repartition(heads, group, split_dim=0, cat_dim=2)
        np.testing.assert_array_equal(host(tokens), host(mine))

    spawn(kernbench, worker)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_of_a_dimension(kernbench: Kernbench, dim: int) -> None:
    everyone = [values(rank, *SHAPE) for rank in range(RANKS)]
    total = np.sum(everyone, 0)
    joined = np.concatenate(everyone, dim)
    grads = [values(20 + rank, *joined.shape) for rank in range(RANKS)]
    part_shape = np.split(total, RANKS, dim)[0].shape
    parts = [values(30 + rank, *part_shape) for rank in range(RANKS)]

    def worker(group: Group, rank: int) -> None:
        def check(
            move: Callable[[torch.Tensor], torch.Tensor], out: Array, grad: Array, back: Array
        ) -> None:
            x = on_device(everyone[rank])
            y = move(x)
            np.testing.assert_array_equal(host(y), out)
            y.backward(torch.from_numpy(np.ascontiguousarray(grad)).cuda())
            np.testing.assert_array_equal(host(x.grad), back)

        def part(array: Array) -> Array:
            return np.split(array, RANKS, dim)[rank]

        cut, replicated = Cut(group, dim), Cut(group, dim, replicated=True)
        around = np.concatenate(parts, dim)
        check(lambda x: differentiable.gather(x, cut), joined, grads[rank], part(np.sum(grads, 0)))
        check(
            lambda x: differentiable.gather(x, replicated), joined, grads[rank], part(grads[rank])
        )
        check(lambda x: differentiable.scatter(x, cut), part(everyone[rank]), parts[rank], around)
        check(lambda x: differentiable.reduce_scatter(x, cut), part(total), parts[rank], around)

    spawn(kernbench, worker)


def test_sums_and_copies(kernbench: Kernbench) -> None:
    everyone = [values(rank, 3, 5) for rank in range(RANKS)]
    total = np.sum(everyone, 0)

    def worker(group: Group, rank: int) -> None:
        for move, out, back in (
            (differentiable.copy, everyone[rank], total),
            (differentiable.reduce, total, everyone[rank]),
        ):
            x = on_device(everyone[rank])
            y = move(x, group)
            np.testing.assert_array_equal(host(y), out)
            y.backward(torch.from_numpy(everyone[rank]).cuda())
            np.testing.assert_array_equal(host(x.grad), back)

    spawn(kernbench, worker)


def test_rows_to_their_ranks_in_a_group_of_some(kernbench: Kernbench) -> None:
    """Rank r of the group sends r + 1 rows to each: `[rows of 1, rows of 3]` arrive."""

    def worker(group: Group, rank: int) -> None:
        del group
        odd = dist.new_group([1, 3])
        if rank % 2 == 0:
            return
        place = rank // 2
        x = torch.full((2 * (place + 1), 2), float(rank), device="cuda", requires_grad=True)
        how = Exchange(odd, [1, 2], [place + 1] * 2)
        out = differentiable.exchange(x, how)
        assert out[:, 0].tolist() == [1.0, 3.0, 3.0]
        out.backward(out.detach() * 10)
        assert host(x.grad).tolist() == [[10.0 * rank] * 2] * len(x)
        dist.destroy_process_group(odd)

    spawn(kernbench, worker)


def test_a_group_of_one_rank_sends_nothing(kernbench: Kernbench) -> None:
    def worker(group: Group, rank: int) -> None:
        del rank
        x = on_device(values(1, 2, 3))
        cut = Cut(group, -1)
        with CommDebugMode() as mode:
            for out in (
                differentiable.copy(x, group), differentiable.reduce(x, group),
                differentiable.scatter(x, cut), differentiable.gather(x, cut),
                differentiable.reduce_scatter(x, cut), differentiable.exchange(x, Exchange(group)),
                differentiable.repartition(x, group, 0, 1),
                differentiable.sequence_to_hidden(x, group),
                differentiable.hidden_to_sequence(x, group), exchanges.repartition(x, group, 1, 0),
            ):  # fmt: skip
                assert out is x
        assert mode.get_total_counts() == 0

    spawn(kernbench, worker, nprocs=1)


def test_parts_that_do_not_make_up_a_tensor(kernbench: Kernbench) -> None:
    def worker(group: Group, rank: int) -> None:
        del rank
        x = torch.ones(5, 7, device="cuda")
        refused: dict[str, list[Callable[[], object]]] = {
            "7 is not divisible by 2": [
                partial(differentiable.repartition, x, group, 1, 0),
                partial(differentiable.scatter, x, Cut(group, 1)),
            ],
            "First dimension of the tensor should be divisible by tensor parallel size": [
                partial(differentiable.repartition, x, group, 0, 1),
                partial(differentiable.reduce_scatter, x, Cut(group, 0)),
            ],
        }
        for text, calls in refused.items():
            for call in calls:
                with CommDebugMode() as mode, pytest.raises(ParallelAssertionError) as caught:
                    call()
                assert str(caught.value).splitlines()[0] == text
                assert "test_parallel_exchanges.py" in str(caught.value)
                assert mode.get_total_counts() == 0

    spawn(kernbench, worker, nprocs=2)
