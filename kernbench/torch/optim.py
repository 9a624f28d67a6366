"""`torch.optim`."""

from kernbench.nn.optim import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.optim")
