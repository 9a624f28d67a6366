"""`torch.cuda.nvtx`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.nvtx import *  # noqa: F403 - names only

__getattr__ = not_simulated("torch.cuda.nvtx")
