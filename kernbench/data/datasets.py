"""Sets of samples: `Dataset` and what is made of one."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from kernbench.data.errors import need, need_fitting
from kernbench.errors import warn_at_call
from kernbench.process.process import current_process
from kernbench.tensors.generators import DEFAULT_GENERATOR, Generator
from kernbench.tensors.tensor import Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """`torch.utils.data.Dataset`: samples by number.

    A subclass defines `__getitem__`, usually `__len__`, and may define `__getitems__`, which takes
    a list of numbers.
    """

    def __getitem__(self, index: Any) -> T_co:
        """Returns a sample; for subclasses to define."""
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: "Dataset[T_co]") -> "ConcatDataset[T_co]":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """`torch.utils.data.IterableDataset`: samples in a row; a subclass defines `__iter__`."""

    def __iter__(self) -> Iterator[T_co]:
        """Returns the samples one by one; for subclasses to define."""
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Dataset[T_co]) -> "ChainDataset[T_co]":  # type: ignore[override]
        return ChainDataset([self, other])


def samples_of(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """Returns samples by their numbers, all at once where the dataset can."""
    at_once = getattr(dataset, "__getitems__", None)
    if callable(at_once):
        found: list[Any] = at_once(indices)
        return found
    return [dataset[index] for index in indices]


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """`torch.utils.data.TensorDataset`: sample i holds row i of each tensor.

    Attributes:
        tensors: The tensors.

    Raises:
        DatasetError: If the tensors have not as many rows as each other.
    """

    def __init__(self, *tensors: Tensor) -> None:
        rows = {tensor.window.shape[0] for tensor in tensors}
        need_fitting(len(rows) == 1, "Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        """Returns a row of each tensor."""
        return tuple([tensor[index] for tensor in self.tensors])

    def __len__(self) -> int:
        return self.tensors[0].window.shape[0]


class StackDataset(Dataset[Any]):
    """`torch.utils.data.StackDataset`: sample i holds sample i of each dataset.

    Args:
        *args: Datasets of one length, for samples that are tuples.
        **kwargs: The same for samples that are dicts.

    Raises:
        OptionError: If lengths differ, if datasets are given both ways, or none is.
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        need(
            not (args and kwargs), "StackDataset takes datasets by position or by keyword, not both"
        )
        members = list(args or kwargs.values())
        need(bool(members), "At least one dataset should be passed")
        lengths = {len(each) for each in members}  # type: ignore[arg-type]
        need(len(lengths) == 1, "Size mismatch between datasets")
        self.datasets: Any = args or kwargs
        (self._length,) = lengths

    def __getitem__(self, index: Any) -> Any:
        """Returns a sample of each dataset."""
        if isinstance(self.datasets, dict):
            return {name: each[index] for name, each in self.datasets.items()}
        return tuple([each[index] for each in self.datasets])

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Returns samples of each dataset."""
        if isinstance(self.datasets, dict):
            columns = [samples_of(each, indices) for each in self.datasets.values()]
            return [
                dict(zip(self.datasets, row, strict=True)) for row in zip(*columns, strict=True)
            ]
        return list(zip(*[samples_of(each, indices) for each in self.datasets], strict=True))

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[T_co]):
    """`torch.utils.data.ConcatDataset`: datasets one after the other.

    Attributes:
        datasets: The datasets.
        cumulative_sizes: Number of samples up to the end of each.

    Raises:
        DatasetError: If there is no dataset, or one is an `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = list(datasets)
        need_fitting(bool(self.datasets), "datasets should not be an empty iterable")
        need_fitting(
            not any(isinstance(each, IterableDataset) for each in self.datasets),
            "ConcatDataset does not support IterableDataset",
        )
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Returns the running sums of lengths."""
        return list(accumulate(len(each) for each in sequence))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> T_co:
        """Returns a sample; negative numbers count from the end.

        Raises:
            OptionError: If there is no sample with the number.
        """
        if idx < 0:
            need(-idx <= len(self), "absolute value of index should not exceed dataset length")
            idx += len(self)
        place = bisect_right(self.cumulative_sizes, idx)
        if place:
            idx -= self.cumulative_sizes[place - 1]
        return self.datasets[place][idx]


class ChainDataset(IterableDataset[T_co]):
    """`torch.utils.data.ChainDataset`: datasets of samples in a row, one after the other."""

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = datasets

    def _members(self) -> Iterator[Any]:
        for each in self.datasets:
            need_fitting(
                isinstance(each, IterableDataset), "ChainDataset only supports IterableDataset"
            )
            yield each

    def __iter__(self) -> Iterator[T_co]:
        """Returns the samples one by one.

        Raises:
            DatasetError: If a dataset is no `IterableDataset`.
        """
        for each in self._members():
            yield from each

    def __len__(self) -> int:
        return sum(len(each) for each in self._members())


class Subset(Dataset[T_co]):
    """`torch.utils.data.Subset`: some samples of a dataset.

    Attributes:
        dataset: The dataset.
        indices: Number in the dataset of each sample.
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        kind = type(self)
        if kind.__getitem__ is not Subset.__getitem__ and kind.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{kind.__name__} overrides __getitem__ but not __getitems__, which a DataLoader "
                "calls: define __getitems__(self, indices) too"
            )

    def __getitem__(self, idx: Any) -> T_co:
        """Returns a sample, or what the dataset returns for a list of numbers."""
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns samples."""
        return samples_of(self.dataset, [self.indices[index] for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[T_co],
    lengths: Sequence[int | float],
    generator: Generator | None = None,
) -> list[Subset[T_co]]:
    """Returns disjoint parts of a dataset, with its samples in random order.

    Args:
        lengths: Number of samples of each part; or fractions that add up to 1, rounded down, with
            what is left over dealt one by one from the first part on.
        generator: Source of the order; None for the calling rank's default generator.

    Raises:
        OptionError: If the lengths do not add up to that of the dataset, or a fraction is not
            between 0 and 1.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        lengths = _parts_of(size, lengths)
    need(
        sum(lengths) == size,
        "Sum of input lengths does not equal the length of the input dataset!",
    )
    source = DEFAULT_GENERATOR.of(current_process()) if generator is None else generator
    order = source.numbers.permutation(size).tolist()
    ends = list(accumulate(int(each) for each in lengths))
    return [Subset(dataset, order[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _parts_of(size: int, fractions: Sequence[float]) -> list[int]:
    for index, share in enumerate(fractions):
        need(0 <= share <= 1, f"Fraction at index {index} is not between 0 and 1")
    found = [math.floor(size * share) for share in fractions]
    for extra in range(size - sum(found)):
        found[extra % len(found)] += 1
    for index, length in enumerate(found):
        if not length:
            warn_at_call(
                f"Length of split at index {index} is 0. This might result in an empty dataset."
            )
    return found
