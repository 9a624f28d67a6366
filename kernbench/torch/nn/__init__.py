"""`torch.nn`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.nn.containers import *  # noqa: F403 - names only
from kernbench.runtime_api.nn.layers import *  # noqa: F403
from kernbench.runtime_api.nn.module import *  # noqa: F403
from kernbench.torch.nn import functional, init, parallel, utils

__all__ = ["functional", "init", "parallel", "utils"]

__getattr__ = not_simulated("torch.nn")
