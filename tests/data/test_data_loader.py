"""Batches, orders and shares of samples, also those of PyTorch where nothing is drawn."""

import importlib
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as ours
from kernbench.errors import NoDataError, OperandError, OptionError, UnsupportedError
from kernbench.testing import Kernbench
from kernbench.torch.utils import data
from kernbench.torch.utils.data.distributed import DistributedSampler

Program = Callable[[Any, Any], Any]
"""Takes the library and its `utils.data`, returns something to compare."""

Pair = namedtuple("Pair", ["x", "y"])


def _plain(value: Any) -> Any:
    """Returns tensors as what they hold, and everything else as it is, with the types of both."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [_plain(each) for each in value]
    return value


def _rows(lib: Any, d: Any, count: int = 7) -> Any:
    x = lib.arange(count * 2, dtype=lib.float32).reshape(count, 2)
    return d.TensorDataset(x, lib.arange(count))


def _stream(d: Any, count: int) -> Any:
    class Stream(d.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(count))

        def __len__(self) -> int:
            return count

    return Stream()


def _concatenated(lib: Any, d: Any) -> Any:
    joined = _rows(lib, d, 3) + _rows(lib, d, 2)
    return [len(joined), joined.cumulative_sizes, joined[-1], list(d.DataLoader(joined, 4))]


def _subsets(lib: Any, d: Any) -> Any:
    part = d.Subset(_rows(lib, d), [6, 0, 3])
    return [
        len(part),
        part[0],
        list(d.DataLoader(part, 2)),
        d.Subset(_rows(lib, d), [4, 5])[[0, 1]],
    ]


def _stacked(lib: Any, d: Any) -> Any:
    both = d.StackDataset(range(4), _rows(lib, d, 4))
    named = d.StackDataset(a=range(4), b=_rows(lib, d, 4))
    return [both[1], named[2], list(d.DataLoader(both, 3)), list(d.DataLoader(named, 3))]


def _streams(lib: Any, d: Any) -> Any:
    chain = _stream(d, 3) + _stream(d, 2)
    loader = d.DataLoader(chain, 2, drop_last=True)
    return [list(d.DataLoader(chain, 2)), list(loader), len(loader), len(d.DataLoader(chain, 2))]


def _shares(lib: Any, d: Any) -> Any:
    found = []
    for count in (1, 2, 7, 8, 9, 20):
        for ranks in (1, 2, 3, 8):
            for drop in (False, True):
                each = [
                    d.DistributedSampler(range(count), ranks, rank, False, 3, drop)
                    for rank in range(ranks)
                ]
                found += [(list(one), len(one), one.total_size) for one in each]
    return found


COLLATED: Final[dict[str, Callable[[Any], list[Any]]]] = {
    "tensors": lambda lib: [lib.ones(2), lib.zeros(2)],
    "floats": lambda lib: [1.5, 2.0],
    "ints": lambda lib: [1, 2, 3],
    "bools": lambda lib: [True, False],
    "arrays": lambda lib: [np.arange(3, dtype=np.int32), np.ones(3, dtype=np.int32)],
    "scalars": lambda lib: [np.float32(1.5), np.float32(2)],
    "array of nothing": lambda lib: [np.zeros((0,)), np.zeros((0,))],
    "texts": lambda lib: ["a", "bc"],
    "texts of an array": lambda lib: list(np.array(["a", "bc"])),
    "bytes": lambda lib: [b"a", b"bc"],
    "dicts": lambda lib: [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    "tuples": lambda lib: [(1, 2.0), (3, 4.0)],
    "lists": lambda lib: [[1, "x"], [2, "y"]],
    "named": lambda lib: [Pair(1, lib.ones(1)), Pair(2, lib.ones(1))],
    "nested": lambda lib: [{"a": [(1, np.ones(2))]}, {"a": [(2, np.ones(2))]}],
    "counter": lambda lib: [Counter(a=1), Counter(a=3)],
}


def _collated(make: Callable[[Any], list[Any]]) -> Program:
    return lambda lib, d: d.default_collate(make(lib))


def _converted(make: Callable[[Any], list[Any]]) -> Program:
    return lambda lib, d: d.default_convert(make(lib)[0])


PROGRAMS: Final[dict[str, Program]] = {
    **{f"collated {name}": _collated(make) for name, make in COLLATED.items()},
    **{f"converted {name}": _converted(make) for name, make in COLLATED.items()},
    "batches": lambda lib, d: list(d.DataLoader(_rows(lib, d), batch_size=3)),
    "dropped": lambda lib, d: list(d.DataLoader(_rows(lib, d), 3, drop_last=True)),
    "one by one": lambda lib, d: list(d.DataLoader(_rows(lib, d), batch_size=None)),
    "own batches": lambda lib, d: list(
        d.DataLoader(_rows(lib, d), batch_sampler=[[1, 2], [0], [5, 5, 5]])
    ),
    "own order": lambda lib, d: list(d.DataLoader(range(9), 2, sampler=[3, 1, 4, 1, 5])),
    "own collation": lambda lib, d: list(d.DataLoader(range(9), 4, collate_fn=sum)),
    "lengths": lambda lib, d: [
        len(d.DataLoader(range(9), size, drop_last=drop))
        for size in (1, 2, 9, 10)
        for drop in (False, True)
    ],
    "batch sampler": lambda lib, d: [
        (list(each), len(each))
        for each in (d.BatchSampler(range(7), 3, drop) for drop in (False, True))
    ],
    "concatenated": _concatenated,
    "subsets": _subsets,
    "stacked": _stacked,
    "streams": _streams,
    "shares": _shares,
    "parts": lambda lib, d: [
        [len(each) for each in d.random_split(range(11), lengths)]
        for lengths in ([11], [5, 6], [0.5, 0.5], [0.3, 0.3, 0.4], [1 / 3] * 3)
    ],
}


@pytest.mark.torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_pytorch(kernbench: Kernbench, name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = importlib.import_module("torch.utils.data")
    with kernbench.context():
        mine = _plain(PROGRAMS[name](ours, data))
    assert mine == _plain(PROGRAMS[name](torch, theirs))


def test_batches_hold_the_samples(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = ours.arange(14, dtype=ours.float32).reshape(7, 2)
        loader = data.DataLoader(data.TensorDataset(x, ours.arange(7)), batch_size=3)
        shapes = [(a.shape, b.tolist()) for a, b in loader]
    assert shapes == [((3, 2), [0, 1, 2]), ((3, 2), [3, 4, 5]), ((1, 2), [6])]


def test_a_shuffled_order_has_every_sample_once_and_changes(kernbench: Kernbench) -> None:
    with kernbench.context():
        ours.manual_seed(3)
        loader: Any = data.DataLoader(range(50), batch_size=8, shuffle=True)  # type: ignore[arg-type]
        first, second = ([n for batch in loader for n in batch.tolist()] for _ in range(2))
        ours.manual_seed(3)
        assert [n for batch in loader for n in batch.tolist()] == first
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3


def test_an_order_is_drawn_with_data_off(kernbench: Kernbench) -> None:
    with kernbench.context(data=False):
        orders = [
            list(data.RandomSampler(range(20), num_samples=50)),
            list(data.RandomSampler(range(20), replacement=True)),
            list(data.SubsetRandomSampler([4, 5, 6])),
            list(data.WeightedRandomSampler([0.0, 1.0, 2.0], 20)),
        ]
        with pytest.raises(NoDataError):
            data.WeightedRandomSampler(ours.ones(3), 2)  # type: ignore[arg-type]
    assert Counter(orders[0][:40]) == dict.fromkeys(range(20), 2)
    assert len(set(orders[0][40:])) == 10
    assert len(orders[1]) == 20
    assert sorted(orders[2]) == [4, 5, 6]
    assert set(orders[3]) == {1, 2}


def test_weights_are_the_frequencies(kernbench: Kernbench) -> None:
    with kernbench.context():
        weights = ours.tensor([1.0, 0.0, 3.0])
        drawn = Counter(data.WeightedRandomSampler(weights, 8000))  # type: ignore[arg-type]
        once = list(data.WeightedRandomSampler([1.0, 1.0, 1.0], 3, replacement=False))
    assert drawn[1] == 0
    assert drawn[2] / drawn[0] == pytest.approx(3, rel=0.1)
    assert sorted(once) == [0, 1, 2]


def test_ranks_share_the_samples_anew_each_epoch(kernbench: Kernbench) -> None:
    seen: dict[tuple[int, int], list[int]] = {}

    def worker(rank: int) -> None:
        ours.distributed.init_process_group("nccl")
        ours.manual_seed(rank)  # which does not change the order
        sampler: DistributedSampler[int] = DistributedSampler(range(10))
        loader: Any = data.DataLoader(range(10), sampler=sampler)  # type: ignore[arg-type]
        for epoch in range(2):
            sampler.set_epoch(epoch)
            seen[epoch, rank] = [n for batch in loader for n in batch.tolist()]

    kernbench.spawn(worker, nprocs=4)
    orders = []
    for epoch in range(2):
        order = [seen[epoch, rank][place] for place in range(3) for rank in range(4)]
        assert sorted(order[:10]) == list(range(10))
        assert order[10:] == order[:2]
        orders.append(order)
    assert orders[0] != orders[1]


def test_the_order_of_ranks_is_that_of_randperm(kernbench: Kernbench) -> None:
    with kernbench.context():
        sampler: DistributedSampler[int] = DistributedSampler(range(9), 1, 0, seed=5)
        sampler.set_epoch(2)
        generator = ours.Generator().manual_seed(7)
        assert list(sampler) == ours.randperm(9, generator=generator).tolist()


class Numbers(data.IterableDataset[int]):
    """Numbers from `start` to `end`, which workers divide as PyTorch's documentation shows."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def _divide(worker: int) -> None:
    info = data.get_worker_info()
    assert info is not None
    assert info.id == worker
    each = -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    start = info.dataset.start + worker * each
    info.dataset.start, info.dataset.end = start, min(start + each, info.dataset.end)


