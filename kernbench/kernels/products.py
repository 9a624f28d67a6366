"""Products of matrices, as one launch each of CUDA's libraries."""

from typing import NamedTuple

from kernbench.hw.library import Library
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
