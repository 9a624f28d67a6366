"""Functions that return several views have one node, whose gradient is one command."""

from collections.abc import Callable

import pytest

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

Pieces = tuple[torch.Tensor, ...]


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("SplitBackward0", lambda x: x.split(1)),
        ("SplitWithSizesBackward0", lambda x: x.split([1, 2, 1])),
        ("SplitBackward0", lambda x: x.chunk(2, dim=1)),
        ("UnbindBackward0", lambda x: x.unbind(1)),
    ],
)
def test_gradients_of_all_pieces_are_joined_by_one_command(
    name: str, cut: Callable[[torch.Tensor], Pieces]
) -> None:
    with RuntimeContext(RunSpec(record="full")) as ctx:
        x = torch.ones(4, 6, device="cuda", requires_grad=True)
        pieces = cut(x * 1)
        (node,) = {piece.grad_fn for piece in pieces}
        assert node is not None
        assert node.name() == name
        grads = [torch.full_like(piece, float(at)) for at, piece in enumerate(pieces)]
        torch.cuda.synchronize()
        before = len(ctx.engine.op_log.records)
        torch.autograd.backward(list(pieces), grads)
        names = [record.name for record in ctx.engine.op_log.records[before:]]
        x_grad = x.grad
        assert x_grad is not None
        joined = "aten::stack" if name == "UnbindBackward0" else "aten::cat"
        assert names == [joined, "aten::mul"]
        for at, piece in enumerate(cut(x_grad)):
            assert bool((piece == float(at)).all())


def test_a_piece_without_gradient_counts_as_zeros() -> None:
    with RuntimeContext(RunSpec(record="full")) as ctx:
        x = torch.ones(3, 2, device="cuda", requires_grad=True)
        first, _ = x.split([1, 2])
        before = len(ctx.engine.op_log.records)
        first.backward(torch.full((1, 2), 5.0, device="cuda"))
        names = [record.name for record in ctx.engine.op_log.records[before:]]
        assert x.grad is not None
        assert x.grad.tolist() == [[5, 5], [0, 0], [0, 0]]
        assert names[-1] == "aten::cat"
