"""The loss of a shared vocabulary is the dense one, with and without smoothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tp_cases import (
    DTYPES,
    SIZES,
    assert_close,
    assert_same_everywhere,
    draw,
    grad_of,
    leaf,
    part,
    spawn,
)

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.utils import Group

S, B, V = 5, 2, 16


def dense(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Returns the formula of the whole vocabulary, of plain operations."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    logs = torch.nn.functional.log_softmax(wide, -1)
    chosen = logs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    share = smoothing * V / (V - 1)
    return -(1 - share) * chosen - share * logs.mean(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_loss_is_the_dense_one(
    kernbench: Kernbench, size: int, dtype: torch.dtype, smoothing: float
) -> None:
    def worker(group: Group) -> None:
        whole = leaf(S, B, V, seed=1, dtype=dtype)
        target = torch.arange(S * B, device="cuda").reshape(S, B) * 3 % V
        seed = draw(S, B, seed=2, dtype=dtype if dtype is torch.float64 else torch.float32)
        expected = dense(whole, target, smoothing)
        expected.backward(seed)
        logits = part(whole, group, -1).requires_grad_()
        before = logits.detach().clone()
        loss = vocab_parallel_cross_entropy(logits, target, smoothing, group)
        loss.backward(seed)
        assert loss.dtype is expected.dtype
        assert_close(loss, expected)
        assert_same_everywhere(loss, group)
        assert_close(grad_of(logits), part(grad_of(whole), group, -1))
        assert logits.tolist() == before.tolist()

    spawn(kernbench, size, worker)


def test_smoothing_gives_each_other_class_its_share(kernbench: Kernbench) -> None:
    """Against PyTorch's loss with probabilities for targets, written out."""

    def worker(group: Group) -> None:
        whole = draw(1, 1, V, seed=1, dtype=torch.float64)
        shares = torch.full((V,), 0.3 / (V - 1), dtype=torch.float64, device="cuda")
        shares[3] = 0.7
        expected = -(torch.nn.functional.log_softmax(whole, -1) * shares).sum(-1)
        target = torch.full((1, 1), 3, device="cuda", dtype=torch.int64)
        loss = vocab_parallel_cross_entropy(part(whole, group, -1), target, 0.3, group)
        assert_close(loss, expected)

    spawn(kernbench, 4, worker)


