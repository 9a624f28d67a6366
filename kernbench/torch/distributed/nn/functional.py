"""`torch.distributed.nn.functional`: collectives with a gradient."""

from kernbench.distributed.differentiable import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.distributed.nn.functional")
