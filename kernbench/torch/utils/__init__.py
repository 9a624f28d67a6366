"""`torch.utils`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.utils import data

__all__ = ["data"]

__getattr__ = not_simulated("torch.utils")
