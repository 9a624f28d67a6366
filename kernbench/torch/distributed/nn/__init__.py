"""`torch.distributed.nn`."""

from kernbench.distributed.differentiable import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.distributed.nn import functional

__all__ = ["functional"]

__getattr__ = not_simulated("torch.distributed.nn")
