"""`torch.nn.modules.module`: hooks of all modules of a rank."""

from kernbench.nn.hooks import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.nn.modules.module")
