"""`torch.cuda`."""

from kernbench.graphs.callables import *  # noqa: F403
from kernbench.graphs.cuda_graphs import *  # noqa: F403
from kernbench.operations.cuda import *  # noqa: F403 - names only
from kernbench.operations.cuda_rng import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.cuda import nvtx

__all__ = ["nvtx"]

__getattr__ = not_simulated("torch.cuda")
