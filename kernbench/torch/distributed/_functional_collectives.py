"""Collectives that return their result, as `torch.distributed._functional_collectives`."""

from kernbench.runtime_api.distributed import functional_all_reduce as all_reduce

__all__ = ["all_reduce"]