@pytest.mark.parametrize(("size", "smoothing", "count"), [(1, 0.1, 0), (2, 0.0, 3), (2, 0.1, 4)])
def test_messages(kernbench: Kernbench, size: int, smoothing: float, count: int) -> None:
    def worker(group: Group) -> None:
        logits = leaf(S, B, V // size, seed=1)
        target = torch.zeros(S, B, dtype=torch.int64, device="cuda")
        with CommDebugMode() as mode:
            loss = vocab_parallel_cross_entropy(logits, target, smoothing, group)
            loss.sum().backward()
        assert mode.get_comm_counts() == ({"all_reduce": count} if count else {})

    spawn(kernbench, size, worker)


def test_large_logits_do_not_overflow(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        whole = torch.zeros(1, 1, 4, device="cuda")
        whole[0, 0, 3] = 10_000
        for index, expected in ((3, 0.0), (0, 10_000.0)):
            target = torch.full((1, 1), index, device="cuda", dtype=torch.int64)
            loss = vocab_parallel_cross_entropy(part(whole, group, -1), target, 0.0, group)
            assert loss.item() == expected

    spawn(kernbench, 2, worker)


def test_a_second_backward_is_refused(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        target = torch.zeros(S, B, dtype=torch.int64, device="cuda")
        loss = vocab_parallel_cross_entropy(leaf(S, B, V, seed=1), target, 0.0, group)
        loss.backward(torch.ones_like(loss))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward(torch.ones_like(loss))

    spawn(kernbench, 2, worker)


def test_errors(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        logits, target = draw(S, B, V, seed=1), torch.zeros(S, B, dtype=torch.int64, device="cuda")

        def text(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> str:
            with pytest.raises(AssertionError) as caught:
                vocab_parallel_cross_entropy(logits, target, smoothing, group)
            return str(caught.value).splitlines()[0]

        for wrong in (-0.1, 1.0):
            expected = f"label_smoothing must be in [0, 1); got {wrong}"
            assert text(logits, target, wrong) == expected
        assert text(logits, target[1:], 0.0) == (
            "a target of shape [4, 2] does not fit logits of shape [5, 2, 16]"
        )

    spawn(kernbench, 2, worker)


def oracle(
    whole: np.ndarray[Any, Any], target: np.ndarray[Any, Any], eps: float, dout: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns loss and gradient as Megatron-Core has them, in float64.

    A negative target takes nothing from the logarithm, and from the gradient.
    """
    classes = whole.shape[-1]
    shifted = whole - whole.max(-1, keepdims=True)
    lse = np.log(np.exp(shifted).sum(-1))
    chosen = target[..., None] == np.arange(classes)
    picked = np.where(target < 0, 0.0, (shifted * chosen).sum(-1))
    share = eps * classes / (classes - 1)
    loss = (1 - share) * (lse - picked) + share * (lse - shifted.mean(-1))
    softmax = np.exp(shifted - lse[..., None])
    return loss, dout * (softmax - (1 - share) * chosen - share / classes)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("order", [[0], [2, 0, 1]])
def test_a_negative_target_names_no_class(
    kernbench: Kernbench, order: list[int], smoothing: float
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        # The ranks of the group stand in another order than those of the world.
        group = dist.new_group(order, sort_ranks=False) if len(order) > 1 else dist.group.WORLD
        assert group is not None
        whole = draw(4, 1, 6, seed=1, dtype=torch.float64)
        target = torch.tensor([[5], [-100], [0], [-1]], device="cuda")
        logits = part(whole, group, -1).requires_grad_()
        loss = vocab_parallel_cross_entropy(logits, target, smoothing, group)
        loss.backward(torch.full_like(loss, 1.5))
        values = whole.cpu().numpy()
        expected, grad = oracle(values, target.cpu().numpy(), smoothing, 1.5)
        np.testing.assert_allclose(loss.detach().cpu().numpy(), expected, rtol=1e-12)
        mine = np.split(grad, len(order), -1)[dist.get_rank(group)]
        np.testing.assert_allclose(grad_of(logits).cpu().numpy(), mine, atol=1e-12)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=len(order))


def test_a_loss_mask_leaves_negative_targets_out(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        found = []
        for ignored in (-100, 0):
            logits = part(draw(3, 1, 8, seed=1), group, -1).requires_grad_()
            target = torch.tensor([[3], [ignored], [7]], device="cuda")
            mask = torch.tensor([[1.0], [0.0], [1.0]], device="cuda")
            losses = vocab_parallel_cross_entropy(logits, target, 0.0, group)
            loss = (losses * mask).sum() / mask.sum()
            loss.backward()
            found.append((loss.item(), grad_of(logits).tolist()))
        assert found[0] == found[1]

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2])
def test_its_peak_is_at_most_1_6_copies_of_the_logits_in_float32(
    kernbench: Kernbench, size: int, dtype: torch.dtype, smoothing: float
) -> None:
    """Beside the logits themselves, and with the gradient that backward returns."""

    def worker(group: Group) -> None:
        logits = leaf(16, 4, 512, seed=1, dtype=dtype)
        target = torch.full((16, 4), 3, device="cuda")
        copy = logits.numel() * 4
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = vocab_parallel_cross_entropy(logits, target, smoothing, group)
        forward = torch.cuda.max_memory_allocated() - before
        kept = torch.cuda.memory_allocated() - before
        loss.backward(torch.ones_like(loss))
        peak = torch.cuda.max_memory_allocated() - before
        assert copy <= forward <= peak <= 1.6 * copy
        assert kept < 0.1 * copy

    spawn(kernbench, size, worker)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_time_is_that_of_its_passes_over_the_logits(
    kernbench: Kernbench, dtype: torch.dtype
) -> None:
    """Ten passes of float32 in Megatron-Core, whose kernels are not fused either."""

    def worker(group: Group) -> None:
        def time(run: Callable[[], object]) -> float:
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            found: float = begin.elapsed_time(end)
            return found

        logits = leaf(2048, 2, 16384, seed=1, dtype=dtype)
        target = torch.full((2048, 2), 3, device="cuda")
        wide = torch.empty(2048, 2, 16384, device="cuda")
        one = time(wide.zero_)

        def step() -> None:
            loss = vocab_parallel_cross_entropy(logits, target, 0.0, group)
            loss.backward(torch.ones_like(loss))

        assert 9 < time(step) / one < 15

    spawn(kernbench, 2, worker, data=False)


def test_a_graph_that_is_kept_gives_the_same_gradient_again(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        logits = leaf(S, B, V, seed=1)
        target = torch.zeros(S, B, dtype=torch.int64, device="cuda")
        loss = vocab_parallel_cross_entropy(logits, target, 0.1, group)
        loss.backward(torch.ones_like(loss), retain_graph=True)
        first = grad_of(logits).tolist()
        logits.grad = None
        loss.backward(torch.ones_like(loss))
        assert grad_of(logits).tolist() == first

    spawn(kernbench, 2, worker)
