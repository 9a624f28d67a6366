"""`torch.nn.modules`: where PyTorch defines modules; here only what stands nowhere else."""

from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.torch.nn.modules import module

__all__ = ["module"]

__getattr__ = _not_simulated("torch.nn.modules")
