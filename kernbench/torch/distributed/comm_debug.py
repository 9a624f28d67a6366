"""`torch.distributed.comm_debug`: counts collectives."""

from kernbench.distributed.comm_debug import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.distributed.comm_debug")
