"""Room for large tensors: a full device refuses before this computer gives the memory."""

import math
from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.storages import DTYPES, block
from kernbench.tensors.memory import Label

_MAKERS: Final = frozenset(
    f"aten.{prefix}{name}"
    for prefix in ("", "new_")
    for name in ("empty", "empty_permuted", "full", "ones", "rand", "randint", "randn", "zeros")
)
_LARGE: Final = 1 << 26
"""Bytes from which on this computer should not be asked first."""


def place_of_size(func: Any) -> int:
    """Returns which argument of an operation is the size of what it makes; -1 if none is."""
    if str(func._overloadpacket) not in _MAKERS:
        return -1
    names = [argument.name for argument in func._schema.arguments]
    return names.index("size") if "size" in names else -1


def check_room(rank: Rank, place: int, args: Any, kwargs: Any) -> None:
    """Checks that the device has room for a tensor that is about to be made.

    Args:
        place: Which argument is its size.

    Raises:
        DeviceOutOfMemoryError: If it has not.
    """
    size = args[place] if place < len(args) else kwargs["size"]
    elements = math.prod(size)
    if elements * _WIDEST < _LARGE:
        return
    dtype = kwargs.get("dtype") if kwargs else None
    if dtype is None:
        first = args[0]
        dtype = first.dtype if isinstance(first, torch.Tensor) else torch.get_default_dtype()
    nbytes, memory = elements * dtype.itemsize, rank.hbm
    free = math.inf if memory.capacity is None else memory.capacity - memory.allocated
    if nbytes >= _LARGE and nbytes > free and dtype in DTYPES:
        block(rank, memory, nbytes, Label(DTYPES[dtype], tuple(size)))


_WIDEST: Final = 16
"""Bytes of the widest element."""
