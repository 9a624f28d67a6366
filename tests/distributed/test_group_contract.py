"""What every function does with groups that are unknown, destroyed or somebody else's."""

from collections.abc import Callable
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench

Call = Callable[[Any], object]

ASKING: dict[str, Call] = {
    "get_process_group_ranks": dist.get_process_group_ranks,
    "get_global_rank": lambda group: dist.get_global_rank(group, 0),
    "get_group_rank": lambda group: dist.get_group_rank(group, 0),
    "get_rank": dist.get_rank,
    "get_world_size": dist.get_world_size,
    "get_backend": dist.get_backend,
    "destroy_process_group": dist.destroy_process_group,
    "new_subgroups": lambda group: dist.new_subgroups(1, group),
    "split_group": lambda group: dist.split_group(group, [[0], [1]]),
    "barrier": dist.barrier,
}

MOVING: dict[str, Call] = {
    "all_reduce": lambda group: dist.all_reduce(ones(), group=group),
    "broadcast": lambda group: dist.broadcast(ones(), 0, group=group),
    "reduce": lambda group: dist.reduce(ones(), 0, group=group),
    "all_gather": lambda group: dist.all_gather([ones(), ones()], ones(), group=group),
    "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(
        torch.ones(4, device="cuda"), ones(), group=group
    ),
    "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(
        torch.ones(1, device="cuda"), ones(), group=group
    ),
    "all_to_all_single": lambda group: dist.all_to_all_single(ones(), ones(), group=group),
    "send": lambda group: dist.send(ones(), 1 - dist.get_rank(), group=group),
    "irecv": lambda group: dist.irecv(ones(), 1 - dist.get_rank(), group=group),
    "broadcast_object_list": lambda group: dist.broadcast_object_list([1], 0, group=group),
    "all_gather_object": lambda group: dist.all_gather_object([None, None], 1, group=group),
}


def ones() -> torch.Tensor:
    return torch.ones(2, device="cuda")


def test_what_a_group_says_of_itself(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([2, 0], group_desc="evaluation")
        if rank == 1:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            dist.destroy_process_group(group)  # does nothing
        else:
            assert (group.size(), group.rank()) == (2, rank // 2)
            assert (group.name, group.desc) == ("G1{0,2}", "evaluation")
            assert dist.get_process_group_ranks(group) == [0, 2]
            assert dist.get_global_rank(group, 1) == 2
            assert dist.get_group_rank(group, 2) == 1
        dist.destroy_process_group()
        for call in ASKING.values():
            with pytest.raises(RuntimeError):
                call(None if rank == 1 else group)

    kernbench.spawn(worker, nprocs=3)


@pytest.mark.parametrize("name", [*ASKING, *MOVING])
def test_a_destroyed_group_is_refused_by_every_function(kernbench: Kernbench, name: str) -> None:
    call = {**ASKING, **MOVING}[name]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(RuntimeError, match="which it has destroyed") as caught:
            call(group)
        assert isinstance(caught.value, ValueError)
        assert "dist.new_group([0, 1])" in str(caught.value)
        for method in (group.rank, group.size):
            with pytest.raises(RuntimeError, match="which it has destroyed"):
                method()
        # The world is usable, and nothing is under way.
        dist.all_reduce(ones())
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


@pytest.mark.parametrize("name", [*ASKING, *MOVING])
def test_what_is_no_group_is_an_unknown_group(kernbench: Kernbench, name: str) -> None:
    """PyTorch looks it up among its groups, does not find it, and raises `ValueError`."""
    call = {**ASKING, **MOVING}[name]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for unknown in ("tp", object(), 7):
            with pytest.raises(ValueError, match="expected a ProcessGroup or None") as caught:
                call(unknown)
            assert isinstance(caught.value, TypeError)
            assert "test_group_contract.py" in str(caught.value)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_pending_operations_are_named(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([0, 1])
        work = dist.all_reduce(ones(), group=group, async_op=True)
        for doomed in (group, None):
            with pytest.raises(KernbenchError, match="1 operation is pending") as caught:
                dist.destroy_process_group(doomed)
            assert "all_reduce #1 of group G1{0-1} was issued at" in str(caught.value)
        work.wait()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_a_rank_that_does_not_make_the_group_is_named(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank != 2:
            group = dist.new_group([0, 1])
            if rank < 2:
                dist.all_reduce(ones(), group=group)
        dist.barrier()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=3)
    assert "rank 2" in str(caught.value)
    assert "new_group" in str(caught.value)


def test_live_groups_of_a_context(kernbench: Kernbench) -> None:
    ctx = kernbench.context()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([0, 1], group_desc="pair")
        world, *others = ctx.distributed.live_groups()
        assert (world.name, world.ranks, world.site) == ("WORLD", (0, 1, 2), None)
        if rank == 2:
            assert others == []
            return
        (pair,) = others
        assert (pair.name, pair.ranks, pair.desc) == (group.name, (0, 1), "pair")
        assert pair.site is not None
        assert pair.site.source == 'group = dist.new_group([0, 1], group_desc="pair")'
        dist.destroy_process_group(group)
        assert [each.name for each in ctx.distributed.live_groups()] == ["WORLD"]

    with ctx:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert ctx.distributed.live_groups() == []
