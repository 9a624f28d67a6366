"""`torch.distributed.Store` in this process."""

import torch.distributed as dist

from kernbench.bridge.base.here import this_rank
from kernbench.process.process import Process
from kernbench.ranks.stores import KeyValues


class SimStore(KeyValues, dist.Store):
    """A store of PyTorch whose keys and values are those of `KeyValues`."""

    failed = dist.DistStoreError
    empty = dist.QueueEmptyError

    def calling(self) -> Process:
        """Returns the rank that calls."""
        return this_rank().process