def test_workers_divide_a_row_of_samples(kernbench: Kernbench) -> None:
    with kernbench.context():
        numbers = Numbers(3, 12)
        alike = [b.tolist() for b in data.DataLoader(numbers, 2, num_workers=2)]
        loader = data.DataLoader(numbers, 2, num_workers=2, worker_init_fn=_divide)
        divided = [b.tolist() for b in loader]
        assert data.get_worker_info() is None
    assert sorted(n for batch in alike for n in batch) == sorted([*range(3, 12)] * 2)
    assert divided == [[3, 4], [8, 9], [5, 6], [10, 11], [7]]


@pytest.mark.torch
def test_workers_of_pytorch_divide_them_in_the_same_order() -> None:
    torch = pytest.importorskip("torch")
    theirs: Any = importlib.import_module("torch.utils.data")

    class Theirs(theirs.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            info = theirs.get_worker_info()
            return iter(range(3 + 5 * info.id, min(8 + 5 * info.id, 12)))

    torch.set_num_threads(1)
    assert [batch.tolist() for batch in theirs.DataLoader(Theirs(), 2, num_workers=2)] == [
        [3, 4],
        [8, 9],
        [5, 6],
        [10, 11],
        [7],
    ]


class Noisy(data.Dataset[Any]):
    def __getitem__(self, index: int) -> tuple[int, float]:
        info = data.get_worker_info()
        return (-1 if info is None else info.id), ours.rand((), device="cpu").item()

    def __len__(self) -> int:
        return 6


def test_workers_draw_numbers_of_their_own(kernbench: Kernbench) -> None:
    def drawn(workers: int) -> tuple[list[list[Any]], float]:
        ours.manual_seed(1)
        found = [[n.tolist() for n in b] for b in data.DataLoader(Noisy(), 2, num_workers=workers)]
        return found, ours.rand(()).item()

    with kernbench.context():
        alone, after_alone = drawn(0)
        shared, after_shared = drawn(2)
        assert drawn(2) == (shared, after_shared)
    assert [ids for ids, _ in alone] == [[-1, -1]] * 3
    assert [ids for ids, _ in shared] == [[0, 0], [1, 1], [0, 0]]
    assert len({value for _, batch in shared for value in batch} | {after_shared}) == 7
    # What the rank itself draws does not depend on what its workers draw.
    assert after_shared == alone[0][1][0]
    assert after_alone not in [value for _, batch in alone for value in batch]


def test_workers_that_persist_are_set_up_once(kernbench: Kernbench) -> None:
    calls: list[int] = []
    with kernbench.context():
        for persistent in (True, False):
            loader: Any = data.DataLoader(
                range(4),  # type: ignore[arg-type]
                num_workers=2,
                worker_init_fn=calls.append,
                persistent_workers=persistent,
            )
            assert [len(list(loader)) for _ in range(2)] == [4, 4]
    assert calls == [0, 1, *[0, 1] * 2]


def test_batches_on_the_host_are_pinned(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        for place, pinned in (("cpu", True), ("cuda", False)):
            rows = data.TensorDataset(ours.ones(4, 2, device=place))
            (only,) = next(iter(data.DataLoader(rows, 2, pin_memory=True)))
            assert (only.is_pinned(), only.device.type) == (pinned, place)
        loader: Any = data.DataLoader(["a"], pin_memory=True)  # type: ignore[arg-type]
        assert list(loader) == [["a"]]

    kernbench.spawn(worker, nprocs=1)


def test_a_batch_on_the_host_is_copied_to_the_device_in_simulated_time(
    kernbench: Kernbench,
) -> None:
    def worker(rank: int) -> None:
        rows = data.TensorDataset(ours.ones(2, 1 << 20, device="cpu"))
        for (batch,) in data.DataLoader(rows, 2, pin_memory=True):
            start, end = (ours.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            batch.to("cuda", non_blocking=True)
            end.record()
            end.synchronize()
            assert start.elapsed_time(end) > 0.1

    kernbench.spawn(worker, nprocs=1)


REFUSED: Final[dict[str, tuple[Program, type[Exception], type[Exception], str]]] = {
    "sizes": (
        lambda lib, d: d.TensorDataset(lib.ones(2), lib.ones(3)),
        AssertionError,
        AssertionError,
        "Size mismatch",
    ),
    "nothing": (lambda lib, d: d.ConcatDataset([]), AssertionError, AssertionError, "empty"),
    "rows": (
        lambda lib, d: d.ConcatDataset([_stream(d, 3)]),
        AssertionError,
        AssertionError,
        "does not support IterableDataset",
    ),
    "chain": (
        lambda lib, d: list(d.ChainDataset([range(3)])),
        AssertionError,
        AssertionError,
        "only supports",
    ),
    "stack": (lambda lib, d: d.StackDataset(), OptionError, ValueError, "At least one"),
    "index": (
        lambda lib, d: d.ConcatDataset([range(3)])[-4],
        OptionError,
        ValueError,
        "absolute value",
    ),
    "split": (lambda lib, d: d.random_split(range(9), [3, 3]), OptionError, ValueError, "Sum"),
    "fractions": (
        lambda lib, d: d.random_split(range(9), [1.5, -0.5]),
        OptionError,
        ValueError,
        "Fraction at index 0",
    ),
    "replacement": (
        lambda lib, d: d.RandomSampler(range(3), 1),
        OperandError,
        TypeError,
        "boolean value",
    ),
    "empty": (lambda lib, d: d.RandomSampler([]), OptionError, ValueError, "num_samples=0"),
    "batch size": (
        lambda lib, d: d.DataLoader(range(3), batch_size=0),
        OptionError,
        ValueError,
        "batch_size=0",
    ),
    "drop": (
        lambda lib, d: d.BatchSampler(range(3), 1, 2),
        OptionError,
        ValueError,
        "drop_last=2",
    ),
    "weights": (
        lambda lib, d: d.WeightedRandomSampler([[1.0]], 1),
        OptionError,
        ValueError,
        "1d sequence",
    ),
    "samples": (
        lambda lib, d: list(d.WeightedRandomSampler([1.0], 2, False)),
        RuntimeError,
        RuntimeError,
        "without replacement",
    ),
    "rank": (
        lambda lib, d: d.DistributedSampler(range(3), 2, 2),
        OptionError,
        ValueError,
        "Invalid rank 2",
    ),
    "workers": (
        lambda lib, d: d.DataLoader(range(3), num_workers=-1),
        OptionError,
        ValueError,
        "non-negative",
    ),
    "timeout": (
        lambda lib, d: d.DataLoader(range(3), timeout=-1),
        OptionError,
        ValueError,
        "timeout",
    ),
    "prefetch": (
        lambda lib, d: d.DataLoader(range(3), prefetch_factor=2),
        OptionError,
        ValueError,
        "prefetch_factor",
    ),
    "persistent": (
        lambda lib, d: d.DataLoader(range(3), persistent_workers=True),
        OptionError,
        ValueError,
        "persistent_workers",
    ),
    "orders": (
        lambda lib, d: d.DataLoader(range(3), shuffle=True, sampler=[1]),
        OptionError,
        ValueError,
        "mutually exclusive with shuffle",
    ),
    "both": (
        lambda lib, d: d.DataLoader(range(3), 2, batch_sampler=[[1]]),
        OptionError,
        ValueError,
        "mutually exclusive with batch_size",
    ),
    "no batches": (
        lambda lib, d: d.DataLoader(range(3), None, drop_last=True),
        OptionError,
        ValueError,
        "disables auto-batching",
    ),
    "shuffled row": (
        lambda lib, d: d.DataLoader(_stream(d, 3), shuffle=True),
        OptionError,
        ValueError,
        "shuffle",
    ),
    "fixed": (
        lambda lib, d: setattr(d.DataLoader(range(3)), "batch_size", 3),
        OptionError,
        ValueError,
        "should not be set after",
    ),
    "unknown": (
        lambda lib, d: d.default_collate([object()]),
        OperandError,
        TypeError,
        "default_collate: batch must contain",
    ),
    "objects": (
        lambda lib, d: d.default_collate([np.array(["a"])]),
        OperandError,
        TypeError,
        "default_collate: batch must contain",
    ),
    "lengths": (
        lambda lib, d: d.default_collate([[1], [1, 2]]),
        RuntimeError,
        RuntimeError,
        "equal size",
    ),
    "shapes": (
        lambda lib, d: d.default_collate([np.ones(2), np.ones(3)]),
        RuntimeError,
        RuntimeError,
        "equal size",
    ),
    "subclass": (
        lambda lib, d: type("S", (d.Subset,), {"__getitem__": lambda self, i: i})([], []),
        NotImplementedError,
        NotImplementedError,
        "__getitems__",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(kernbench: Kernbench, name: str) -> None:
    program, error, _, text = REFUSED[name]
    with kernbench.context(), pytest.raises(error, match=text):
        program(ours, data)


@pytest.mark.torch
@pytest.mark.parametrize("name", REFUSED)
def test_pytorch_refuses_it_with_the_same_kind(name: str) -> None:
    torch = pytest.importorskip("torch")
    program, _, error, _ = REFUSED[name]
    with pytest.raises(error):
        program(torch, importlib.import_module("torch.utils.data"))


def test_a_context_of_processes_is_not_simulated(kernbench: Kernbench) -> None:
    with kernbench.context(), pytest.raises(UnsupportedError, match="multiprocessing_context"):
        data.DataLoader(range(3), multiprocessing_context="spawn")  # type: ignore[arg-type]


def test_warnings_name_the_line_of_the_user(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.warns(UserWarning, match="Length of split at index 1") as told:
            data.random_split(range(2), [0.9, 0.1])  # type: ignore[arg-type]
        assert told[0].filename == __file__
        loader: Any = data.DataLoader(range(2), pin_memory=True, pin_memory_device="cuda")  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
            iter(loader)
