"""`torch.distributed`."""

from kernbench.runtime_api.distributed import *  # noqa: F403 - names only
from kernbench.runtime_api.namespace import not_simulated
from kernbench.runtime_api.rendezvous import ProcessGroup
from kernbench.torch.distributed import _functional_collectives

__all__ = ["ProcessGroup", "_functional_collectives"]

__getattr__ = not_simulated("torch.distributed")
