"""`torch.utils.data.DataLoader`: batches of samples."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from kernbench.data.collate import default_collate, default_convert, nested
from kernbench.data.datasets import Dataset, IterableDataset, samples_of
from kernbench.data.errors import need
from kernbench.data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    drawn_seed,
)
from kernbench.data.workers import Worker
from kernbench.errors import warn_at_call
from kernbench.operations.copies import pin_memory as pin
from kernbench.tensors.errors import refuse
from kernbench.tensors.generators import Generator
from kernbench.tensors.tensor import Tensor

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

_FIXED: Final = frozenset(
    ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
)
"""Attributes that must not be set later, as in PyTorch."""


class DataLoader(Generic[T_co]):
    """`torch.utils.data.DataLoader`: an iterable of batches.

    Samples are fetched in the process of the rank, when the batch is asked for, and take no
    simulated time but for the operations on tensors that make them. Workers are no processes: the
    rank fetches the batches in the name of one after the other. As in PyTorch each worker has
    random numbers of its own, is told by `get_worker_info`, and goes through a copy of an
    `IterableDataset`; Python's `random` and numpy's generator are those of the one process.

    Args:
        dataset: The samples.
        batch_size: Samples of a batch; None for samples one by one, not collated.
        shuffle: Whether to take the samples in random order, anew each time.
        sampler: Numbers of samples in an order, instead of `shuffle`.
        batch_sampler: Lists of numbers, instead of `batch_size`, `shuffle`, `sampler` and
            `drop_last`.
        num_workers: Number of workers.
        collate_fn: Makes a batch of a list of samples; None for `default_collate`.
        pin_memory: Whether to pin the tensors of a batch that are on the host.
        drop_last: Whether to leave out a last batch that is smaller.
        timeout: At least 0. Bounds the wait for a worker in PyTorch; here nothing is waited for.
        worker_init_fn: Called with the number of each worker before it fetches anything.
        multiprocessing_context: Must be None: there are no processes.
        generator: Source of the order and of the workers' seeds; None for the calling rank's
            default generator.
        prefetch_factor: At least 0, with workers only. Batches that a worker of PyTorch fetches
            ahead; here a batch is fetched when it is asked for.
        persistent_workers: Whether workers stay from one iteration to the next.
        pin_memory_device: Ignored with a warning, as in PyTorch.
        in_order: Whether batches come in the order of the sampler; here they always do, as PyTorch
            may do without it, too.

    Raises:
        OptionError: If arguments exclude each other or are out of range.
        UnsupportedError: For `multiprocessing_context`.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        refuse("DataLoader", multiprocessing_context=multiprocessing_context)
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        rows = isinstance(dataset, IterableDataset)
        _check_order(rows, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size = None
        elif not rows and sampler is None:
            if shuffle:
                sampler = RandomSampler(dataset, generator=generator)  # type: ignore[arg-type]
            else:
                sampler = SequentialSampler(dataset)  # type: ignore[arg-type]
        if batch_size is not None and not rows:
            assert sampler is not None
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self._batched = batch_size is not None or batch_sampler is not None
        if collate_fn is None:
            collate_fn = default_collate if self._batched else default_convert
        self._workers: list[Worker] = []
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        need(
            name not in _FIXED or "_complete" not in self.__dict__,
            f"{name} attribute should not be set after {type(self).__name__} is initialized",
        )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Returns the number of batches."""
        if not isinstance(self.dataset, IterableDataset):
            return len(self.batch_sampler if self._batched else self.sampler)  # type: ignore[arg-type]
        count: int = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if self.pin_memory and self.pin_memory_device:
            warn_at_call(
                "pin_memory_device is deprecated, the current accelerator will be used as the "
                f"device, ignore pin_memory_device='{self.pin_memory_device}'."
            )
        seed = drawn_seed(self.generator)
        if not (self.persistent_workers and self._workers):
            self._workers = [
                Worker(number, self.num_workers, seed, self.dataset)
                for number in range(self.num_workers)
            ]
            if self.worker_init_fn is not None:
                for number, worker in enumerate(self._workers):
                    with worker.at_work():
                        self.worker_init_fn(number)
        if isinstance(self.dataset, IterableDataset):
            found = self._dealt() if self._workers else self._in_rows(iter(self.dataset))
        else:
            found = self._by_number()
        return map(_pinned, found) if self.pin_memory else found

    def _by_number(self) -> Iterator[Any]:
        numbers: Iterable[Any] = self.batch_sampler if self._batched else self.sampler  # type: ignore[assignment]
        workers = self._workers
        for place, index in enumerate(numbers):
            if workers:
                worker = workers[place % len(workers)]
                with worker.at_work():
                    batch = self._fetched(worker.dataset, index)
            else:
                batch = self._fetched(self.dataset, index)
            yield batch

    def _fetched(self, dataset: Any, index: Any) -> Any:
        return self.collate_fn(samples_of(dataset, index) if self._batched else dataset[index])

    def _in_rows(self, samples: Iterator[Any]) -> Iterator[Any]:
        if self.batch_size is None:
            yield from map(self.collate_fn, samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)

    def _dealt(self) -> Iterator[Any]:
        """Yields batches of the workers in turn, until each has gone through its samples."""
        working = []
        for worker in self._workers:
            with worker.at_work():
                working.append((worker, self._in_rows(iter(worker.dataset))))
        while working:
            for each in list(working):
                worker, batches = each
                with worker.at_work():
                    found = list(islice(batches, 1))
                if found:
                    yield found[0]
                else:
                    working.remove(each)


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent: bool
) -> None:
    need(
        num_workers >= 0,
        "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.",
    )
    need(timeout >= 0, "timeout option should be non-negative")
    need(
        num_workers > 0 or prefetch_factor is None,
        "prefetch_factor option could only be specified with num_workers > 0",
    )
    need(
        prefetch_factor is None or prefetch_factor >= 0,
        "prefetch_factor option should be non-negative",
    )
    need(num_workers > 0 or not persistent, "persistent_workers option needs num_workers > 0")


def _check_order(
    rows: bool,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: object,
    batch_sampler: object,
    drop_last: bool,
) -> None:
    options = {"sampler": sampler, "batch_sampler": batch_sampler, "shuffle": shuffle or None}
    for name, value in options.items() if rows else ():
        need(
            value is None,
            f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
            f"{name}={value}",
        )
    need(sampler is None or not shuffle, "sampler option is mutually exclusive with shuffle")
    alone = batch_size == 1 and not shuffle and sampler is None and not drop_last
    need(
        batch_sampler is None or alone,
        "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
        "drop_last",
    )
    need(
        batch_size is not None or not drop_last,
        "batch_size=None option disables auto-batching and is mutually exclusive with drop_last",
    )
    if batch_sampler is None and batch_size is not None:
        BatchSampler((), batch_size, drop_last)


def _pinned(data: Any) -> Any:
    """Returns a batch whose tensors on the host are pinned."""
    if isinstance(data, Tensor):
        return data if data.is_cuda else pin(data)
    own = getattr(data, "pin_memory", None)
    return own() if callable(own) else nested(data, _pinned)
