"""`DataLoader` with workers: their work is done in the thread of the rank.

A worker of PyTorch is a process of its own. Here each has a shallow copy of the data set, and its
own state of the random generators; batches come in PyTorch's order. Loading takes no simulated
time, as all code of the host, so `prefetch_factor`, `pin_memory`, `timeout` and
`persistent_workers` change no time.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import _utils
from torch.utils.data import dataloader as real

from kernbench.bridge.here import HERE
from kernbench.bridge.refused import not_simulated
from kernbench.bridge.replaced import Patch

_ITERABLE: Final = real._DatasetKind.Iterable
_END: Final = object()


class _Randomness:
    """The state of all generators of a host process."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._python = random.getstate()
        self._numpy = np.random.get_state()

    def restore(self) -> None:
        """Lets all generators go on from here."""
        torch.default_generator.set_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


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
        seed = loader._base_seed + number
        self._dataset = copy.copy(dataset)
        self._info = _utils.worker.WorkerInfo(
            id=number, num_workers=loader._num_workers, seed=seed, dataset=self._dataset
        )
        outside = _Randomness()
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        state = _utils.worker._generate_state(loader._base_seed, number)
        np.random.seed(state)
        self._random = _Randomness()
        outside.restore()
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

    def fetch(self, index: Any) -> Any:
        """Returns a batch; `_END` if an iterable data set has no more.

        Args:
            index: What the sampler gives for the batch.
        """
        try:
            data = self._run(lambda: self._fetcher.fetch(index))
        except StopIteration:
            if self._loader._dataset_kind != _ITERABLE:
                raise
            self.ended = True
            return _END
        self.ended = getattr(self._fetcher, "ended", False)
        return data

    def _run(self, work: Any) -> Any:
        """Runs a function as in the worker's own process."""
        module = _utils.worker
        outside, info = _Randomness(), module._worker_info
        self._random.restore()
        module._worker_info = self._info
        try:
            return work()
        finally:
            module._worker_info = info
            self._random = _Randomness()
            outside.restore()


class WorkersIter(real._BaseDataLoaderIter):
    """Goes over a data set once, with workers that take turns.

    Args:
        loader: The `DataLoader`.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._workers = [
            _Worker(self, number, loader.dataset, loader.worker_init_fn)
            for number in range(self._num_workers)
        ]
        self._turn = 0

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._turn = 0
        for worker in getattr(self, "_workers", ()):
            worker.begin()

    def _next_data(self) -> Any:
        while True:
            if all(worker.ended for worker in self._workers):
                raise StopIteration
            worker = self._workers[self._turn]
            self._turn = (self._turn + 1) % len(self._workers)
            if worker.ended:
                continue
            data = worker.fetch(self._next_index())
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

    yield Patch(loader, "_get_iterator", iterator)
