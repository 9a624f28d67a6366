"""`torch.utils`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.utils import checkpoint, data

__all__ = ["checkpoint", "data"]

__getattr__ = not_simulated("torch.utils")
