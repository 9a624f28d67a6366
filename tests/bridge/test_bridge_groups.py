"""Messages, groups and modules of `torch.distributed` where PyTorch's own tests found faults."""

import math
from typing import Any

import pytest

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def spawned(worker: Any, nprocs: int = 2) -> list[Any]:
    return kernbench.torchrun_spawn(worker, nprocs=nprocs).returned


def begun(rank: int, size: int, backend: str = "nccl") -> Any:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(backend, rank=rank, world_size=size, init_method="env://")
    return dist


def test_a_message_to_oneself_has_its_numbers() -> None:
    def worker(rank: int) -> float:
        dist = begun(rank, 2)
        given, taken = torch.full((3,), rank + 5.0, device="cuda"), torch.zeros(3, device="cuda")
        messages = [dist.P2POp(dist.irecv, taken, rank), dist.P2POp(dist.isend, given, rank)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        dist.destroy_process_group()
        return float(taken.sum().item())

    assert spawned(worker) == [15.0, 18.0]


def test_a_receive_from_any_rank_gets_the_numbers_of_a_message_that_waits() -> None:
    def worker(rank: int) -> list[tuple[int, float]]:
        dist = begun(rank, 3, "gloo")
        found = []
        if rank == 0:
            for _ in range(2):
                taken = torch.zeros(2)
                sender = dist.recv(taken)
                found.append((sender, taken[0].item()))
        else:
            dist.send(torch.full((2,), float(rank)), 0)
        dist.destroy_process_group()
        return found

    assert sorted(spawned(worker, 3)[0]) == [(1, 1.0), (2, 2.0)]


def test_who_is_no_member_of_a_group_destroys_nothing() -> None:
    def worker(rank: int) -> float:
        dist = begun(rank, 2)
        dist.destroy_process_group(dist.new_group([1]))
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total)
        dist.destroy_process_group()
        return float(total.item())

    assert spawned(worker) == [2.0, 2.0]


def test_a_future_is_a_wait() -> None:
    def worker(rank: int) -> float:
        dist = begun(rank, 2)
        total = torch.ones(1, device="cuda")
        future = dist.all_reduce(total, async_op=True).get_future()
        value = future.wait()[0].item()
        dist.destroy_process_group()
        return float(value)

    assert spawned(worker) == [2.0, 2.0]


def test_synchronised_batch_norm_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(1)
    whole = torch.randn(8, 3, 5)
    weights = torch.randn(8, 3, 5)
    expected = torch.nn.BatchNorm1d(3)
    leaf = whole.clone().requires_grad_()
    (expected(leaf) * weights).sum().backward()

    def worker(rank: int) -> Any:
        dist = begun(rank, 2)
        norm = torch.nn.SyncBatchNorm(3).cuda()
        mine = whole[rank * 4 : rank * 4 + 4].cuda().requires_grad_()
        (norm(mine) * weights[rank * 4 : rank * 4 + 4].cuda()).sum().backward()
        dist.destroy_process_group()
        return norm.running_var.cpu(), mine.grad.cpu()

    returned = spawned(worker)
    torch.testing.assert_close(returned[0][0], expected.running_var)
    torch.testing.assert_close(torch.cat([grad for _, grad in returned]), leaf.grad)


def test_fsdp_without_a_mesh_shards_over_all_devices() -> None:
    from torch.distributed.fsdp import fully_shard

    def worker(rank: int) -> float:
        dist = begun(rank, 2)
        torch.manual_seed(0)
        model = fully_shard(torch.nn.Linear(4, 4, device="cuda"))
        loss = model(torch.ones(2, 4, device="cuda")).square().mean()
        loss.backward()
        dist.destroy_process_group()
        return float(loss.item())

    first, second = spawned(worker)
    assert first == second
    assert math.isfinite(first)


def test_a_collective_inside_autocast_has_its_numbers() -> None:
    def worker(rank: int) -> float:
        dist = begun(rank, 2)
        total = torch.ones(2, device="cuda")
        with torch.autocast("cuda"):
            dist.all_reduce(total)
        dist.destroy_process_group()
        return float(total[0].item())

    assert spawned(worker) == [2.0, 2.0]


@pytest.mark.parametrize("data", [True, False])
def test_functional_collectives_find_a_group_by_every_name_that_pytorch_knows(data: bool) -> None:
    def worker(rank: int) -> None:
        from torch._C._distributed_c10d import _register_process_group

        dist = begun(rank, 2, "cpu:gloo,cuda:nccl")
        _register_process_group("default", dist.group.WORLD)
        functional = torch.ops._c10d_functional
        for device in ("cpu", "cuda"):
            x = torch.ones(4, device=device)
            made = functional.wait_tensor(functional.all_reduce(x, "sum", "default"))
            assert made.shape == (4,)
            if data or device == "cpu":
                assert made.tolist() == [2, 2, 2, 2]
            with pytest.raises(RuntimeError, match=r"Could not resolve .* under the name nobody"):
                functional.all_reduce(x, "sum", "nobody")
            with pytest.raises(RuntimeError, match="Unrecognized reduce_op: most"):
                functional.all_reduce(x, "most", "default")
        dist.destroy_process_group()

    kernbench.torchrun_spawn(worker, nprocs=2, data=data)


def test_a_sum_that_is_too_large_is_infinite_and_warns_of_nothing() -> None:
    def worker(rank: int) -> bool:
        dist = begun(rank, 4)
        sums = []
        for elements in (2, 1 << 20):
            value = torch.full((elements,), torch.finfo(torch.float16).max, device="cuda").half()
            dist.all_reduce(value)
            sums.append(value)
        return all(bool(each.isinf().all()) for each in sums)

    assert spawned(worker, 4) == [True] * 4


def test_a_first_group_of_some_ranks_is_refused_with_a_way_out() -> None:
    def worker(rank: int) -> None:
        import torch.distributed as dist

        if rank < 2:
            dist.init_process_group("nccl", init_method="tcp://a:1", rank=rank, world_size=2)

    with pytest.raises(SpawnException, match="called for 2 ranks, where 4 run") as refused:
        kernbench.torchrun_spawn(worker, nprocs=4)
    assert "new_group makes smaller groups" in str(refused.value)
    assert "<rank>" not in str(refused.value)


def test_a_rank_that_begins_as_another_is_told_so() -> None:
    def worker(rank: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("nccl", init_method="env://", rank=max(rank, 1), world_size=2)

    with pytest.raises(SpawnException, match="called by rank 0 as rank 1"):
        kernbench.torchrun_spawn(worker, nprocs=2)
