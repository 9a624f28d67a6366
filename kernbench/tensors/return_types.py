"""`torch.return_types`: what operations return that have several results."""

from typing import NamedTuple

from kernbench.tensors.tensor import Tensor


class ValuesAndIndices(NamedTuple):
    """What reductions return that find elements: `torch.return_types.max` and the like."""

    values: Tensor
    indices: Tensor
