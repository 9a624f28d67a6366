"""`torch.multiprocessing`."""

from kernbench.runtime_api.multiprocessing import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated as _not_simulated
from kernbench.runtime_api.processes import *  # noqa: F403

__getattr__ = _not_simulated("torch.multiprocessing")
