"""`torch.testing`."""

from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.runtime_api.testing import *  # noqa: F403 - names only
from kernbench.tensors.operands import guard as _guard

__getattr__ = _not_simulated("torch.testing")
_guard(globals(), imported=True)
