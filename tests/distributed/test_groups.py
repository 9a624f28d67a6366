"""Process groups: made, named, asked about, limited, destroyed, gone after the spawn."""
# ruff: noqa: E501 - texts as users see them

import warnings
from typing import Any

import pytest
from goldens import ones
from report_text import cut, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import GroupLeakWarning
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed.device_mesh import init_device_mesh

LEAK_HINT = (
    "hint: call destroy_process_group() before a rank returns; without a group it destroys all "
    "groups of the rank, also those that a library made"
)

OUT = dist.GroupMember.NON_GROUP_MEMBER


def test_members_and_outsiders(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        assert not dist.is_initialized()
        assert dist.GroupMember.WORLD is None
        dist.init_process_group("nccl", "env://", world_size=4, rank=rank, device_id=rank)
        assert dist.is_initialized()
        assert isinstance(dist.group.WORLD, ProcessGroup)
        group = dist.new_group([3, 1], group_desc="odd")
        if rank % 2 == 0:
            assert group == OUT
            assert dist.get_rank(group) == dist.get_world_size(group) == -1
            dist.destroy_process_group(group)
        else:
            assert isinstance(group, ProcessGroup)
            assert (group.name, group.desc, group.size()) == ("G1{1,3}", "odd", 2)
            assert (group.group_name, group.group_desc) == (group.name, "odd")
            assert group.rank() == dist.get_rank(group) == rank // 2
            assert dist.get_process_group_ranks(group) == [1, 3]
            assert dist.get_global_rank(group, 1) == 3
            assert dist.get_group_rank(group, 3) == 1
            assert dist.get_backend(group) == "nccl"
            with pytest.raises(ValueError, match="Global rank 0 is not part of group"):
                dist.get_group_rank(group, 0)
            with pytest.raises(ValueError, match="Group rank 2 is not part of group"):
                dist.get_global_rank(group, 2)
            dist.destroy_process_group(group)
            with pytest.raises(RuntimeError, match="which it has destroyed"):
                dist.get_backend(group)
            with pytest.raises(ValueError, match="which it has destroyed"):
                dist.destroy_process_group(group)
        assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]
        assert dist.get_global_rank(dist.group.WORLD, 2) == 2
        dist.destroy_process_group(dist.group.WORLD)
        assert dist.live_groups() == []

    kernbench.spawn(worker, nprocs=4)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("nccl", "nccl"),
        ("NCCL", "nccl"),
        ("cuda:nccl", "cuda:nccl"),
        ("cpu:gloo,CUDA:nccl", "cpu:gloo,cuda:nccl"),
        ("cuda:nccl,cpu:gloo", "cuda:nccl,cpu:gloo"),
        ("gloo", "gloo"),
        (None, "ccl"),
    ],
)
def test_backends(kernbench: Kernbench, given: str | None, name: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group(given, init_method="tcp://10.1.1.20:23456")
        assert dist.get_backend() == name
        dist.monitored_barrier() if name == "gloo" else dist.barrier()

    kernbench.spawn(worker, nprocs=2)


def test_a_group_with_another_backend(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        bits = dist.new_group(backend="gloo")
        assert dist.get_backend(bits) == "gloo"
        x = torch.full((1,), 1 << rank, dtype=torch.int32, device="cuda")
        dist.all_reduce(x, dist.ReduceOp.BOR, group=bits)
        assert x.item() == 7
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])
def test_ranks_may_make_groups_of_one_that_differ(
    kernbench: Kernbench, backend: str, device: str
) -> None:
    """As in PyTorch's `test_new_subgroups_with_group_param`; real Gloo makes these groups, too."""

    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        half, halves = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        mine, alone = dist.new_subgroups(1, group=half)
        assert dist.get_process_group_ranks(mine) == [rank]
        assert len(alone) == 2
        assert alone.count(OUT) == 1
        x = torch.full((1,), float(rank), device=device)
        dist.all_reduce(x, group=mine)
        assert x.item() == rank
        for group in (*alone, *halves):
            dist.destroy_process_group(group)

    kernbench.spawn(worker, nprocs=4)


def test_ranks_may_not_make_larger_groups_that_differ(kernbench: Kernbench) -> None:
    """Real Gloo gives both groups of two one name, and mixes up their ranks."""

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        half, _ = dist.new_subgroups(2)
        dist.new_subgroups(2, group=half)

    assert views(kernbench, worker, 4) == {
        (0, 1, 2, 3): """\
GroupMismatchError: [C9] new_group #3 of the world: ranks 0-3 differ in members
  ranks 0-1: new_group([0, 1]) at 0 ps, at FILE+3: dist.new_subgroups(2, group=half)
  ranks 2-3: new_group([2, 3]) at 0 ps, at FILE+3: dist.new_subgroups(2, group=half)
  hint: every rank makes the same groups in the same order, also those that it is not a member of""",
    }


