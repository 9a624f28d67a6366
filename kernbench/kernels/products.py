"""Products of matrices, as one launch each of CUDA's libraries."""

from collections.abc import Sequence
from math import gcd
from typing import Final, NamedTuple

from kernbench.hw.library import Library
from kernbench.kernels.operands import Operand
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import DType

_ALIGNED: Final = 16
"""Bytes at which rows begin that the library's kernels for 16-bit types load."""


_SMALL: Final = 256
"""Extent of matrices up to which a batch of them reaches a share of the memory's rate."""


class Sizes(NamedTuple):
    """A batch of products of m x k and k x n.

    Attributes:
        batch: Number of products.
        m: Rows of each result.
        n: Columns of each result.
        k: Extent that is summed over.
    """

    batch: int
    m: int
    n: int
    k: int


def duration_ps(
    library: Library,
    dtype: DType | None,
    sizes: Sizes,
    nbytes: int,
    *,
    tf32: bool = False,
    operands: Sequence[Operand] = (),
) -> int:
    """Returns the picoseconds of a batch of products, in one launch.

    Args:
        dtype: Type of the operands; None for one that is not simulated.
        sizes: What is multiplied.
        nbytes: Bytes of all operands and results.
        tf32: Whether float32 may be multiplied as TF32.
        operands: The operands and the result, where it matters how they lie.
    """
    batch, m, n, k = sizes
    name = "" if dtype is None else dtype.machine_name
    if tf32 and name == "fp32" and library.multiplies("tf32"):
        name = "tf32"
    known = name in library.tiles or (min(m, n) > 1 and library.multiplies(name))
    if known and batch * m * n * k:
        return matmul_ps(library, name, sizes, nbytes, operands)
    return library.elementwise(nbytes, batch * m * n * k)


def matmul_ps(
    library: Library, name: str, sizes: Sizes, nbytes: int, operands: Sequence[Operand]
) -> int:
    """Returns the picoseconds of a batch of products on matrix engines.

    Where rows of 16-bit numbers do not begin at multiples of 16 bytes, the library runs kernels of
    older GPUs, which load 4 bytes at once, or 2: `product_by_4` and `product_by_2` of the machine's
    file, each a share of the engines' rate. Many small products reach a share of the memory's:
    `batched`, `batched_odd` if rows do not begin so, `batched_fp32`.

    Args:
        name: Element type as the machine file names it, such as `bf16`.
        sizes: What is multiplied.
        nbytes: Bytes of all operands and results.
        operands: The operands and the result.
    """
    batch, m, n, k = sizes
    found: int = library.matmul(name, m, n, k, nbytes, batch)
    aligned = gcd(_ALIGNED, *map(_row_bytes, operands))
    if batch > 1 and max(m, n, k) <= _SMALL and name in ("bf16", "fp16", "fp32"):
        kernel = "batched" if aligned >= _ALIGNED else "batched_odd"
        price = library.kernel("batched_fp32" if name == "fp32" else kernel)
        found = max(found, streamed_ps(library, price, nbytes))
    if aligned < _ALIGNED and name in ("bf16", "fp16"):
        price = library.kernel("product_by_4" if aligned >= 4 else "product_by_2")
        if price.share < 100:  # else nothing is said of them
            launch: int = library.elementwise(0, 0)
            found = max(found, launch + library.tiled(name, batch, m, n, k, price))
    return found


def _row_bytes(operand: Operand) -> int:
    """Returns from where to where the rows of a matrix are, or its columns; 0 if it has one."""
    steps = [
        step
        for extent, step in zip(operand.shape[-2:], operand.strides[-2:], strict=True)
        if extent > 1
    ]
    return max(steps) * operand.dtype.itemsize if len(steps) == 2 else 0


def grouped_ps(library: Library, dtype: DType | None, groups: Sequence[Sizes], nbytes: int) -> int:
    """Returns the picoseconds of products of groups, in one launch after one that lists them.

    Groups follow one another. Each takes the longer of its tiles on all PEs and of its matrix from
    memory, so that few rows cost the whole matrix, and a group without rows nothing. All together
    take no less than one tile. Constants: `grouped` and `grouped_traffic` of the machine's file.

    Args:
        dtype: Type of the operands; None for one that is not simulated.
        groups: What is multiplied in each group.
        nbytes: Bytes of all operands and results.
    """
    name = "" if dtype is None else dtype.machine_name
    if not library.multiplies(name):
        operations = sum(each.m * each.n * each.k for each in groups)
        return library.elementwise(nbytes, operations)
    price, memory = library.kernel("grouped"), library.kernel("grouped_traffic")
    size = dtype.itemsize if dtype is not None else 0
    total = longest = 0
    for each in groups:
        if not each.m * each.n * each.k:
            continue
        whole, tile = library.tiles_ps(name, each.m, each.n, each.k, price)
        read = each.n * each.k * size * 100 // memory.share
        total += max(whole, library.elementwise(read, 0) - library.elementwise(0, 0))
        longest = max(longest, tile)
    return streamed_ps(library, price, 0) + max(total, longest)
