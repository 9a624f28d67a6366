"""`torch.distributed.device_mesh`: ranks in a grid."""

from kernbench.distributed.device_mesh import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.distributed.device_mesh")
