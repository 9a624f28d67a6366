"""`torch.autograd.function`."""

from kernbench.autograd.function import Function, once_differentiable
from kernbench.runtime_api.namespace import not_simulated

__all__ = ["Function", "once_differentiable"]
__getattr__ = not_simulated("torch.autograd.function")
