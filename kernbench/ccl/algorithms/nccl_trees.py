"""What NCCL does over its trees: nothing but all-reduces."""

from kernbench.ccl.algorithms.double_binary_tree import all_reduce

__all__ = ["all_reduce"]
