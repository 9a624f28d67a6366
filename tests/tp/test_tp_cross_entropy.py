"""The loss of a shared vocabulary is the dense one, with and without smoothing."""

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
