"""`torch.multiprocessing`."""

from kernbench.runtime_api.multiprocessing import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.processes import *  # noqa: F403

__getattr__ = not_simulated("torch.multiprocessing")
