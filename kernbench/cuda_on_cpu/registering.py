"""How what computes operations is given to PyTorch."""

from typing import Final

import torch

from kernbench.cuda_on_cpu import (  # noqa: F401 - each fills the table
    attention,
    ctc,
    recurrent,
    rms_norm,
    shapes,
    sync_batch_norm,
)
from kernbench.cuda_on_cpu.table import FUNCTIONS

_REGISTERED: Final[list[torch.library.Library]] = []
"""What keeps the functions registered, if they are."""


def registered() -> torch.library.Library:
    """Gives PyTorch the functions, once; they stay, since only these operations reach them.

    Returns:
        What keeps them registered.
    """
    if _REGISTERED:
        return _REGISTERED[0]
    library = torch.library.Library("aten", "IMPL")
    _REGISTERED.append(library)
    for name, where, function in FUNCTIONS:
        # `Library.impl` takes no function for `meta` of an operation that a CPU decomposes.
        library.m.impl(name, where, function, False)
    return library
