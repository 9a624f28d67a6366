"""`torch.distributed`."""

from kernbench.distributed.barriers import *  # noqa: F403 - names only; type checkers see each
from kernbench.distributed.coalescing import *  # noqa: F403
from kernbench.distributed.collectives import *  # noqa: F403
from kernbench.distributed.exchanges import *  # noqa: F403
from kernbench.distributed.group_lifetime import *  # noqa: F403
from kernbench.distributed.group_making import *  # noqa: F403
from kernbench.distributed.groups import *  # noqa: F403
from kernbench.distributed.objects import *  # noqa: F403
from kernbench.distributed.p2p import *  # noqa: F403
from kernbench.runtime_api.distributed import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.tensors.operands import guard as _guard
from kernbench.torch.distributed import _functional_collectives, comm_debug, device_mesh, nn

__all__ = ["_functional_collectives", "comm_debug", "device_mesh", "nn"]

__getattr__ = _not_simulated("torch.distributed")
_guard(globals(), imported=True)
