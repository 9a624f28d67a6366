"""NCCL's tree algorithm, which NCCL uses for all-reduce only."""

from kernbench.ccl.algorithms.double_binary_tree import all_reduce

__all__ = ["all_reduce"]
