"""`torch.nn.init`."""

from kernbench.nn.init import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.tensors.operands import guard as _guard

__getattr__ = _not_simulated("torch.nn.init")
_guard(globals(), imported=True)
