"""Datasets and collation as `torch.utils.data` has them, held to plain Python."""

from collections import namedtuple
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.testing import Kernbench
from kernbench.torch.utils import data

Point = namedtuple("Point", "x y")


class Numbers(data.Dataset[int]):
    """Holds the numbers from a start on."""

    def __init__(self, start: int, count: int) -> None:
        self.samples = list(range(start, start + count))

    def __getitem__(self, index: Any) -> int:
        return int(self.samples[index])

    def __len__(self) -> int:
        return len(self.samples)


class Stream(data.IterableDataset[int]):
    """The same one by one."""

    def __init__(self, start: int, count: int) -> None:
        self.samples = range(start, start + count)

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def test_datasets_one_after_the_other() -> None:
    whole = Numbers(0, 3) + Numbers(10, 2)
    assert [whole[index] for index in range(len(whole))] == [0, 1, 2, 10, 11]
    assert [whole[-1], whole[-5]] == [11, 0]
    with pytest.raises(ValueError, match="should not exceed dataset length"):
        whole[-6]
    with pytest.raises(AssertionError, match="empty iterable"):
        data.ConcatDataset([])
    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        data.ConcatDataset([Stream(0, 2)])


def test_streams_one_after_the_other() -> None:
    whole = Stream(0, 3) + Stream(10, 2)
    assert (list(whole), len(whole)) == ([0, 1, 2, 10, 11], 5)
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(data.ChainDataset([Numbers(0, 2)]))


def test_datasets_side_by_side() -> None:
    rows = data.StackDataset(Numbers(0, 4), Numbers(10, 4))
    assert (rows[2], len(rows)) == ((2, 12), 4)
    assert rows.__getitems__([3, 0]) == [(3, 13), (0, 10)]
    named = data.StackDataset(a=Numbers(0, 4), b=Numbers(10, 4))
    assert named[1] == {"a": 1, "b": 11}
    assert named.__getitems__([1, 2]) == [{"a": 1, "b": 11}, {"a": 2, "b": 12}]
    for wrong in ((Numbers(0, 1), Numbers(0, 2)), ()):
        with pytest.raises(ValueError, match="dataset"):
            data.StackDataset(*wrong)
    with pytest.raises(ValueError, match="not both"):
        data.StackDataset(Numbers(0, 1), a=Numbers(0, 1))


def test_some_samples_of_a_dataset() -> None:
    some = data.Subset(Numbers(10, 5), [4, 0, 2])
    assert ([some[index] for index in range(3)], len(some)) == ([14, 10, 12], 3)
    assert some.__getitems__([2, 1]) == [12, 10]


def test_base_classes_say_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="__getitem__"):
        data.Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(data.IterableDataset())


def test_batches_of_all_kinds_of_samples(kernbench: Kernbench) -> None:
    with kernbench.context():
        joined = data.default_collate
        assert joined([1, 2]).tolist() == [1, 2]
        assert joined([1.5, 2.5]).dtype == torch.float64
        assert joined(["a", "b"]) == ["a", "b"]
        assert joined([np.float32(1), np.float32(2)]).dtype == torch.float32
        assert joined([np.ones(2), np.zeros(2)]).tolist() == [[1, 1], [0, 0]]
        assert joined([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
        point = joined([Point(1, 2), Point(3, 4)])
        assert (point.x.tolist(), point.y.tolist()) == ([1, 3], [2, 4])
        first, second = joined([(1, "a"), (2, "b")])
        assert (first.tolist(), second) == ([1, 2], ("a", "b"))
        assert [each.tolist() for each in joined([[1, 2], [3, 4]])] == [[1, 3], [2, 4]]
        assert joined([{"a": 1}, {"a": 2}])["a"].tolist() == [1, 2]
        frozen = joined([MappingProxyType({"a": 1}), MappingProxyType({"a": 2})])
        assert frozen["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ([np.array(["a"])], "found"),
        ([np.ones(2), np.ones(3)], "equal size"),
        ([[1], [1, 2]], "equal size"),
        ([object()], "found"),
    ],
)
def test_samples_that_make_no_batch(kernbench: Kernbench, batch: list[Any], told: str) -> None:
    with kernbench.context(), pytest.raises((TypeError, RuntimeError), match=told):
        data.default_collate(batch)


def test_samples_without_batches(kernbench: Kernbench) -> None:
    with kernbench.context():
        convert = data.default_convert
        assert convert(np.ones(2)).tolist() == [1, 1]
        assert convert({"a": np.int64(3)})["a"].item() == 3
        assert convert("text") == "text"
        assert convert(Point(np.int64(1), "b")).x.item() == 1
        assert [each.item() for each in convert((np.int64(1), np.int64(2)))] == [1, 2]
        assert convert([np.int64(1), "a"])[1] == "a"
