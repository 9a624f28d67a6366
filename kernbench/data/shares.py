"""The samples of one rank among several.

The order is that of `torch.randperm` with a generator of the same seed.
"""

import math
from collections.abc import Iterator
from typing import Any, TypeVar

from kernbench.data.errors import need
from kernbench.data.samplers import Sampler
from kernbench.distributed.groups import get_rank, get_world_size
from kernbench.tensors.generators import Generator

__all__ = ["DistributedSampler"]

T_co = TypeVar("T_co", covariant=True)


class DistributedSampler(Sampler[T_co]):
    """`torch.utils.data.distributed.DistributedSampler`: a rank's share of the samples.

    Every rank gets as many: the first samples come again at the end where the number does not
    divide, or the last ones are left out.

    Args:
        num_replicas: Number of ranks that share it; None for all of the default group.
        rank: Number of this rank among them; None for its number in the default group.
        shuffle: Whether to take the samples in random order, the same on all ranks.
        seed: Seed of the order, the same on all ranks; `set_epoch` adds to it.
        drop_last: Whether to leave samples out instead of repeating some.

    Attributes:
        epoch: What `set_epoch` has set.
        num_samples: Samples of each rank.
        total_size: Samples of all ranks.

    Raises:
        OptionError: If there is no such rank.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        ranks = get_world_size() if num_replicas is None else num_replicas
        mine = get_rank() if rank is None else rank
        need(
            0 <= mine < ranks,
            f"Invalid rank {mine}, rank should be in the interval [0, {ranks - 1}]",
        )
        self.dataset = dataset
        self.num_replicas = ranks
        self.rank = mine
        self.epoch = 0
        self.drop_last = drop_last
        count = len(dataset)
        if drop_last and count % ranks:
            count -= ranks
        self.num_samples = math.ceil(count / ranks)
        self.total_size = self.num_samples * ranks
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[T_co]:
        count: int = len(self.dataset)
        indices = list(range(count))
        if self.shuffle:
            source = Generator().manual_seed(self.seed + self.epoch)
            indices = source.numbers.permutation(count).tolist()
        if not self.drop_last and count:
            indices *= math.ceil(self.total_size / count)
        mine: Any = indices[self.rank : self.total_size : self.num_replicas]
        return iter(mine)

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Gives the next iterations another order; called before each epoch, on all ranks."""
        self.epoch = epoch
