"""Collectives that return their result, as `torch.distributed._functional_collectives`."""

from kernbench.distributed.functional import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated

__getattr__ = not_simulated("torch.distributed._functional_collectives")
