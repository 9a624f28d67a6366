"""Calls by a rank that is not in the group, and messages of a rank to itself."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench

OUT = dist.GroupMember.NON_GROUP_MEMBER


def x() -> torch.Tensor:
    return torch.ones(2)


CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda g: dist.all_reduce(x(), group=g),
    "broadcast": lambda g: dist.broadcast(x(), 1, group=g),
    "reduce": lambda g: dist.reduce(x(), 1, group=g),
    "all_gather": lambda g: dist.all_gather([x()], x(), group=g),
    "all_gather_into_tensor": lambda g: dist.all_gather_into_tensor(x(), x(), group=g),
    "gather": lambda g: dist.gather(x(), None, 1, group=g),
    "scatter": lambda g: dist.scatter(x(), None, 1, group=g),
    "reduce_scatter": lambda g: dist.reduce_scatter(x(), [x()], group=g),
    "reduce_scatter_tensor": lambda g: dist.reduce_scatter_tensor(x(), x(), group=g),
    "all_to_all": lambda g: dist.all_to_all([x()], [x()], group=g),
    "all_to_all_single": lambda g: dist.all_to_all_single(x(), x(), group=g),
    "all_reduce_coalesced": lambda g: dist.all_reduce_coalesced([x()], group=g),
    "all_gather_coalesced": lambda g: dist.all_gather_coalesced([[x()]], [x()], group=g),
    "barrier": dist.barrier,
    "monitored_barrier": dist.monitored_barrier,
    "send": lambda g: dist.send(x(), 1, group=g),
    "isend": lambda g: dist.isend(x(), 1, group=g),
    "irecv": lambda g: dist.irecv(x(), 1, group=g),
    "broadcast_object_list": lambda g: dist.broadcast_object_list([1], 1, group=g),
    "all_gather_object": lambda g: dist.all_gather_object([1], 1, group=g),
    "gather_object": lambda g: dist.gather_object(1, None, 1, group=g),
    "scatter_object_list": lambda g: dist.scatter_object_list([1], None, 1, group=g),
    "send_object_list": lambda g: dist.send_object_list([1], 1, group=g),
}
RECEIVES: dict[str, Callable[[Any], Any]] = {
    "recv": lambda g: dist.recv(x(), 1, group=g),
    "recv_object_list": lambda g: dist.recv_object_list([1], 1, group=g),
}


@pytest.mark.parametrize("name", [*CALLS, *RECEIVES])
def test_a_call_outside_of_the_group_warns_and_does_nothing(
    kernbench: Kernbench, name: str
) -> None:
    call = {**CALLS, **RECEIVES}[name]
    seen: list[warnings.WarningMessage] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([1])
        if rank == 0:
            assert group == OUT
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    assert call(group) == (-1 if name in RECEIVES else None)
            seen.extend(caught)
        dist.barrier()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)
    (warning,) = seen
    lines = str(warning.message).splitlines()
    assert lines[0] == (
        f"[C8] Running {name} on global rank 0 which does not belong to the given group."
    )
    assert "test_outside_groups.py" in lines[1]
    assert lines[2].startswith("  not in G1{1}; group G1{1} was made by rank 0 at ")
    assert lines[3].startswith("  hint: call it on the members only")
    assert warning.filename == __file__


def test_async_calls_return_nothing(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([1])
        if rank == 0:
            with pytest.warns(UserWarning, match="does not belong to the given group"):
                assert dist.all_reduce(x(), group=group, async_op=True) is None
        else:
            dist.all_reduce(x(), group=group, async_op=True).wait()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_what_asks_about_a_group_still_needs_a_member(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([1])
        if rank == 0:
            assert dist.get_rank(group) == dist.get_world_size(group) == -1
            for ask in (dist.get_backend, dist.get_process_group_ranks):
                with pytest.raises(RuntimeError, match="C8"):
                    ask(group)
        dist.barrier()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


# Messages of a rank to itself


def test_a_batch_may_hold_both_sides_of_a_message(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ranks = dist.get_world_size()
        mine = [torch.full((2,), float(10 * rank + to)) for to in range(ranks)]
        got = [torch.empty(2) for _ in range(ranks)]
        batch = [dist.P2POp(dist.isend, mine[to], to) for to in range(ranks)]
        batch += [dist.P2POp(dist.irecv, got[source], source) for source in range(ranks)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert [each[0].item() for each in got] == [10.0 * s + rank for s in range(ranks)]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


def test_messages_to_oneself_pair_up_by_tag_and_order(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        sent = [torch.full((2, 2), float(n)) for n in range(3)]
        got = [torch.zeros(4) for _ in range(3)]
        batch = [dist.P2POp(dist.irecv, got[n], rank, tag=tag) for n, tag in enumerate((7, 5, 5))]
        batch += [dist.P2POp(dist.isend, sent[n], rank, tag=tag) for n, tag in enumerate((5, 7, 5))]
        dist.batch_isend_irecv(batch)[0].wait()
        assert [each.tolist() for each in got] == [[1.0] * 4, [0.0] * 4, [2.0] * 4]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=1)


@pytest.mark.parametrize("op", [dist.isend, dist.irecv])
def test_one_side_alone_is_refused(kernbench: Kernbench, op: Any) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match=r"P6.*itself as the other side, and no i"):
            dist.batch_isend_irecv([dist.P2POp(op, x(), rank)])
        with pytest.raises(ValueError, match=r"P6.*with itself as the other side"):
            op(x(), rank)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=1)


def test_both_sides_are_alike(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        batch = [dist.P2POp(dist.isend, x(), rank), dist.P2POp(dist.irecv, torch.ones(3), rank)]
        with pytest.raises(RuntimeError, match=r"P7.*another size or type than it receives"):
            dist.batch_isend_irecv(batch)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=1)


def test_between_hosts_there_is_no_message_to_oneself(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        one = torch.ones(2, device="cpu")
        batch = [dist.P2POp(dist.isend, one, rank), dist.P2POp(dist.irecv, one.clone(), rank)]
        with pytest.raises(ValueError, match="P6"):
            dist.batch_isend_irecv(batch)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=1)


# Reduce operations


def test_reduce_operations_are_instances_of_their_class() -> None:
    ops: tuple[Any, ...] = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PREMUL_SUM)
    for op in (*ops, dist.ReduceOp(dist.ReduceOp.SUM)):
        assert isinstance(op, dist.ReduceOp)
    assert isinstance(ops[0], dist.ReduceOp.RedOpType)
    others: list[Any] = [3, "sum", None, torch.float32]
    assert not any(isinstance(other, dist.ReduceOp) for other in others)
