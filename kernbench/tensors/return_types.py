"""`torch.return_types`: types of the values of operations that return several tensors."""

from typing import NamedTuple

from kernbench.tensors.tensor import Tensor


class ValuesAndIndices(NamedTuple):
    """Result of reductions that find elements, such as `torch.return_types.max`."""

    values: Tensor
    indices: Tensor