def test_subgroups(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        mine, everything = dist.new_subgroups(2, group_desc="pair")
        assert len(everything) == 3
        assert dist.get_process_group_ranks(mine) == [rank // 2 * 2, rank // 2 * 2 + 1]
        mine, everything = dist.new_subgroups_by_enumeration([[0, 5], [1, 4]])
        assert (mine is None) == (rank in {2, 3})
        assert everything.count(OUT) == (2 if rank in {2, 3} else 1)
        half = dist.split_group(None, [[0, 1, 2], [3, 4, 5]], group_desc="half")
        assert half is not None
        assert half.name == f"WORLD/1{{{'0-2' if rank < 3 else '3-5'}}}"
        ends = dist.split_group(half, [[0, 2]])
        assert (ends is None) == (rank in {1, 4})
        if ends is not None:
            assert list(ends.ranks) == [rank // 3 * 3, rank // 3 * 3 + 2]
            x = ones(1) * (rank + 1)
            dist.all_reduce(x, group=ends)
            assert x.item() == (4 if rank < 3 else 10)
        for bad in (4, 0):
            with pytest.raises(ValueError, match="cannot be divided"):
                dist.new_subgroups(bad)
        with pytest.raises(ValueError, match="rank 1 is in two groups"):
            dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])
        with pytest.raises(ValueError, match="the list of groups is empty"):
            dist.new_subgroups_by_enumeration([])
        with pytest.raises(ValueError, match="expected a list of lists"):
            dist.split_group(None, [])
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=6)


def test_only_members_make_a_group_with_local_synchronization(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank:
            group = dist.new_group([1, 2], use_local_synchronization=True)
            x = ones(1)
            dist.all_reduce(x, group=group)
            assert x.item() == 2
        else:
            assert dist.new_group([1, 2], use_local_synchronization=True) is None
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 0], "ranks must be different"),
        ([0, 3], "rank 3 does not exist"),
        ([-1], "rank -1 does not exist"),
        ([], "it has no members"),
    ],
)
def test_members_that_cannot_be(kernbench: Kernbench, ranks: list[int], message: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match=message):
            dist.new_group(ranks)
        not_ranks: Any = ["0"]
        with pytest.raises(TypeError, match="a group is made of ranks"):
            dist.new_group(not_ranks)

    kernbench.spawn(worker, nprocs=3)


