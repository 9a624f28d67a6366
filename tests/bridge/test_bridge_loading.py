"""`DataLoader` in ranks: workers give what they give in PyTorch."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import on_ranks

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
