"""`torch.distributed`: process groups, collectives, messages and barriers."""

from kernbench.distributed import (
    barriers,
    coalescing,
    collectives,
    exchanges,
    group_lifetime,
    group_making,
    groups,
    objects,
    p2p,
)
from kernbench.distributed.barriers import *  # noqa: F403 - names only
from kernbench.distributed.coalescing import *  # noqa: F403
from kernbench.distributed.collectives import *  # noqa: F403
from kernbench.distributed.device_mesh import DeviceMesh, init_device_mesh
from kernbench.distributed.exchanges import *  # noqa: F403
from kernbench.distributed.functional import functional_all_reduce
from kernbench.distributed.group_lifetime import *  # noqa: F403
from kernbench.distributed.group_making import *  # noqa: F403
from kernbench.distributed.groups import *  # noqa: F403
from kernbench.distributed.objects import *  # noqa: F403
from kernbench.distributed.p2p import *  # noqa: F403
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.distributed.reduce_ops import premul_sum as _make_nccl_premul_sum
from kernbench.distributed.works import Future, Work

__all__ = [
    "DeviceMesh",
    "Future",
    "ReduceOp",
    "Work",
    "_make_nccl_premul_sum",
    "functional_all_reduce",
    "init_device_mesh",
]
__all__ += barriers.__all__
__all__ += coalescing.__all__
__all__ += collectives.__all__
__all__ += exchanges.__all__
__all__ += group_lifetime.__all__
__all__ += group_making.__all__
__all__ += groups.__all__
__all__ += objects.__all__
__all__ += p2p.__all__
