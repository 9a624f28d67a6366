"""Operations that move elements, against numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext


def test_joining(device: str) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3.0).reshape(1, 3)
    x, y = torch.tensor(a, device=device), torch.tensor(b, device=device)
    for ours, theirs in (
        (torch.cat([x, y]), np.concatenate([a, b])),
        (torch.cat((x, x, x), dim=-1), np.concatenate([a, a, a], -1)),
        (torch.cat([torch.zeros(0, device=device), x]), a),
        (torch.concat([x.T, x.T], 1), np.concatenate([a.T, a.T], 1)),
        (torch.stack([x, x]), np.stack([a, a])),
        (torch.stack([x, x], -1), np.stack([a, a], -1)),
        (torch.hstack([x, x]), np.hstack([a, a])),
        (torch.hstack([y[0], y[0]]), np.hstack([b[0], b[0]])),
        (torch.vstack([y[0], x]), np.vstack([b[0], a])),
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    mixed = torch.cat([x.int(), y])
    assert mixed.dtype is torch.float64
    out = torch.empty(3, 3, dtype=torch.float64, device=device)
    assert torch.cat([x, y], out=out) is out
    np.testing.assert_array_equal(out.numpy(), np.concatenate([a, b]))


def test_repeating_turning_and_cutting(device: str) -> None:
    a = np.arange(12.0).reshape(3, 4)
    x = torch.tensor(a, device=device)
    for ours, theirs in (
        (x.repeat(2, 1), np.tile(a, (2, 1))),
        (x.repeat(2, 1, 3), np.tile(a, (2, 1, 3))),
        (x.repeat_interleave(2), a.repeat(2)),
        (x.repeat_interleave(2, dim=1), a.repeat(2, 1)),
        (x.flip(0), np.flip(a, 0)),
        (torch.flip(x, [0, 1]), np.flip(a)),
        (x.roll(1), np.roll(a, 1)),
        (x.roll((1, -1), (0, 1)), np.roll(a, (1, -1), (0, 1))),
        (torch.tril(x), np.tril(a)),
        (torch.triu(x, 1), np.triu(a, 1)),
        (x.flip(0)[:0], a[:0]),
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs)
        assert ours.numel() == 0 or ours.untyped_storage() is not x.untyped_storage()


@pytest.mark.parametrize(
    ("operation", "kind", "message"),
    [
        (lambda x: torch.cat([]), ValueError, "expected a non-empty list of Tensors"),
        (lambda x: torch.cat([x, x[:, :2]]), RuntimeError, "Sizes of tensors must match except"),
        (lambda x: torch.cat([x, x[0]]), RuntimeError, "Sizes of tensors must match except"),
        (lambda x: torch.cat([x.sum()]), RuntimeError, "zero-dimensional tensor"),
        (lambda x: torch.cat([x, x.cuda()]), RuntimeError, "on the same device"),
        (lambda x: torch.stack([]), RuntimeError, "stack expects a non-empty TensorList"),
        (lambda x: torch.stack([x, x[0]]), RuntimeError, r"got \[3, 4\] at entry 0 and \[4\] at"),
        (lambda x: x.repeat(2), RuntimeError, "can not be smaller than number of dimensions"),
        (lambda x: x.roll((1, 2), 0), RuntimeError, "shifts and dimensions must align"),
        (lambda x: x.roll((1, 2)), RuntimeError, "shifts and dimensions must align"),
        (lambda x: torch.tril(x[0]), RuntimeError, "must have at least 2 dimensions"),
        (lambda x: torch.cat([x, x], out=x), RuntimeError, "doesn't match the broadcast shape"),
        (lambda x: x.index_select(0, torch.zeros(1, 1).long()), IndexError, "to be a vector"),
    ],
)
def test_mistakes(
    ctx: RuntimeContext, operation: Callable[..., Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        operation(torch.ones(3, 4))
    assert "test_shaping.py" in str(caught.value)


def test_a_gather_costs_what_it_moves_and_not_its_table(ctx: RuntimeContext) -> None:
    table = torch.zeros(1 << 16, 64, device="cuda")
    rows = torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    host = ctx.main.host
    for by_key in (True, False):
        before = host.clock
        _ = table[rows] if by_key else table.index_select(0, rows)
        torch.cuda.synchronize()
        assert host.clock - before < 2_000_000 + 1_010_000
