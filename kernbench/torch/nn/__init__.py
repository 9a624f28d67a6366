"""`torch.nn`."""

from kernbench.nn.containers import *  # noqa: F403 - names only
from kernbench.nn.layers import *  # noqa: F403
from kernbench.nn.module import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.tensors.operands import guard as _guard
from kernbench.torch.nn import attention, functional, init, modules, parallel, utils

__all__ = ["attention", "functional", "init", "modules", "parallel", "utils"]

__getattr__ = _not_simulated("torch.nn")
_guard(globals(), imported=True)
