"""`torch.distributed`."""

from kernbench.runtime_api.distributed import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.distributed import _functional_collectives, comm_debug, device_mesh, nn

__all__ = ["_functional_collectives", "comm_debug", "device_mesh", "nn"]

__getattr__ = not_simulated("torch.distributed")
