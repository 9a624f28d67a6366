"""`torch.nn.parallel`."""

from kernbench.data_parallel.distributed_data_parallel import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated as _not_simulated

__getattr__ = _not_simulated("torch.nn.parallel")
