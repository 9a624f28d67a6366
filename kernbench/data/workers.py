"""What a worker process of a loader has of its own, in the process of the rank."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kernbench.memory import Array
from kernbench.process.process import RankLocal, current_process
from kernbench.tensors.generators import DEFAULT_GENERATOR, Generator

__all__ = ["get_worker_info"]


@dataclass(frozen=True)
class WorkerInfo:
    """What `torch.utils.data.get_worker_info` tells a worker.

    Attributes:
        id: Number of the worker, from 0.
        num_workers: Number of workers.
        seed: Seed of the worker's random numbers.
        dataset: The worker's copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_INFO: Final[RankLocal[list[WorkerInfo]]] = RankLocal("worker of a loader", lambda _: [])


def get_worker_info() -> WorkerInfo | None:
    """Returns which worker of a `DataLoader` fetches the present sample; None if none does."""
    running = _INFO.of(current_process())
    return running[-1] if running else None


class Worker:
    """A worker of a loader.

    Args:
        number: Number of the worker, from 0.
        count: Number of workers.
        base_seed: Seed of worker 0; each further one's is by 1 higher.
        dataset: The dataset. The worker has a shallow copy of it, so that what it sets stays its
            own.
    """

    def __init__(self, number: int, count: int, base_seed: int, dataset: Any) -> None:
        seed = (base_seed + number) % (1 << 63)
        self.dataset = copy.copy(dataset)
        self.info: Final = WorkerInfo(number, count, seed, self.dataset)
        self._place: Array = Generator().manual_seed(seed).snapshot()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lets the rank act as the worker: it draws the worker's random numbers."""
        process = current_process()
        generator, running = DEFAULT_GENERATOR.of(process), _INFO.of(process)
        kept = generator.snapshot()
        generator.restore(self._place)
        running.append(self.info)
        try:
            yield
        finally:
            running.pop()
            self._place = generator.snapshot()
            generator.restore(kept)
