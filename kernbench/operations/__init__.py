"""Operations on tensors, as `torch` has them, and `torch.cuda`."""

from kernbench.tensors.operands import read_in_cpp

read_in_cpp(__name__)
