"""`torch.nn`."""

from kernbench.nn.containers import *  # noqa: F403 - names only
from kernbench.nn.layers import *  # noqa: F403
from kernbench.nn.module import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.nn import functional, init, modules, parallel, utils

__all__ = ["functional", "init", "modules", "parallel", "utils"]

__getattr__ = not_simulated("torch.nn")
