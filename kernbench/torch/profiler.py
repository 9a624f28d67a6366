"""`torch.profiler`."""

from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.profiler import *  # noqa: F403 - names only
from kernbench.runtime_api.profiling import *  # noqa: F403

__getattr__ = not_simulated("torch.profiler")
