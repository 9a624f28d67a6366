"""Orders in which samples are taken.

Orders are numbers that the host works with, so they are drawn with data off, too. As all random
numbers here they are seeded and repeatable, and are not PyTorch's.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from kernbench.data.errors import check_count, need
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import Array
from kernbench.operations.sampling import drawn_indices
from kernbench.process.process import current_process
from kernbench.tensors.generators import DEFAULT_GENERATOR, Generator
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

T_co = TypeVar("T_co", covariant=True)


def host_generator(generator: Generator | None) -> Generator:
    """Returns a generator, or else the calling rank's default one of the host."""
    return DEFAULT_GENERATOR.of(current_process()) if generator is None else generator


def drawn_seed(generator: Generator | None) -> int:
    """Returns a seed that is drawn from a generator, or else from the calling rank's default."""
    return int(host_generator(generator).numbers.integers(1 << 63))


class Sampler(Generic[T_co]):
    """`torch.utils.data.Sampler`: numbers of samples in an order; a subclass defines `__iter__`."""

    def __iter__(self) -> Iterator[T_co]:
        """Returns the numbers one by one; for subclasses to define."""
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """`torch.utils.data.SequentialSampler`: all samples in their order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """`torch.utils.data.RandomSampler`: samples in random order.

    Args:
        data_source: The dataset.
        replacement: Whether a sample may come again before all have come.
        num_samples: Numbers to draw; None for as many as there are samples.
        generator: Source of the order; None for one that the calling rank's default generator
            seeds anew each time.

    Raises:
        OperandError: If `replacement` is no bool.
        OptionError: If `num_samples` is no positive integer.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise OperandError(
                f"replacement should be a boolean value, but got replacement={replacement}",
                [site_fact(call_site())],
            )
        check_count("num_samples", self.num_samples)

    @property
    def num_samples(self) -> int:
        """Numbers that are drawn."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        count, wanted, source = len(self.data_source), self.num_samples, self.generator
        if source is None:
            source = Generator().manual_seed(drawn_seed(None))
        if self.replacement:
            yield from source.numbers.integers(0, count, wanted).tolist()
            return
        while wanted > 0:
            yield from source.numbers.permutation(count)[:wanted].tolist()
            wanted -= count

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """`torch.utils.data.SubsetRandomSampler`: some samples in random order.

    Args:
        indices: Numbers of these samples.
        generator: Source of the order; None for the calling rank's default generator.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for place in host_generator(self.generator).numbers.permutation(len(self.indices)).tolist():
            yield self.indices[place]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`torch.utils.data.WeightedRandomSampler`: samples drawn by their weights.

    Args:
        weights: The weight of each sample; a tensor is read at once, so a device makes the host
            wait.
        num_samples: Numbers to draw.
        replacement: Whether a sample may be drawn more than once.
        generator: Source of the numbers; None for the calling rank's default generator.

    Raises:
        OptionError: If an argument is of the wrong kind, or `weights` is no vector.
        NoDataError: For weights in a tensor while data is off.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        check_count("num_samples", num_samples)
        need(
            isinstance(replacement, bool),
            f"replacement should be a boolean value, but got replacement={replacement}",
        )
        given: Any = weights
        if isinstance(given, Tensor):
            given = host_array(given, "WeightedRandomSampler")
        self.weights: Array = np.array(given, np.float64)
        need(
            self.weights.ndim == 1,
            f"weights should be a 1d sequence but given weights have shape {self.weights.shape}",
        )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        """Returns the numbers one by one.

        Raises:
            TensorError: If a weight is negative or not finite, if all are 0, or if more samples
                are asked for than there are.
        """
        numbers = host_generator(self.generator).numbers
        return iter(
            drawn_indices(numbers, self.weights, self.num_samples, self.replacement).tolist()
        )

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """`torch.utils.data.BatchSampler`: numbers of samples in lists.

    Args:
        sampler: The numbers in their order.
        batch_size: Numbers of a list.
        drop_last: Whether to leave out a last list that is shorter.

    Raises:
        OptionError: If an argument is of the wrong kind.
    """

    def __init__(
        self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool
    ) -> None:
        check_count("batch_size", batch_size)
        need(
            isinstance(drop_last, bool),
            f"drop_last should be a boolean value, but got drop_last={drop_last}",
        )
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        rest = iter(self.sampler)
        while batch := list(islice(rest, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        count: int = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
