"""`torch.ops`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.ops import aten

__all__ = ["aten"]

__getattr__ = not_simulated("torch.ops")
