"""Products of matrices: a tile kernel of our own, or the machine's library."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import kernbench.torch as torch
from kernbench import tl
from kernbench.extend import check_gemm, kernel_output
from kernbench.parallel.config import GemmKernel
from kernbench.parallel.members import refuse


# For PEs only: blocks at the rim are as narrow as what is left, which Triton has no shapes for.
@tl.jit(portable=False)
def _gemm_kernel(
    a: Any,
    b: Any,
    bias: Any,
    c: Any,
    m: int,
    n: int,
    k: int,
    a_strides: tuple[int, int],
    b_strides: tuple[int, int],
    biased: tl.constexpr,
    added: tl.constexpr,
    block: tl.constexpr,
    accumulator: tl.constexpr,
) -> None:
    """Computes one block of `c = a @ b + bias`, or adds it to `c`; `c` is contiguous."""
    top, left = tl.program_id(0) * block, tl.program_id(1) * block
    # Blocks at the rim are narrower, rather than masked: the engines work on what is there.
    rows = top + tl.arange(0, min(block, m - int(top)))
    columns = left + tl.arange(0, min(block, n - int(left)))
    a, b = a + rows[:, None] * a_strides[0], b + columns[None, :] * b_strides[1]
    acc = tl.zeros((*rows.shape, *columns.shape), accumulator)
    for start in range(0, k, block):
        inner = tl.arange(start, min(start + block, k))
        x = tl.load(a + inner[None, :] * a_strides[1])
        y = tl.load(b + inner[:, None] * b_strides[0])
        acc = tl.dot(x, y, acc, "ieee")
    if biased:
        acc = acc + tl.load(bias + columns)[None, :].to(accumulator)
    c = c + (rows[:, None] * n + columns[None, :])
    if added:
        acc = acc + tl.load(c).to(accumulator)
    tl.store(c, acc)


BLOCK: Final = 128
"""Three blocks of float64 take 384 KiB of a PE's memory, which leaves room for the next ones."""


def check_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    whole_width: int | None = None,
) -> None:
    """Refuses operands of `x @ weight.T + bias`, before anything is issued.

    The words are those of the library's product, whoever multiplies in the end.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`.
        bias: `[out]`.
        whole_width: What `in` is of `x`, if only a part of it meets the weight.

    Raises:
        TensorError: If shapes, types or devices do not fit.
    """
    out, width = _matrix("weight", weight)
    shape = x.shape
    rows = (prod(shape[:-1]), shape[-1]) if shape else ()
    check_gemm(x, weight, bias, rows, (whole_width or width, out))


def _matrix(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    shape = tensor.shape
    if len(shape) != 2:
        raise refuse(f"{name} must be a matrix; it has shape {list(shape)}")
    return shape[0], shape[1]


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kernel: GemmKernel,
) -> torch.Tensor:
    """Returns `a @ b + bias`, rounded once; does not wait. The tile kernel is not recorded.

    Args:
        a: `[m, k]`, of any strides.
        b: `[k, n]`, of any strides, so that transposed operands cost no copy.
        bias: `[n]`.
        kernel: Who computes it.

    Raises:
        ParallelError: If there is no such kernel, or it cannot multiply numbers of this type.
        TensorError: If shapes, types or devices do not fit.
    """
    if kernel not in {"tile", "library"}:
        raise refuse(f"kernel={kernel!r}: expected 'tile' or 'library'")
    (m, k), (depth, n) = _matrix("a", a), _matrix("b", b)
    if kernel == "library" and bias is None:
        return torch.matmul(a, b)
    check_gemm(a, b, bias, (m, k), (depth, n))
    if kernel == "library" or not m * n * k:
        return torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)
    if not a.dtype.is_floating_point:
        raise refuse(
            f"kernel='tile' multiplies floating-point numbers; got {a.dtype}",
            hint="kernel='library' takes integers, too",
        )
    if bias is not None:
        # The kernel adds it along the columns, with a stride of 1.
        bias = bias.contiguous()
    c = kernel_output((m, n), a.dtype, a.device)
    _launch(a, b, bias, c, added=False)
    return c


def gemm_into(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Adds `a @ b` to `c`, rounded once; does not wait. Not recorded.

    The tile kernel does it, whoever makes other products: the machine's library has none that adds
    products of 16-bit numbers to float32.

    Args:
        c: `[m, n]`, contiguous, float32 or wider.
        a: `[m, k]`, of any strides.
        b: `[k, n]`, of any strides.

    Raises:
        ParallelError: If `c` is not contiguous or of another shape or type.
        TensorError: If the other shapes, types or devices do not fit.
    """
    (m, k), (depth, n) = _matrix("a", a), _matrix("b", b)
    check_gemm(a, b, None, (m, k), (depth, n))
    check_sum(c, (m, n))
    if m * n * k:
        _launch(a, b, None, c, added=True)


def check_sum(c: torch.Tensor, shape: Sequence[int]) -> None:
    """Refuses a tensor to which products of a shape cannot be added.

    Raises:
        ParallelError: If it is not contiguous, or of another shape or a narrow type.
    """
    if c.shape != tuple(shape) or not c.is_contiguous() or c.dtype is not _accumulator(c.dtype):
        raise refuse(
            f"a product of shape {list(shape)} cannot be added to a tensor of shape "
            f"{list(c.shape)}, strides {list(c.stride())} and type {c.dtype}",
            hint="give a contiguous tensor of float32 or float64, of the shape of the product",
        )


def _launch(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, c: torch.Tensor, *, added: bool
) -> None:
    (m, k), n = a.shape, b.shape[1]
    strides = [(each.stride()[0], each.stride()[1]) for each in (a, b)]
    _gemm_kernel[tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)](
        a, b, a if bias is None else bias, c, m, n, k, *strides,
        biased=bias is not None, added=added, block=BLOCK, accumulator=_accumulator(a.dtype),
    )  # fmt: skip


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
