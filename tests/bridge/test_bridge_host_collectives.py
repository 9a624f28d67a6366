"""Collectives of tensors of the host: they have values with and without numbers on devices."""

from typing import Any

import pytest

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

WAYS = [True, False, "fake"]


def exchanged(rank: int, backend: str | None) -> list[list[float]]:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    torch.cuda.set_device(rank)
    dist.init_process_group(backend)
    found = []
    mine = torch.tensor([rank + 1.0, 10.0 * rank])
    summed = mine.clone()
    dist.all_reduce(summed)
    found.append(summed)
    least = mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN, async_op=True).wait()
    found.append(least)
    sent = mine.clone()
    dist.broadcast(sent, 2)
    found.append(sent)
    whole = torch.empty(6)
    dist.all_gather_into_tensor(whole, mine)
    found.append(whole)
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.arange(3.0) * (rank + 1))
    found.append(part)
    passed = torch.empty(2)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (rank + 1) % 3),
            dist.P2POp(dist.irecv, passed, (rank - 1) % 3),
        ]
    )
    for request in requests:
        request.wait()
    found.append(passed.clone())
    if rank == 1:
        dist.send(mine, 0)
    elif rank == 0:
        dist.recv(passed)
        found.append(passed)
    found.append(functional.all_reduce(mine, "sum", dist.group.WORLD) + 0)
    on_device = torch.ones(4, device="cuda")
    dist.all_reduce(on_device)
    dist.destroy_process_group()
    return [each.tolist() for each in found]


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("data", WAYS)
def test_numbers_of_the_host_move_whatever_devices_have(data: Any, backend: str | None) -> None:
    outcome = kernbench.torchrun_spawn(exchanged, nprocs=3, data=data, args=(backend,))
    for rank, found in enumerate(outcome.returned):
        from_before = [(rank - 1) % 3 + 1.0, 10.0 * ((rank - 1) % 3)]
        assert found == [
            [6, 30],
            [1, 0],
            [3, 20],
            [1, 0, 2, 10, 3, 20],
            [6.0 * rank],
            from_before,
            *([[2, 10]] if rank == 0 else []),
            [6, 30],
        ]
    assert outcome.document["made_up_values"]["count"] == 0
    assert outcome.document["late_events"] == 0


@pytest.mark.parametrize("data", WAYS)
def test_nccl_takes_no_tensors_of_the_host(data: Any) -> None:
    with pytest.raises(SpawnException, match="No backend type associated with device type cpu"):
        kernbench.torchrun_spawn(exchanged, nprocs=3, data=data, args=("nccl",))


def same(rank: int) -> list[list[float]]:
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group()
    summed, whole = torch.tensor([2.0, 3.0]), torch.empty(8)
    dist.all_reduce(summed)
    dist.all_gather_into_tensor(whole, torch.tensor([5.0, 7.0]))
    dist.destroy_process_group()
    return [summed.tolist(), whole.tolist()]


def test_ranks_that_repeat_others_give_the_numbers_of_those() -> None:
    outcome = kernbench.torchrun_spawn(same, nprocs=4, data=False, same_ranks=True)
    expected = [[8, 12], [5, 7] * 4]
    assert outcome.returned == [expected, None, None, expected]
