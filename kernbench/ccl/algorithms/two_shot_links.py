"""The two-shot reductions, without the broadcast: where links are many, `split` is made for it."""

from kernbench.ccl.algorithms.two_shot import all_reduce, reduce

__all__ = ["all_reduce", "reduce"]
