"""Gradients through collectives, against those of the same sums on one rank."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.distributed.nn.functional as dnn
from kernbench.testing import Kernbench

N: Final = 3
ROWS: Final = 4

Values = np.ndarray[Any, np.dtype[np.float64]]


def _run(kernbench: Kernbench, worker: Callable[[int], Any], nprocs: int = N) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def start(rank: int) -> None:
        dist.init_process_group("nccl")
        found[rank] = worker(rank)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=nprocs)
    return found


def _input(rank: int) -> Values:
    return np.sin(np.arange(N * ROWS, dtype=np.float64) + 5 * rank)


def _weight(rank: int, place: int, count: int) -> Values:
    weight: Values = np.cos(np.arange(count) * 3.0 + 7 * rank + 11 * place)
    return weight


# What each rank calls, and its outputs from the inputs of all ranks, with numpy.


def _all_reduce(x: torch.Tensor, rank: int) -> Any:
    return [dnn.all_reduce(x)]


def _all_reduce_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.sum(inputs, 0)]


def _average(x: torch.Tensor, rank: int) -> Any:
    return [dnn.all_reduce(x, dist.ReduceOp.AVG)]


def _average_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.sum(inputs, 0) / N]


def _reduce(x: torch.Tensor, rank: int) -> Any:
    y = dnn.reduce(x, 1)
    return [y] if rank == 1 else [y * 0]


def _reduce_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.sum(inputs, 0) * (rank == 1)]


def _broadcast(x: torch.Tensor, rank: int) -> Any:
    return [dnn.broadcast(x, 2)]


def _broadcast_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [inputs[2]]


def _all_gather(x: torch.Tensor, rank: int) -> Any:
    return dnn.all_gather(x)


def _all_gather_model(rank: int, inputs: list[Values]) -> list[Values]:
    return inputs


def _all_gather_base(x: torch.Tensor, rank: int) -> Any:
    return [dnn._all_gather_base(x.new_empty(N * x.numel()), x)]


def _all_gather_base_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.concatenate(inputs)]


def _gather(x: torch.Tensor, rank: int) -> Any:
    return dnn.gather(x, 1)


def _gather_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [each * (rank == 1) for each in inputs]


def _scatter(x: torch.Tensor, rank: int) -> Any:
    return [dnn.scatter(x.chunk(N), 1)]


def _scatter_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [inputs[1].reshape(N, -1)[rank]]


def _reduce_scatter(x: torch.Tensor, rank: int) -> Any:
    return [dnn.reduce_scatter(x.new_empty(ROWS), x.chunk(N))]


def _reduce_scatter_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.sum(inputs, 0).reshape(N, -1)[rank]]


def _all_to_all(x: torch.Tensor, rank: int) -> Any:
    return dnn.all_to_all([x.new_empty(ROWS) for _ in range(N)], x.chunk(N))


def _all_to_all_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [each.reshape(N, -1)[rank] for each in inputs]


SPLITS: Final = [2, 4, 6]


def _all_to_all_single(x: torch.Tensor, rank: int) -> Any:
    came = [SPLITS[rank]] * N
    return [dnn.all_to_all_single(x.new_empty(sum(came)), x, came, SPLITS)]


def _all_to_all_single_model(rank: int, inputs: list[Values]) -> list[Values]:
    return [np.concatenate([np.split(each, [2, 6])[rank] for each in inputs])]


CASES: Final = [
    (_all_reduce, _all_reduce_model),
    (_average, _average_model),
    (_reduce, _reduce_model),
    (_broadcast, _broadcast_model),
    (_all_gather, _all_gather_model),
    (_all_gather_base, _all_gather_base_model),
    (_gather, _gather_model),
    (_scatter, _scatter_model),
    (_reduce_scatter, _reduce_scatter_model),
    (_all_to_all, _all_to_all_model),
    (_all_to_all_single, _all_to_all_single_model),
]


def _loss(model: Callable[[int, list[Values]], list[Values]], inputs: list[Values]) -> float:
    """Returns the sum of all ranks' losses."""
    return float(
        sum(
            (_weight(rank, place, out.size) * out).sum()
            for rank in range(N)
            for place, out in enumerate(model(rank, inputs))
        )
    )


@pytest.mark.parametrize(("call", "model"), CASES)
def test_gradients_are_those_of_the_sum_of_all_losses(
    kernbench: Kernbench, call: Any, model: Any
) -> None:
    def worker(rank: int) -> tuple[list[Any], Any]:
        x = torch.tensor(_input(rank), device="cuda", requires_grad=True)
        # A view of something computed: gradients arrive in any layout.
        outputs = call((x * 1).reshape(-1), rank)
        loss = torch.zeros((), dtype=torch.float64, device="cuda")
        for place, out in enumerate(outputs):
            assert out.requires_grad
            weight = torch.tensor(_weight(rank, place, out.numel()), device="cuda")
            loss = loss + (weight * out).sum()
        loss.backward()
        assert x.grad is not None
        return [np.asarray(out.detach()) for out in outputs], np.asarray(x.grad)

    inputs = [_input(rank) for rank in range(N)]
    found = _run(kernbench, worker)
    for rank, (outputs, grad) in found.items():
        for out, expected in zip(outputs, model(rank, inputs), strict=True):
            np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
        # The models are linear: the difference of two losses is the gradient.
        for at in range(grad.size):
            moved = [each.copy() for each in inputs]
            moved[rank][at] += 1
            slope = _loss(model, moved) - _loss(model, inputs)
            np.testing.assert_allclose(grad[at], slope, rtol=1e-9, atol=1e-9)


def test_in_a_group(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        group = dist.new_group([1, 2])
        if rank == 0:
            return None
        x = torch.full((2,), float(rank), device="cuda", requires_grad=True)
        y = dnn.broadcast(dnn.all_reduce(x, group=group) * rank, 2, group)
        y.sum().backward()
        assert x.grad is not None
        return y.tolist(), x.grad.tolist()

    # y = 2 (x1 + x2) on both ranks: each loss has a slope of 2 for each of the two inputs.
    assert _run(kernbench, worker) == {0: None, 1: ([6, 6], [4, 4]), 2: ([6, 6], [4, 4])}


def test_without_gradients_nothing_is_recorded(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(2, device="cuda")
        assert not dnn.all_reduce(x).requires_grad
        with torch.no_grad():
            assert not dnn.all_reduce(x.requires_grad_()).requires_grad
        assert x.tolist() == [1, 1]

    _run(kernbench, worker)
