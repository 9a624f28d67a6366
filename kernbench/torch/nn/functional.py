"""`torch.nn.functional`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.nn.functional import *  # noqa: F403 - names only
from kernbench.runtime_api.nn.losses import *  # noqa: F403
from kernbench.runtime_api.operands import guard as _guard

__getattr__ = not_simulated("torch.nn.functional")
_guard(globals())
