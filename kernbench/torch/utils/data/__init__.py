"""`torch.utils.data`."""

from kernbench.data.collate import *  # noqa: F403 - names only
from kernbench.data.datasets import *  # noqa: F403
from kernbench.data.loader import *  # noqa: F403
from kernbench.data.samplers import *  # noqa: F403
from kernbench.data.shares import *  # noqa: F403
from kernbench.data.workers import *  # noqa: F403
from kernbench.runtime_api.namespace import not_simulated
from kernbench.torch.utils.data import dataloader, dataset, distributed, sampler

__all__ = ["dataloader", "dataset", "distributed", "sampler"]

__getattr__ = not_simulated("torch.utils.data")
