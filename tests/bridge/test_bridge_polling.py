"""Ranks that read the same value for ever (K6), and ranks that read for long, and then stop."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import machine, on_ranks

from kernbench.ranks import livelock
from kernbench.ranks.livelock import LivelockError
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


@pytest.fixture(autouse=True)
def few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livelock, "READS", 2000)


def _item(flag: Any) -> bool:
    return bool(flag.item() == 0)


def _copy(flag: Any) -> bool:
    return bool(flag.cpu()[0] == 0)


def _list(flag: Any) -> bool:
    return bool(flag.tolist()[0] == 0)


def _truth(flag: Any) -> bool:
    return not flag


def _view(flag: Any) -> bool:
    return bool(flag[0].item() == 0)


def _for_ever(flag: Any) -> None:
    while flag.item() == 0:
        pass


LOOKS = [_item, _copy, _list, _truth, _view]


@pytest.mark.parametrize("look", LOOKS, ids=[each.__name__ for each in LOOKS])
def test_a_value_that_nobody_writes_is_told(look: Callable[[Any], bool]) -> None:
    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        flag = torch.zeros(1, device="cuda")
        while rank == 0 and look(flag):  # polls
            pass
        dist.barrier(device_ids=[rank])

    with pytest.raises(SpawnException) as failed:
        on_ranks(run, 2)
    text = str(failed.value)
    assert "[K6] rank 0 polls for ever, and nothing else is left to happen" in text
    assert "test_bridge_polling.py" in text
    assert "rank 1 waits in barrier()" in text


def test_a_value_of_the_host_is_told_too() -> None:
    def run(rank: int) -> None:
        flag = torch.full((1,), float("nan"))
        while flag.item() != flag.item():
            pass

    with pytest.raises(SpawnException, match=r"\[K6\]"):
        on_ranks(run)


def test_main_is_told_too() -> None:
    from kernbench.bridge.running import as_rank

    with machine() as ctx, as_rank(ctx.main, data=True, local=8):
        flag = torch.zeros(1, device="cuda")
        with pytest.raises(LivelockError, match=r"\[K6\] main polls for ever"):
            _for_ever(flag)


def test_reads_that_end_are_no_mistake() -> None:
    def run(rank: int) -> float:
        torch.cuda.set_device(rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl", rank=rank, world_size=2, init_method="tcp://x:1"
        )
        flag, stop = torch.zeros(1, device="cuda"), torch.zeros(1)
        total = 0.0
        for _ in range(3000):  # something happens between reads
            total += flag.add_(1).item()
        many = torch.arange(3000)
        total += sum(many[at].item() for at in range(3000))
        count = torch.zeros(1)
        while not stop.item():  # only the host works
            total += torch.ones(4).mul(2).add(1).sub(1).mul(1).div(2).sum().item()
            count += 1
            if count.item() == 3000:
                break
        return float(total)

    assert on_ranks(run, 2) == [4501500.0 + 4498500.0 + 12000.0] * 2
