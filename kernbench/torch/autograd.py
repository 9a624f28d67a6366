"""`torch.autograd`."""

from kernbench.runtime_api.grad_modes import *  # noqa: F403
from kernbench.runtime_api.gradients.autograd import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.operands import guard as _guard

__getattr__ = not_simulated("torch.autograd")
_guard(globals())
