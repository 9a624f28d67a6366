"""Objects between ranks: copies, with data on and off, timed as the bytes that they are."""

import dataclasses
import pickle
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.process import current_process
from kernbench.testing import Kernbench

N = 3


@dataclasses.dataclass
class Plan:
    steps: list[int]


def _objects(rank: int) -> Any:
    return [Plan(list(range(rank))), {"rank": rank}, None][rank]


@pytest.mark.parametrize("data", [True, False])
def test_objects_arrive_as_copies(kernbench: Kernbench, data: bool) -> None:
    shared = Plan([1, 2])

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        found: list[Any] = [shared, "x" * 300] if rank == 1 else [None, None]
        dist.broadcast_object_list(found, src=1)
        assert found == [Plan([1, 2]), "x" * 300]
        assert (found[0] is shared) == (rank == 1)

        everything: list[Any] = [None] * N
        dist.all_gather_object(everything, _objects(rank))
        assert everything == [_objects(r) for r in range(N)]

        gathered: list[Any] | None = [None] * N if rank == 2 else None
        dist.gather_object(rank * 10, gathered, group_dst=2)
        assert gathered == ([0, 10, 20] if rank == 2 else None)

        out: list[Any] = [None]
        dist.scatter_object_list(out, [_objects(r) for r in range(N)] if rank == 0 else None)
        assert out == [_objects(rank)]

        if rank == 0:
            everything[1]["rank"] = -1
        dist.barrier()
        assert everything[1]["rank"] == (-1 if rank == 0 else 1)

    kernbench.spawn(worker, nprocs=N, data=data)


def test_objects_in_a_group(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        group = dist.new_group([3, 1])
        if rank % 2:
            found = [f"from {rank}"]
            device = torch.device("cpu")
            dist.broadcast_object_list(found, group_src=1, group=group, device=device)
            assert found == ["from 3"]
            out: list[Any] = [None, None]
            dist.all_gather_object(out, rank, group=group)
            assert out == [1, 3]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


@pytest.mark.parametrize("data", [True, False])
def test_objects_are_sent_to_one_rank(kernbench: Kernbench, data: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for src in (0, None):
            if rank == 0:
                dist.send_object_list([Plan([1, 2]), "x" * 300], dst=1)
            else:
                found: list[Any] = [None, None]
                assert dist.recv_object_list(found, src=src) == 0
                assert found == [Plan([1, 2]), "x" * 300]

    kernbench.spawn(worker, nprocs=2, data=data)


def test_large_objects_take_longer_and_their_sizes_are_exchanged(kernbench: Kernbench) -> None:
    times: dict[int, int] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        host = current_process().host
        for size in (10, 1 << 20):
            dist.barrier()
            before = host.clock
            with dist.comm_debug.CommDebugMode() as mode:
                dist.broadcast_object_list([bytes(size)] if rank == 0 else [None])
            times[size] = max(times.get(size, 0), host.clock - before)
            assert mode.get_comm_counts() == {"broadcast": 2}
            assert size < mode.get_comm_bytes()["broadcast"] - 8 < size + 100

    kernbench.spawn(worker, nprocs=2)
    assert times[1 << 20] > 2 * times[10] > 0


def test_what_cannot_be_pickled_is_refused_by_the_rank_that_has_it(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(pickle.PicklingError, match=f"rank {rank} cannot pickle obj, "):
            dist.all_gather_object([None] * N, lambda: rank)
        with pytest.raises(ValueError, match="list of size at least 1"):
            dist.scatter_object_list([], None)

    kernbench.spawn(worker, nprocs=N)
