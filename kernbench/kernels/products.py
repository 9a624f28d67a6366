"""Products of matrices, as one launch each of CUDA's libraries."""

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.hw.library import Library
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import DType


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
    library: Library, dtype: DType | None, sizes: Sizes, nbytes: int, *, tf32: bool = False
) -> int:
    """Returns the picoseconds of a batch of products, in one launch.

    Args:
        dtype: Type of the operands; None for one that is not simulated.
        sizes: What is multiplied.
        nbytes: Bytes of all operands and results.
        tf32: Whether float32 may be multiplied as TF32.
    """
    batch, m, n, k = sizes
    name = "" if dtype is None else dtype.machine_name
    if tf32 and name == "fp32" and library.multiplies("tf32"):
        name = "tf32"
    known = name in library.tiles or (min(m, n) > 1 and library.multiplies(name))
    if known and batch * m * n * k:
        return library.matmul(name, m, n, k, nbytes, batch)
    return library.elementwise(nbytes, batch * m * n * k)


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
