"""NCCL's grouped sends and receives: each message goes straight to its peer."""

from kernbench.ccl.algorithms.direct import all_to_all, gather, scatter, send_recv

__all__ = ["all_to_all", "gather", "scatter", "send_recv"]
