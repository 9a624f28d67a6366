"""NCCL's ring algorithms: most collectives go round the rings, broadcast and reduce along them."""

from kernbench.ccl.algorithms.chain import broadcast, reduce
from kernbench.ccl.algorithms.ring import all_gather, all_reduce, reduce_scatter

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]
