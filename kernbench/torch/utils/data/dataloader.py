"""`torch.utils.data.dataloader`."""

from kernbench.data.collate import *  # noqa: F403 - names only
from kernbench.data.loader import *  # noqa: F403
from kernbench.data.workers import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.utils.data.dataloader")
