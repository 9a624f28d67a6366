"""`torch.utils.checkpoint`."""

from kernbench.autograd.checkpoint import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.utils.checkpoint")
