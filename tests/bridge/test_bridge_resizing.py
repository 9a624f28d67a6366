"""Storages of a device that change their size: what memory they take, and when they may."""

import re
from typing import Any

import pytest

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

MIB = 1 << 20
SMALL = ("system.sip.cube.hbm.capacity=64MiB",)


def on_one(worker: Any, data: Any = True, **options: Any) -> Any:
    return kernbench.torchrun_spawn(worker, nprocs=1, data=data, **options).returned[0]


def allocated() -> int:
    return int(torch.cuda.memory_allocated()) // MIB


@pytest.mark.parametrize("data", [True, False])
def test_a_tensor_takes_and_gives_back_what_it_grows_by(data: bool) -> None:
    def worker(_: int) -> list[int]:
        found = []
        x = torch.empty(0, device="cuda")
        for size in (MIB, 4 * MIB, 10):
            x.resize_(size)
            found.append(allocated())
        peak = torch.cuda.max_memory_allocated() // MIB
        y = torch.empty(0, device="cuda").resize_as_(x)
        x.untyped_storage().resize_(0)
        found.append(allocated())
        x.untyped_storage().resize_(8 * MIB)
        found.append(allocated())
        del x, y
        return [*found, allocated(), peak]

    # A smaller tensor keeps its storage; while it grows, the old and the new block are there.
    assert on_one(worker, data) == [4, 16, 16, 0, 8, 0, 20]


@pytest.mark.parametrize("data", [True, False])
def test_what_is_written_to_an_out_that_is_too_small_takes_memory(data: bool) -> None:
    def worker(_: int) -> list[int]:
        a, found = torch.ones(MIB, device="cuda"), []
        out = torch.empty(0, device="cuda")
        torch.add(a, a, out=out)
        found.append(allocated())
        torch.cat((a, a), out=out)
        found.append(allocated())
        torch.zeros(MIB, out=out)
        found.append(allocated())
        values, places = torch.empty(0, device="cuda"), torch.empty(0, dtype=int, device="cuda")
        torch.sort(a, out=(values, places))
        found.append(allocated())
        del out, values, places
        return [*found, allocated()]

    assert on_one(worker, data) == [8, 12, 12, 24, 4]


@pytest.mark.parametrize("data", [True, False])
def test_a_storage_that_a_tensor_is_set_to_grows_with_it(data: bool) -> None:
    def worker(_: int) -> list[int]:
        a, t = torch.ones(MIB, device="cuda"), torch.empty(MIB, device="cuda")
        found = [allocated()]
        t.set_(a)
        found.append(allocated())
        u = torch.empty(0, device="cuda").set_(a.untyped_storage(), MIB, (MIB,), (1,))
        found.append(allocated())
        assert u.is_cuda
        del u
        t.set_()
        del a
        return [*found, allocated()]

    assert on_one(worker, data) == [8, 4, 8, 0]


def grows(way: str, x: Any) -> None:
    wide, high = (torch.ones(shape, device="cuda") for shape in ((1, 5000), (5000, 1)))
    if way == "resize_":
        x.resize_(32 * MIB)
    elif way == "storage":
        x.untyped_storage().resize_(128 * MIB)
    elif way == "set_":
        torch.empty(0, device="cuda").set_(x.untyped_storage(), 0, (32 * MIB,))
    elif way == "zeros":
        torch.zeros(32 * MIB, out=x)
    else:
        torch.mul(wide, high, out=x)


@pytest.mark.parametrize("way", ["resize_", "storage", "set_", "zeros", "mul"])
@pytest.mark.parametrize("data", [True, False])
def test_a_full_device_refuses_before_this_computer_gives_memory(way: str, data: bool) -> None:
    def worker(_: int) -> tuple[int, int]:
        x = torch.empty(0, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as full:
            grows(way, x)
        assert "test_bridge_resizing.py" in str(full.value)
        nbytes, numel = x.untyped_storage().nbytes(), x.numel()
        torch.ones(8 * MIB, device="cuda")  # what was refused takes nothing
        return nbytes, numel

    assert on_one(worker, data, overrides=SMALL) == (0, 0)


def test_a_tensor_keeps_what_it_had_when_it_grows() -> None:
    def worker(_: int) -> list[float]:
        x = torch.arange(3.0, device="cuda")
        return list(x.resize_(5)[:3].tolist())

    assert on_one(worker) == [0, 1, 2]


def test_a_tensor_of_a_device_takes_no_storage_of_the_host() -> None:
    def worker(_: int) -> None:
        with pytest.raises(RuntimeError, match=r'on device "cuda:0" to a storage on .* "cpu"'):
            torch.ones(2, device="cuda").set_(torch.ones(2))
        with pytest.raises(RuntimeError, match=r'on device "cpu" to a storage on .* "cuda:0"'):
            torch.ones(2).set_(torch.ones(2, device="cuda"))

    on_one(worker)


def in_flight(rank: int, way: str, waits: bool, device: str) -> int:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group()
    x = torch.ones(8, device=device)
    work = dist.all_reduce(x, async_op=True)
    if waits:
        work.wait()
    if way == "storage":
        x.untyped_storage().resize_(0)
    else:
        x.resize_(4 if way == "shrinks" else 16)
    work.wait()
    dist.destroy_process_group()
    return int(x.numel())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("way", ["resize_", "storage"])
def test_a_tensor_in_flight_may_not_change_its_size(way: str, device: str) -> None:
    with pytest.raises(SpawnException) as failed:
        kernbench.torchrun_spawn(in_flight, nprocs=2, args=(way, False, device))
    text = str(failed.value)
    assert "[C15]" in text
    assert re.search(r"test_bridge_resizing.py:\d+:\d+: x.*resize_", text)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_tensor_that_was_waited_for_may_change_its_size(device: str) -> None:
    def run(way: str, waits: bool) -> list[int]:
        spawn = kernbench.torchrun_spawn(in_flight, nprocs=2, args=(way, waits, device))
        return list(spawn.returned)

    assert run("resize_", True) == [16, 16]
    assert run("storage", True) == [8, 8]
    assert run("shrinks", False) == [4, 4], "the storage stays"
