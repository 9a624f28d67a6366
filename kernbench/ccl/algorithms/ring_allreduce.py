"""The all-reduce of `ring` alone; other operations of a `ccl.yaml` that names it are its own."""

from kernbench.ccl.algorithms.ring import all_reduce

__all__ = ["all_reduce"]
