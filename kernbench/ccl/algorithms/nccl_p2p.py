"""What NCCL makes of sends and receives in one group, each straight to its peer."""

from kernbench.ccl.algorithms.direct import all_to_all, gather, scatter, send_recv

__all__ = ["all_to_all", "gather", "scatter", "send_recv"]
