"""`torch.nn.parallel`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.nn.data_parallel import *  # noqa: F403 - names only

__getattr__ = not_simulated("torch.nn.parallel")
