"""`torch.autograd`."""

from kernbench.autograd.autograd import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.tensors.grad_modes import *  # noqa: F403
from kernbench.tensors.operands import guard as _guard
from kernbench.torch.autograd import function, graph

__all__ = ["function", "graph"]

__getattr__ = _not_simulated("torch.autograd")
_guard(globals(), imported=True)
