"""What NCCL does over its rings: collectives go round them, broadcasts and reduces along them."""

from kernbench.ccl.algorithms.chain import broadcast, reduce
from kernbench.ccl.algorithms.ring import all_gather, all_reduce, reduce_scatter

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]
