"""Handles that `DistributedDataParallel` keeps, or drops, are no mistakes of the program."""

from typing import Any

import pytest

import kernbench

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


def _model(device: str) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).to(device)
    return torch.nn.parallel.DistributedDataParallel(model)


def on_the_host(rank: int) -> list[float]:
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = _model("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((3, 4), float(rank))).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
    return [parameter.detach().sum().item() for parameter in model.parameters()]


def test_ddp_trains_tensors_of_the_host() -> None:
    found = kernbench.torchrun_spawn(on_the_host, nprocs=2).returned
    assert found[0] == found[1]


def uneven(model: Any, batches: int) -> None:
    with model.join(throw_on_early_termination=True):
        for _ in range(batches):
            model(torch.ones(3, 4, device="cuda")).sum().backward()


def ends_early(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    with pytest.raises(RuntimeError, match="exhausted"):
        uneven(_model("cuda"), 2 + rank)
    dist.destroy_process_group()


def test_a_join_that_ends_early_leaves_nothing_for_the_program_to_wait_for() -> None:
    assert kernbench.torchrun_spawn(ends_early, nprocs=2).returned == [None, None]


class Counts(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.ones(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return self.layer(x)


def reduces_buffers(rank: int) -> list[float]:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    locations = torch.nn.parallel.distributed._BufferCommHookLocation
    found = []
    for given, location in ((0, locations.PRE_FORWARD), (1, locations.POST_FORWARD)):

        def hook(model: Any, buffers: Any, given: int = given) -> Any:
            works = [dist.all_reduce(one, async_op=True) for one in buffers.values()]
            futures = [work.get_future() for work in works]
            if given:
                return futures
            torch.futures.collect_all(futures).wait()
            return None

        model = torch.nn.parallel.DistributedDataParallel(Counts().cuda(), device_ids=[rank])
        model._register_buffer_comm_hook(model, hook, location)
        for _ in range(2):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        found.append(model.module.count.item())
    x = torch.ones(3, device="cuda")
    torch.futures.wait_all([dist.all_reduce(x, async_op=True).get_future()])
    found.append((x + 1).sum().item())
    dist.destroy_process_group()
    return found


def test_futures_that_are_waited_for_together_or_by_ddp_are_waited_for() -> None:
    found = kernbench.torchrun_spawn(reduces_buffers, nprocs=2).returned
    assert found == [[7.0, 10.0, 9.0]] * 2
