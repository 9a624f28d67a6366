"""Reduce operations of PyTorch, as this package calls them."""

from typing import Any, Final

import torch
import torch.distributed as dist

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.distributed.works import unseen
from kernbench.ccl.operations import Reduction
from kernbench.distributed.reduce_ops import ReduceOp

_KINDS: Final = dist.ReduceOp.RedOpType
_OPS: Final[dict[Any, Reduction]] = {
    getattr(_KINDS, name): getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


def reduction_of(op: Any) -> Any:
    """Returns what this package calls a reduce operation of PyTorch.

    Args:
        op: A `ReduceOp`, or one of its kinds; `PREMUL_SUM` by itself lacks the factor that
            `_make_nccl_premul_sum` gives it, and is refused by what is called with it.
    """
    found = _OPS.get(getattr(op, "op", op))
    if found is not None:
        return found
    if type(op) is not dist.ReduceOp:
        return ReduceOp.PREMUL_SUM
    _, factor = op.__getstate__()  # as it is pickled; nothing else tells the factor
    if isinstance(factor, torch.Tensor):
        if not this_rank().data:
            return ReduceOp.PREMUL_SUM(1.0)  # by any factor it takes as long
        with unseen():  # a device reads it
            factor = torch.ops.aten._local_scalar_dense(factor)
    return ReduceOp.PREMUL_SUM(factor)
