"""Kernels that work on lists of tensors: `_foreach_*`, fused optimisers, copies of FSDP.

CUDA runs them by `multi_tensor_apply`, with as many tensors and chunks in a launch as fit into its
arguments (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh).
"""

from collections.abc import Sequence
from typing import Final

from kernbench.hw.library import Library
from kernbench.kernels.traffic import streamed_ps

_CHUNK: Final = 65536
"""Elements of a tensor that one block works on: `kChunkSize`."""

_BLOCKS: Final = 320
"""Chunks of one launch: `depth_to_max_blocks`."""

_TENSORS: Final = (110, 64, 48, 36, 30)
"""Tensors of one launch, by how many lists there are: `depth_to_max_tensors`."""


def launches_of(sizes: Sequence[int], lists: int) -> int:
    """Returns how many launches `multi_tensor_apply` makes.

    Args:
        sizes: Elements of the tensors of one list.
        lists: How many lists go through the kernel together.
    """
    most = _TENSORS[min(max(lists, 1), len(_TENSORS)) - 1]
    chunks = sum([-(-size // _CHUNK) for size in sizes])
    return max(1, -(-chunks // _BLOCKS), -(-len(sizes) // most))


def duration_ps(
    library: Library,
    kernel: str,
    sizes: Sequence[int],
    nbytes: int,
    *,
    lists: int,
    passes: int,
    reduces: bool = False,
) -> int:
    """Returns the picoseconds of an operation on lists.

    Args:
        kernel: Name of the kernel: `foreach`, or `foreach_copy`.
        sizes: Elements of the tensors of one list.
        nbytes: Bytes that are read and written.
        lists: How many lists go through the kernel together.
        passes: How often each element is read or written.
        reduces: Whether a kernel more adds what the blocks have found.
    """
    price = library.kernel(kernel)
    operations = price.element * passes * sum(sizes)
    launches = launches_of(sizes, lists)
    found = streamed_ps(library, price, nbytes, operations, launches=launches)
    return found + library.elementwise(0, 0) if reduces else found
