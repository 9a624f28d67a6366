"""`DataLoader` with workers: their work is done in the thread of the rank, and takes its own time.

A worker of PyTorch is a process of its own. Here each has a shallow copy of the data set, its own
state of the random generators, and its own clock; batches come in PyTorch's order. A worker begins
with a batch when PyTorch would send for it (`prefetch_factor` for each worker ahead of the rank)
and it has done the ones before. The rank waits for a batch that is not ready then, and for nothing
else. What a worker takes is what it sleeps: code of the host takes no simulated time.
"""

import copy
import random
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torch.utils.data import dataloader as real

from kernbench.bridge.base.here import HERE, this_rank
from kernbench.errors import KernbenchError, not_simulated
from kernbench.isolation.replaced import Patch
from kernbench.isolation.states import State, States
from kernbench.isolation.workers import GENERATORS, Worker, how_it_ended
from kernbench.sim_engine.host import Host

_ITERABLE: Final = real._DatasetKind.Iterable
_END: Final = object()
_DETAILS: Final = (
    " Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error "
    "trace."
)


_GENERATORS: Final = States(
    *GENERATORS,
    State(
        "torch",
        torch.default_generator.get_state,
        torch.default_generator.set_state,
        alone=True,
    ),
)


class _Worker:
    """What one worker process has.

    Args:
        loader: The iterator that needs it.
        number: Number of the worker.
        dataset: The data set of the program.
        init: What the program runs in each worker at first; None for nothing.
    """

    def __init__(self, loader: "WorkersIter", number: int, dataset: Any, init: Any) -> None:
        self.ended = False
        self._loader = loader
        self._number = number
        seed = loader._base_seed + number
        self._dataset = copy.copy(dataset)
        self._info = _utils.worker.WorkerInfo(
            id=number, num_workers=loader._num_workers, seed=seed, dataset=self._dataset
        )

        def seeded() -> None:
            random.seed(seed)
            torch.default_generator.manual_seed(seed)
            np.random.seed(_utils.worker._generate_state(loader._base_seed, number))

        self._process = Worker(_GENERATORS, seeded)
        if init is not None:
            self._run(lambda: init(number))
        self.begin()

    def begin(self) -> None:
        """Begins with the data set."""
        self.ended = False
        loader = self._loader
        self._fetcher = self._run(
            lambda: real._DatasetKind.create_fetcher(
                loader._dataset_kind,
                self._dataset,
                loader._auto_collation,
                loader._collate_fn,
                loader._drop_last,
            )
        )

    def fetch(self, index: Any, asked: int) -> Any:
        """Returns a batch once it is ready; `_END` if an iterable data set has no more.

        Args:
            index: What the sampler gives for the batch.
            asked: Host time at which the rank asks for it, in picoseconds.
        """
        self._process.clock = max(self._process.clock, asked)
        try:
            data = self._run(lambda: self._fetcher.fetch(index))
        except StopIteration:
            if self._loader._dataset_kind != _ITERABLE:
                raise
            self.ended = True
            return _END
        self.ended = getattr(self._fetcher, "ended", False)
        host = _host()
        if self._process.clock > host.clock:
            host.sleep(self._process.clock - host.clock)
        return data

    def _run(self, work: Any) -> Any:
        """Runs a function as in the worker's own process."""
        module = _utils.worker
        info, module._worker_info = module._worker_info, self._info
        try:
            with self._process.running():
                return work()
        except SystemExit as stop:
            self._loader.broken = True
            told = f"DataLoader worker {how_it_ended(stop)}"
            if not told.endswith(" "):
                told += _DETAILS
            raise RuntimeError(told) from stop
        except (StopIteration, KernbenchError):
            raise
        except Exception:
            caught = ExceptionWrapper(where=f"in DataLoader worker process {self._number}")
            return caught.reraise()
        finally:
            module._worker_info = info


def _host() -> Host:
    return this_rank().process.host


class WorkersIter(real._BaseDataLoaderIter):
    """Goes over a data set once, with workers that take turns.

    Args:
        loader: The `DataLoader`.

    Attributes:
        broken: Whether a worker has ended before its time; then there are no more batches.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.broken = False
        self._ask(loader)
        self._workers = [
            _Worker(self, number, loader.dataset, loader.worker_init_fn)
            for number in range(self._num_workers)
        ]
        self._turn = 0

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._turn = 0
        self._ask(loader)
        for worker in getattr(self, "_workers", ()):
            worker.begin()

    def _ask(self, loader: Any) -> None:
        """Asks for the first batches, of all workers."""
        ahead = loader.prefetch_factor * loader.num_workers
        self._asked = deque([_host().clock] * ahead)

    def _next_data(self) -> Any:
        while True:
            if self.broken or all(worker.ended for worker in self._workers):
                raise StopIteration
            worker = self._workers[self._turn]
            self._turn = (self._turn + 1) % len(self._workers)
            if worker.ended:
                continue
            index = self._next_index()
            try:
                data = worker.fetch(index, self._asked.popleft())
            finally:
                self._asked.append(_host().clock)
            if data is _END:
                continue
            if self._pin_memory:
                data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
            return data


def patches() -> Iterator[Patch]:
    """Yields what is replaced of data loaders."""
    loader = real.DataLoader
    get = loader._get_iterator

    def iterator(self: Any) -> Any:
        if HERE.rank is None or not self.num_workers:
            return get(self)
        if isinstance(self.dataset, real.IterDataPipe | real.MapDataPipe):
            raise not_simulated("a data pipe with num_workers > 0", "use num_workers=0")
        return WorkersIter(self)

    check = loader.check_worker_number_rationality

    def check_number(self: Any) -> None:
        if HERE.rank is None:  # how many cores this computer has says nothing of a simulated one
            check(self)

    yield Patch(loader, "_get_iterator", iterator)
    yield Patch(loader, "check_worker_number_rationality", check_number)