def test_a_scope_destroys_what_was_made_in_it(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        outer = dist.new_group([0, 1])

        def leave() -> None:
            with dist.group_scope():
                inner = dist.new_group([0, 1], group_desc="inner")
                live = dist.live_groups()
                assert [group.name for group in live] == ["WORLD", outer.name, inner.name]
                assert (live[2].ranks, live[2].desc) == ((0, 1), "inner")
                assert cut(f"at {live[2].site}") == "at FILE"
                raise KeyError("left")

        with pytest.raises(KeyError, match="left"):
            leave()
        assert [group.name for group in dist.live_groups()] == ["WORLD", outer.name]
        with pytest.raises(KernbenchError, match="destroys G3") as caught, dist.group_scope():
            work = dist.all_reduce(ones(), group=dist.new_group([0, 1]), async_op=True)
        assert caught.value.code == "C13"
        work.wait()
        dist.destroy_process_group()
        dist.init_process_group("nccl")
        dist.barrier()

    kernbench.spawn(worker, nprocs=2)


def test_many_groups_are_warned_of_once(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for _ in range(70):
            dist.new_group([0, 1])
        dist.destroy_process_group()

    with pytest.warns(GroupLeakWarning) as caught:
        kernbench.spawn(worker, nprocs=2)
    assert [cut(str(warning.message)) for warning in caught] == [
        "[C17] rank 0 holds 64 process groups\n"
        "  64 of them were made at FILE: dist.new_group([0, 1])\n"
        "  hint: destroy groups after their last use, or make them in `with group_scope():`"
    ]


def test_the_limit_is_an_error(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for _ in range(5):
            dist.new_group([0, 1])

    ctx = kernbench.context(group_limit=4)
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert list(caught.value.errors) == [0, 1]


def test_leaks_are_listed(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        kept = dist.new_group([0, 2])
        gone = dist.new_group([0, 1, 2])
        dist.destroy_process_group(gone)
        assert kept is not None

    with pytest.warns(GroupLeakWarning) as caught:
        kernbench.spawn(worker, nprocs=3)
    assert [cut(str(warning.message)) for warning in caught] == [
        "[C17] process groups were made and not destroyed: 1\n"
        "  group G1{0,2}, held by ranks 0, 2, made at FILE: kept = dist.new_group([0, 2])\n"
        f"  {LEAK_HINT}"
    ]


def test_leaks_of_one_line_are_told_together(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        init_device_mesh("cuda", (2, 2))
        dist.new_group([1, 2])

    with pytest.warns(GroupLeakWarning) as caught:
        kernbench.spawn(worker, nprocs=4)
    assert [cut(str(warning.message)) for warning in caught] == [
        "[C17] process groups were made and not destroyed: 5\n"
        "  4 groups such as G1{0,2}, held by ranks 0-3, made at FILE: "
        'init_device_mesh("cuda", (2, 2))\n'
        "  group G5{1-2}, held by ranks 1-2, made at FILE: dist.new_group([1, 2])\n"
        f"  {LEAK_HINT}"
    ]


def test_nothing_survives_a_spawn(kernbench: Kernbench) -> None:
    kept: list[Any] = []
    ctx = kernbench.context()

    def first(rank: int) -> None:
        dist.init_process_group("nccl")
        kept.append(dist.new_group([0, 1]))

    def second(rank: int) -> None:
        assert not dist.is_initialized()
        assert dist.live_groups() == []
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match="of a spawn that is over"):
            dist.barrier(kept[rank])
        assert dist.new_group([0, 1]).name == "G1{0-1}"
        dist.destroy_process_group()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GroupLeakWarning)
        ctx.multiprocessing.spawn(first, nprocs=2)
    assert ctx.world.groups == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctx.multiprocessing.spawn(second, nprocs=2)
    with ctx:
        assert dist.live_groups() == []
        with pytest.raises(KernbenchError, match="main called barrier without an initialised"):
            dist.barrier()


def test_async_operations_of_two_groups_overlap(kernbench: Kernbench) -> None:
    """Each group has a communication stream of its own: crossing order is no deadlock."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        xs = [ones(1), ones(1)]
        order = (0, 1) if rank else (1, 0)
        works = [dist.all_reduce(xs[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        assert [x.item() for x in xs] == [2, 2]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_arguments_of_init_process_group(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        for arguments, message in (
            ({"backend": "mpi"}, r"init_process_group\(backend='mpi'\) on rank"),
            ({"init_method": "http://x"}, "init_method='http'"),
            ({"world_size": 5}, "world_size=5"),
            ({"rank": 1 - rank}, f"rank={1 - rank}"),
            ({"store": object()}, r"init_process_group\(store=\) is not simulated"),
            ({"group_name": "x"}, r"init_process_group\(group_name=\) is not simulated"),
            ({"device_id": rank - 1 if rank else 7}, rf"\[M14\] rank {rank} used cuda:"),
        ):
            given: Any = arguments
            with pytest.raises(KernbenchError, match=message):
                dist.init_process_group(**given)
        assert not dist.is_initialized()
        dist.init_process_group(dist.Backend("NCCL"))
        assert dist.get_backend() == dist.Backend.NCCL
        for group, message in (
            ({"backend": "mpi"}, r"new_group\(backend='mpi'\)"),
            ({"device_id": 7}, r"new_group\(device_id=7\)"),
        ):
            given = group
            with pytest.raises(KernbenchError, match=message):
                dist.new_group([0], **given)
        with pytest.raises(ValueError, match="the parent's is 'nccl'"):
            dist.split_group(None, [[0]], backend="gloo")
        dist.destroy_process_group()

    assert dist.is_available()
    assert dist.is_nccl_available()
    assert dist.is_gloo_available()
    assert dist.is_backend_available("gloo")
    assert not dist.is_backend_available("mpi")
    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, nprocs=2)
    with ctx:
        assert dist.get_world_size() == 8
        with pytest.raises(KernbenchError, match="called on main, which is no rank"):
            dist.init_process_group("nccl")
        with pytest.raises(KernbenchError, match="main is no rank"):
            dist.get_rank()


def test_names_of_groups_stay_short(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        odd = dist.new_group(range(0, 60, 2))
        if rank % 2 == 0 and rank < 60:
            assert odd.name == "G1{0,2,..,58}"
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=64, topology="ring1024")


def test_a_long_list_of_leaks_is_cut(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for number in range(11):
            # Each on a line of its own.
            exec("\n" * number + "dist.new_group([0])", {"dist": dist})

    with pytest.warns(GroupLeakWarning) as caught:
        kernbench.spawn(worker, nprocs=2)
    lines = str(caught[0].message).splitlines()
    assert lines[0].endswith("not destroyed: 11")
    assert lines[-2] == "  and 3 more"
    assert len(lines) == 11


def test_destroying_waits_for_what_was_issued(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            dist.all_reduce(ones())
        dist.destroy_process_group()

    with pytest.raises(SpawnException, match="rank 0 waits for rank 1") as caught:
        kernbench.spawn(worker, nprocs=2)
    assert list(caught.value.errors) == [0]


def test_main_destroys_nothing(kernbench: Kernbench) -> None:
    with kernbench.context():
        with dist.group_scope():
            pass
        with pytest.raises(KernbenchError, match="main called destroy_process_group without"):
            dist.destroy_process_group()
