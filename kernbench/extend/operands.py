"""Checks of what operations are given, before anything is issued."""

from kernbench.memory import Array
from kernbench.operations.linalg import check_gemm
from kernbench.operations.shaping import check_index, checked
from kernbench.tensors.operands import guard

__all__ = ["check_gemm", "check_index", "checked_indices", "guard"]


def checked_indices(name: str, indices: Array, extent: int, dim: int) -> Array:
    """Returns indices of a dimension; for functions that `fused` runs.

    Args:
        name: Of the operation, as reports show it.
        indices: Whole numbers, of any shape.
        extent: Of the dimension.
        dim: Which dimension that is, as reports show it.

    Raises:
        IndexOutOfBoundsError: If one of them is below 0, or not below the extent (M1).
    """
    return checked(name, indices, extent, dim, code="M1")
