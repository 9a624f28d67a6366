"""`torch.optim`."""

from kernbench.optim.algorithms import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.tensors.operands import guard as _guard
from kernbench.torch.optim import lr_scheduler

__all__ = ["lr_scheduler"]

__getattr__ = _not_simulated("torch.optim")
_guard(globals(), imported=True)
