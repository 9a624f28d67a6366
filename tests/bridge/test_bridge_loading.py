"""`DataLoader` in ranks: workers give what they give in PyTorch."""

import atexit
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import in_main, on_ranks

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


class Noisy:
    """Numbers, and what a worker draws for them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float, int]:
        info = data.get_worker_info()
        number = -1 if info is None else info.id
        return index, torch.rand(1).item(), random.random(), number


class Counted(data.IterableDataset):  # type: ignore[misc, name-defined]
    """Numbers of which each worker takes its own, unless it was told other ones."""

    first = 0
    last = 7

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last))


def split(number: int) -> None:
    info = data.get_worker_info()
    info.dataset.first, info.dataset.last = ((0, 5), (5, 7))[number]


def _batches(make: Callable[[], Any], epochs: int = 1) -> Any:
    torch.manual_seed(1)
    random.seed(1)
    loader = make()
    return [[one.tolist() for one in batch] for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True, "prefetch_factor": 3}])
def test_workers_give_what_processes_give(options: Any) -> None:
    def make() -> Any:
        return data.DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2, **options)

    expected = _batches(make, 2)
    assert on_ranks(lambda _: _batches(make, 2))[0] == expected
    assert {number for batch in expected for number in batch[3]} == {0, 1}


def test_workers_of_an_iterable_data_set_take_turns_and_end_for_themselves() -> None:
    def make() -> Any:
        return data.DataLoader(Counted(), batch_size=2, num_workers=2, worker_init_fn=split)

    def batches() -> Any:
        return [batch.tolist() for batch in make()]

    expected = batches()
    assert expected == [[0, 1], [5, 6], [2, 3], [4]]
    assert on_ranks(lambda _: batches())[0] == expected
    assert Counted.first == 0


def test_a_distributed_sampler_and_pinned_memory_work() -> None:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        sampler = data.DistributedSampler(range(8), num_replicas=2, rank=rank, shuffle=False)
        loader = data.DataLoader(
            torch.arange(8), batch_size=2, sampler=sampler, num_workers=1, pin_memory=True
        )
        batches = list(loader)
        assert all(batch.is_pinned() for batch in batches)
        return [batch.cuda(non_blocking=True).tolist() for batch in batches]

    assert on_ranks(worker, 2) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


class Slow:
    """Numbers, for each of which a worker sleeps."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, float]:
        began = time.perf_counter()
        time.sleep(0.01)
        return index, time.perf_counter() - began


def _seconds(workers: int, **options: Any) -> float:
    begin = time.perf_counter()
    for _, took in data.DataLoader(Slow(), batch_size=2, num_workers=workers, **options):
        assert took.tolist() == pytest.approx([0.01, 0.01])
        time.sleep(0.005)
    return time.perf_counter() - begin


# The rank takes 5 ms for each of 8 batches, a worker 20 ms.
@pytest.mark.parametrize(
    ("workers", "options", "seconds"),
    [
        (0, {}, 8 * 0.025),  # one after the other
        (1, {}, 8 * 0.020 + 0.005),  # the worker is never idle
        (2, {}, 4 * 0.020 + 0.005 + 0.005),
        (4, {}, 2 * 0.020 + 4 * 0.005),
        (8, {}, 0.020 + 8 * 0.005),  # then the rank is the slower one
        (1, {"prefetch_factor": 1}, 8 * 0.020 + 0.005),
    ],
)
def test_workers_work_while_their_rank_does(workers: int, options: Any, seconds: float) -> None:
    assert on_ranks(lambda _: _seconds(workers, **options)) == [pytest.approx(seconds)]


class Ends:
    """Numbers, of which the fifth ends the process of a worker."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end = end

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.end()
        return index


ENDS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "killed": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        RuntimeError,
        r"DataLoader worker \(pid \d+\) is killed by signal: Killed",
    ),
    "aborted": (lambda: (os.abort(),), RuntimeError, "is killed by signal: Aborted"),
    "os._exit": (lambda: os._exit(3), RuntimeError, "exited unexpectedly with exit code 3"),
    "sys.exit": (lambda: sys.exit(4), RuntimeError, "exited unexpectedly with exit code 4"),
    "fails": (lambda: int("x"), ValueError, "Caught ValueError in DataLoader worker process 0"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("place", ["a rank", "main"])
def test_a_worker_that_ends_is_an_error_that_the_program_catches(how: str, place: str) -> None:
    end, kind, told = ENDS[how]

    def worker(_: int = 0) -> list[list[int]]:
        found: list[list[int]] = []
        loader = iter(data.DataLoader(Ends(end), batch_size=2, num_workers=2))
        with pytest.raises(kind, match=told):
            found.extend(batch.tolist() for batch in loader)
        if kind is RuntimeError:
            assert next(loader, None) is None
        atexit.register(ended.append, end)
        return found

    ended: list[Any] = []
    if place == "main":
        assert in_main(worker) == [[0, 1], [2, 3]]
    else:
        assert on_ranks(worker) == [[[0, 1], [2, 3]]]
    assert ended == [end]
