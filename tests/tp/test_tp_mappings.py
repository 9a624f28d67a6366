"""Moves between ranks: what arrives, that gradients take the way back, and what is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tp_cases import SIZES, draw, grad_of, leaf, part, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.tp import mappings, primitives
from kernbench.tp.utils import (
    Group,
    VocabUtility,
    broadcast_data,
    divide,
    ensure_divisibility,
    gather_split_1d_tensor,
    split_tensor_along_last_dim,
    split_tensor_into_1d_equal_chunks,
)

COPY = mappings.copy_to_tensor_model_parallel_region
REDUCE = mappings.reduce_from_tensor_model_parallel_region
SCATTER = mappings.scatter_to_tensor_model_parallel_region
GATHER = mappings.gather_from_tensor_model_parallel_region
SCATTER_ROWS = mappings.scatter_to_sequence_parallel_region
GATHER_ROWS = mappings.gather_from_sequence_parallel_region
REDUCE_SCATTER_ROWS = mappings.reduce_scatter_to_sequence_parallel_region
GATHER_LAST = mappings.all_gather_last_dim_from_tensor_parallel_region
REDUCE_SCATTER_LAST = mappings.reduce_scatter_last_dim_to_tensor_parallel_region


def gather_replicated(x: torch.Tensor, group: Group) -> torch.Tensor:
    return GATHER_ROWS(x, False, group)


def gather_rows(x: torch.Tensor, group: Group) -> torch.Tensor:
    return GATHER_ROWS(x, group=group)


def all_to_all(x: torch.Tensor, group: Group) -> torch.Tensor:
    return mappings.all_to_all(group, x)


# By name: the mapping, and whether its input and its output are the same on all ranks.
MAPPINGS: dict[str, tuple[Callable[[torch.Tensor, Group], torch.Tensor], bool, bool]] = {
    "copy": (COPY, True, False),
    "reduce": (REDUCE, False, True),
    "scatter": (SCATTER, True, False),
    "gather": (GATHER, False, True),
    "scatter_rows": (SCATTER_ROWS, True, False),
    "gather_rows": (gather_rows, False, False),
    "gather_replicated": (gather_replicated, False, True),
    "reduce_scatter_rows": (REDUCE_SCATTER_ROWS, False, False),
    "gather_last": (GATHER_LAST, False, False),
    "reduce_scatter_last": (REDUCE_SCATTER_LAST, False, False),
    "all_to_all": (all_to_all, False, False),
    "sp2hp": (mappings.all_to_all_sp2hp, False, False),
    "hp2sp": (mappings.all_to_all_hp2sp, False, False),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MAPPINGS)
def test_gradients_take_the_way_back(kernbench: Kernbench, name: str, size: int) -> None:
    """Whole numbers, so that sums are exact: `<F(x), y> = <x, F*(y)>`, replicas counted once."""
    mapping, same_input, same_output = MAPPINGS[name]

    def worker(group: Group) -> None:
        rank = dist.get_rank(group)

        def whole_numbers(like: tuple[int, ...], same: bool, seed: int) -> torch.Tensor:
            seed += 0 if same else 100 * rank
            return (draw(*like, seed=seed, dtype=torch.float64) * 8).round()

        def inner(a: torch.Tensor, b: torch.Tensor, same: bool) -> float:
            total = (a * b).sum()
            if not same:
                dist.all_reduce(total, group=group)
            return float(total.item())

        x = whole_numbers((8, 16), same_input, 1).requires_grad_()
        before = x.detach().clone()
        with CommDebugMode() as mode:
            out = mapping(x, group)
            y = whole_numbers(tuple(out.shape), same_output, 2)
            kept = y.clone()
            out.backward(y)
        if size == 1:
            assert out is x
            assert mode.get_total_counts() == 0
        assert (x.detach() == before).all().item()
        assert (y == kept).all().item()
        assert x.grad is not None
        assert inner(out.detach(), y, same_output) == inner(before, x.grad, same_input)

    spawn(kernbench, size, worker)


def test_what_arrives(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        rank = dist.get_rank(group)
        everyone = [draw(4, 3, 8, seed=each) for each in range(4)]
        mine, total = everyone[rank], everyone[0] + everyone[1] + everyone[2] + everyone[3]
        same = everyone[0]
        expected = {
            "copy": same,
            "reduce": total,
            "scatter": part(same, group, -1),
            "gather": torch.cat(everyone, -1),
            "scatter_rows": part(same, group, 0),
            "gather_rows": torch.cat(everyone),
            "gather_replicated": torch.cat(everyone),
            "reduce_scatter_rows": part(total, group, 0),
            "gather_last": torch.cat(everyone, -1),
            "reduce_scatter_last": part(total, group, -1),
            "all_to_all": torch.cat([part(each, group, 0) for each in everyone]),
            "sp2hp": torch.cat([part(each.reshape(12, 8), group, -1) for each in everyone]),
            "hp2sp": torch.cat([part(each.reshape(12, 8), group, 0) for each in everyone], -1),
        }
        for name, (mapping, same_input, _) in MAPPINGS.items():
            out = mapping(same if same_input else mine, group)
            torch.testing.assert_close(out, expected[name])

    spawn(kernbench, 4, worker)


def test_parts_of_different_sizes(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        rank, sizes = dist.get_rank(group), [3, 0, 2, 1]
        x = leaf(sizes[rank], 2, seed=rank)
        y = GATHER_ROWS(x, group=group, output_split_sizes=sizes)
        expected = torch.cat([draw(n, 2, seed=each) for each, n in enumerate(sizes)])
        assert y.tolist() == expected.tolist()
        out = REDUCE_SCATTER_ROWS(y, group, sizes)
        assert out.tolist() == (4 * x).tolist()
        out.backward(torch.ones_like(out))
        assert grad_of(x).tolist() == [[4.0, 4.0]] * sizes[rank]
        z = leaf(sizes[rank], 2, seed=rank)
        replicated = GATHER_ROWS(z, False, group, sizes)
        replicated.backward(torch.arange(12.0, device="cuda").reshape(6, 2))
        first = 2 * sum(sizes[:rank])
        assert grad_of(z).reshape(-1).tolist() == list(range(first, first + 2 * sizes[rank]))

    spawn(kernbench, 4, worker)


def test_an_exchange_of_different_sizes(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        rank = dist.get_rank(group)
        sends, receives = ([1, 2], [1, 3]) if rank == 0 else ([3, 0], [2, 0])
        x = torch.arange(float(sum(sends)), device="cuda") + 10 * rank
        x = x.unsqueeze(-1).requires_grad_()
        out = mappings.all_to_all(group, x, receives, sends)
        assert out.reshape(-1).tolist() == ([0, 10, 11, 12] if rank == 0 else [1, 2])
        out.backward(out.detach() * 2)
        assert grad_of(x).tolist() == (2 * x).tolist()

    spawn(kernbench, 2, worker)


def test_a_part_shares_no_memory_with_the_whole(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = draw(4, 4, seed=1)
        before = x.clone()
        for mapping in (SCATTER, SCATTER_ROWS, REDUCE):
            mapping(x, group).add_(1)
        assert x.tolist() == before.tolist()

    spawn(kernbench, 2, worker)


def test_errors(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = draw(5, 7, seed=1)

        def text(call: Callable[[], Any]) -> str:
            with pytest.raises(AssertionError) as caught:
                call()
            return str(caught.value).splitlines()[0]

        last = "7 is not divisible by 2"
        rows = "First dimension of the tensor should be divisible by tensor parallel size"
        for mapping in (SCATTER, REDUCE_SCATTER_LAST, mappings.all_to_all_sp2hp):
            assert text(partial(mapping, x, group)) == last
        for mapping in (SCATTER_ROWS, REDUCE_SCATTER_ROWS, mappings.all_to_all_hp2sp):
            assert text(partial(mapping, x, group)) == rows
        assert text(lambda: mappings.all_to_all(group, x)) == rows
        assert text(lambda: GATHER_ROWS(x, group=group, output_split_sizes=[5])) == (
            "output_split_sizes has 1 sizes for 2 ranks"
        )
        assert text(lambda: REDUCE_SCATTER_ROWS(x, group, [1, 2])) == (
            "input_split_sizes=[1, 2] does not add up to 5 rows"
        )
        assert text(lambda: mappings.all_to_all(group, x, [1, 2], [1, 2])) == (
            "input_split_sizes=[1, 2] does not add up to 5 rows"
        )

    spawn(kernbench, 2, worker)


def test_plain_functions_of_one_rank_give_back_what_they_get(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = draw(3, 5, seed=1)
        for out in (
            primitives.all_reduce(x, group), primitives.all_gather(x, group, 0),
            primitives.reduce_scatter(x, group, 0), primitives.take_part(x, group, -1),
            primitives.exchange(x, group), primitives.sequence_to_hidden(x, group),
            primitives.hidden_to_sequence(x, group),
        ):  # fmt: skip
            assert out is x

    spawn(kernbench, 1, worker)


def test_plain_functions_do_the_same_without_autograd(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x, grad = draw(4, 6, seed=dist.get_rank()), draw(4, 3, seed=5)
        out, saved = primitives.reduce_scatter_fwd(x, primitives.Cut(group, -1))
        assert out.tolist() == REDUCE_SCATTER_LAST(x, group).tolist()
        assert primitives.reduce_scatter_bwd(saved, grad).tolist() == GATHER(grad, group).tolist()

    spawn(kernbench, 2, worker)


# Helpers


def test_division() -> None:
    assert divide(8, 2) == 4
    for function in (divide, ensure_divisibility):
        with pytest.raises(AssertionError, match=r"^7 is not divisible by 2\n"):
            function(7, 2)
    utility = VocabUtility
    assert utility.vocab_range_from_global_vocab_size(32, 3, 4) == (24, 32)
    assert utility.vocab_range_from_per_partition_vocab_size(8, 1, 4) == (8, 16)


def test_splitting(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = draw(3, 8, seed=1)
        views, copies = (split_tensor_along_last_dim(x, 4, each) for each in (False, True))
        assert [each.shape for each in views] == [(3, 2)] * 4
        assert [each.is_contiguous() for each in (*views, *copies)] == [False] * 4 + [True] * 4
        mine = split_tensor_into_1d_equal_chunks(x, tp_group=group)
        assert mine.tolist() == x.reshape(-1)[12 * dist.get_rank() :][:12].tolist()
        new = split_tensor_into_1d_equal_chunks(x, new_buffer=True, tp_group=group)
        assert new.data_ptr() != mine.data_ptr()
        assert gather_split_1d_tensor(new, group).tolist() == x.reshape(-1).tolist()

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize("size", [1, 2])
def test_data_from_the_first_rank(kernbench: Kernbench, size: int) -> None:
    def worker(group: Group) -> None:
        data = {"text": torch.arange(6).reshape(2, 3), "mask": torch.ones(2, dtype=torch.int64)}
        mine = data if dist.get_rank(group) == 0 else None
        got = broadcast_data(["text", "mask"], mine, torch.int64, group)
        assert {key: value.tolist() for key, value in got.items()} == {
            "text": [[0, 1, 2], [3, 4, 5]],
            "mask": [1, 1],
        }
        assert all(value.is_cuda for value in got.values())
        if size == 1:
            with pytest.raises(AssertionError) as caught:
                broadcast_data(["text"], mine, torch.float32, group)
            assert str(caught.value).splitlines()[0] == (
                "text has data type torch.int64 which is different than torch.float32"
            )

    spawn(kernbench, size, worker)
