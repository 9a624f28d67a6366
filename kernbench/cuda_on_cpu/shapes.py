"""Shapes of operations that PyTorch computes on a CPU, but has no shapes of without numbers."""

from typing import Any, Final

import torch

from kernbench.cuda_on_cpu.table import implements

_ATEN: Final = torch.ops.aten


@implements("_sample_dirichlet", "Meta")
def _sample_dirichlet_shape(input: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return _ATEN.empty_like(input)
