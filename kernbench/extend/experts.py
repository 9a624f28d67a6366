"""What mixtures of experts need: products by group, given routings, and facts for reports."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.autograd.function import Function
from kernbench.distributed import exchanges
from kernbench.hw.library import Library
from kernbench.kernels.operands import numel
from kernbench.kernels.prices import Operands, Price
from kernbench.kernels.products import Sizes, grouped_ps
from kernbench.memory import Array
from kernbench.operations.fused import widened
from kernbench.process.process import current_process
from kernbench.routing import Routing
from kernbench.runtime_api.tensor_methods import Tensor
from kernbench.tensors.errors import TensorError
from kernbench.tensors.grad_modes import is_grad_enabled
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import run, same_device

_NAME = "aten::_grouped_mm"


class _Grouped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = sizes
        ctx.save_for_backward(x, weights)
        return _rows(x, weights, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        of_x, of_weights, _ = ctx.needs_input_grad
        return (
            _rows(grad, weights.transpose(1, 2), ctx.sizes) if of_x else None,
            _columns(x, grad, ctx.sizes) if of_weights else None,
            None,
        )


def grouped_mm(x: Tensor, weights: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the products of groups of rows with a matrix each, in one launch; does not wait.

    The time is that of each group's tiles, or of its matrix from memory: see
    `kernels.products.grouped_ps`. A group without rows takes none.

    Args:
        x: `[rows, k]`, the groups one after the other.
        weights: `[groups, k, n]`.
        sizes: Rows of each group, as the host knows them.

    Returns:
        `[rows, n]`.

    Raises:
        TensorError: If shapes, types or devices do not fit.
    """
    fits = x.ndim == 2 and weights.ndim == 3 and x.dtype is weights.dtype
    if not fits or x.shape[1] != weights.shape[1] or len(sizes) != weights.shape[0]:
        raise TensorError(
            f"grouped_mm: {list(x.shape)}, {x.dtype}, with {list(weights.shape)}, {weights.dtype}, "
            f"for {len(sizes)} groups: expected [rows, k] and [groups, k, n] of one type"
        )
    if sum(sizes) != x.shape[0] or min(sizes, default=0) < 0:
        raise TensorError(f"grouped_mm: groups {list(sizes)} do not add up to {x.shape[0]} rows")
    if not is_grad_enabled():
        return _rows(x, weights, tuple(sizes))
    out: Tensor = _Grouped.apply(x, weights, tuple(sizes))
    return out


def _rows(x: Tensor, weights: Tensor, sizes: tuple[int, ...]) -> Tensor:
    k, n = weights.shape[1:]

    def multiply(left: Array, right: Array) -> Array:
        out, start = np.empty((len(left), n), left.dtype), 0
        for rows, matrix in zip(sizes, right, strict=True):
            np.matmul(left[start : start + rows], matrix, out=out[start : start + rows])
            start += rows
        return out

    groups = [Sizes(1, rows, n, k) for rows in sizes]
    return _issued(multiply, (x, weights), (x.shape[0], n), groups)


def _columns(x: Tensor, grad: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Returns the gradient of the matrices, `[groups, k, n]`."""
    k, n = x.shape[1], grad.shape[1]

    def multiply(left: Array, right: Array) -> Array:
        out, start = np.empty((len(sizes), k, n), left.dtype), 0
        for rows, matrix in zip(sizes, out, strict=True):
            np.matmul(left[start : start + rows].T, right[start : start + rows], out=matrix)
            start += rows
        return out

    groups = [Sizes(1, k, n, rows) for rows in sizes]
    return _issued(multiply, (x, grad), (len(sizes), k, n), groups)


def _issued(
    multiply: Callable[[Array, Array], Array],
    operands: tuple[Tensor, Tensor],
    shape: tuple[int, ...],
    groups: Sequence[Sizes],
) -> Tensor:
    process = current_process()
    device, site = same_device(_NAME, operands), process.call_site()
    out = new_tensor(process, shape, operands[0].dtype, device, site)
    left, right, target = operands[0].window, operands[1].window, out.window

    def effect() -> None:
        target.adopt(multiply(widened(left), widened(right)))

    run(process, _NAME, operands, out, effect, price=Price(_grouped, tuple(groups)), site=site)
    return out


def _grouped(library: Library, reads: Operands, writes: Operands, groups: tuple[Sizes, ...]) -> int:
    nbytes = sum([numel(each) * each.dtype.itemsize for each in (*reads, *writes)])
    return grouped_ps(library, reads[0].dtype, groups, nbytes)


def routing() -> Routing | None:
    """Returns the routing that the run names (`--routing`); None: programs compute their own.

    Raises:
        NoContextError: Outside of any context.
    """
    found: Routing | None = current_process().ctx.routing
    return found


def note_load(
    *,
    layer: int,
    step: int,
    direction: str,
    ranks: Sequence[int],
    by_expert: Sequence[int],
    dropped: int | None = 0,
    padded: int | None = 0,
    sent: int = 0,
) -> None:
    """Notes what the calling rank gets in an exchange of tokens, for `--breakdown` and `--json`.

    Args:
        layer: Number of the layer.
        step: Number of the layer's call on this rank.
        direction: `forward` or `backward`.
        ranks: Global ranks that share the experts.
        by_expert: Rows for each expert of the calling rank.
        dropped: Choices of its tokens that a capacity cut off; None if the host does not know it.
        padded: Rows without a choice that it gets, likewise.
        sent: Bytes that it sends to other ranks: rows for their experts, and rows back.

    Raises:
        NoContextError: Outside of any context.
    """
    facts = layer, step, direction, ranks, by_expert, dropped, padded, sent
    exchanges.note_load(current_process(), *facts)
