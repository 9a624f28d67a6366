"""The dial `default_device="cpu"`: everything is made, moved, refused and timed as in PyTorch.

The answers are those of PyTorch 2.11 on an H200.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench import extend
from kernbench.errors import UsageError
from kernbench.memory import UninitialisedReadError
from kernbench.process.access import AccessError, OwnershipError
from kernbench.process.process import current_process
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch import nn
from kernbench.torch.nn.parallel import DistributedDataParallel

PCIE_PS_PER_BYTE: Final = 20
LATENCY_PS: Final = 2_000_000
DISPATCH_PS: Final = 2_000_000


def spawn(
    kernbench: Kernbench, worker: Callable[..., object], nprocs: int = 1, **fields: Any
) -> RuntimeContext:
    return kernbench.spawn(worker, nprocs=nprocs, **{"default_device": "cpu", **fields})


MAKERS: Final[dict[str, Callable[[], torch.Tensor]]] = {
    "empty": lambda: torch.empty(2),
    "zeros": lambda: torch.zeros(2),
    "ones": lambda: torch.ones(2),
    "full": lambda: torch.full((2,), 1.0),
    "arange": lambda: torch.arange(2),
    "linspace": lambda: torch.linspace(0, 1, 2),
    "eye": lambda: torch.eye(2),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1.0]),
    "rand": lambda: torch.rand(2),
    "randn": lambda: torch.randn(2),
    "randint": lambda: torch.randint(3, (2,)),
    "randperm": lambda: torch.randperm(2),
    "Linear": lambda: nn.Linear(2, 2).weight,
    "Embedding": lambda: nn.Embedding(2, 2).weight,
    "LayerNorm": lambda: next(nn.LayerNorm(2).parameters()),
    "RMSNorm": lambda: next(nn.RMSNorm(2).parameters()),
    "Parameter": lambda: nn.Parameter(torch.ones(2)),
}


def places() -> set[str]:
    return {str(make().device) for make in MAKERS.values()}


@pytest.mark.parametrize(("dial", "device"), [("cuda", "cuda:1"), ("cpu", "cpu")])
def test_where_tensors_are_made(kernbench: Kernbench, dial: str, device: str) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            assert places() == {device}
            assert str(torch.get_default_device()) == device
            assert {str(make().cuda().device) for make in MAKERS.values()} == {"cuda:1"}

    spawn(kernbench, worker, 2, default_device=dial)


@pytest.mark.parametrize("dial", ["cuda", "cpu"])
def test_a_program_sets_its_default_device(kernbench: Kernbench, dial: str) -> None:
    def worker(rank: int) -> None:
        usual = torch.get_default_device()
        with torch.device("cuda"):
            assert places() == {"cuda:0"}
            with torch.device("cpu") as inner:
                assert places() == {"cpu"}
                assert inner == torch.device("cpu")
            assert places() == {"cuda:0"}
        with pytest.raises(ZeroDivisionError), torch.device("cpu"):
            _ = 1 // 0
        assert torch.get_default_device() == usual
        torch.set_default_device("cpu")
        assert places() == {"cpu"}
        torch.set_default_device("cuda:0")
        assert places() == {"cuda:0"}
        torch.set_default_device(None)
        assert torch.get_default_device() == usual
        for call in (lambda: torch.set_default_device("cuda:1"), lambda: _made_on("cuda:1")):
            with pytest.raises(OwnershipError, match="the device of rank 1"):
                call()
        with pytest.raises(RuntimeError, match="'gpu' is no device"):
            torch.set_default_device("gpu")
        assert torch.get_default_device() == usual

    def first(rank: int) -> None:
        if rank == 0:
            worker(rank)

    spawn(kernbench, first, 2, default_device=dial)


def _made_on(device: str) -> torch.Tensor:
    with torch.device(device):
        return torch.ones(1)


def test_ranks_set_their_own_default_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            torch.set_default_device("cuda")
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()  # lets the other rank run
        assert torch.ones(1).is_cuda == (rank == 0)

    spawn(kernbench, worker, 2)


def test_an_array_is_made_of_the_host_only(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(2, device="cuda")
        text = (
            r"can't convert cuda:0 device type tensor to numpy\. "
            r"Use Tensor\.cpu\(\) to copy the tensor to host memory first\."
        )
        calls: list[Callable[[], object]] = [
            x.numpy,
            lambda: np.asarray(x),
            lambda: np.array(x),
            lambda: np.add(x, 1),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=text) as caught:
                call()
            assert "test_default_device.py" in str(caught.value)
        assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist() == [1, 1]
        assert (x.tolist(), x.sum().item(), float(x[0]), f"{x[1]:.1f}") == ([1, 1], 2, 1, "1.0")

    spawn(kernbench, worker)


def test_an_array_is_made_of_a_device_by_default(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        assert torch.ones(2).numpy().tolist() == np.asarray(torch.ones(2)).tolist() == [1, 1]
        assert torch.equal(torch.ones(2), torch.ones(2, device="cpu"))

    kernbench.spawn(worker, nprocs=1)


def test_comparisons_on_the_host_keep_devices_apart(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        here, there = torch.ones(2), torch.ones(2, device="cuda")
        for compare in (torch.equal, torch.allclose):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                compare(here, there)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.equal(here.sum(), there.sum())
        assert torch.allclose(there, here[0])

    spawn(kernbench, worker)


def test_a_copy_from_pageable_memory_blocks_the_host(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        host = current_process().host
        x = torch.ones(1000)
        assert host.clock == 0, "the host's own arithmetic is free"
        copy = DISPATCH_PS + 4000 * PCIE_PS_PER_BYTE + LATENCY_PS
        y = x.cuda(non_blocking=True)
        assert host.clock == copy
        pinned = x.pin_memory()
        z = pinned.to("cuda", non_blocking=True)
        assert host.clock == copy + DISPATCH_PS, "the host ran on"
        with pytest.raises(AccessError, match="C14"):
            pinned.zero_()
        assert z.cpu().tolist() == y.cpu().tolist() == [1] * 1000
        before = host.clock
        y.cpu()
        assert host.clock == before + copy

    spawn(kernbench, worker)


def test_what_was_never_written_may_be_moved_but_not_read(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.empty(2, 3)
        x[0] = torch.tensor([1.0, 2.0, 3.0])
        for y in (x.cuda(), x.to("cuda", torch.bfloat16), x.pin_memory().T.cuda(non_blocking=True)):
            row = y[0] if y.shape == (2, 3) else y[:, 0]
            assert row.tolist() == [1, 2, 3]
            with pytest.raises(UninitialisedReadError, match="3 of 6 elements"):
                y.tolist()
        with pytest.raises(UninitialisedReadError):
            torch.zeros(2, 3, device="cuda").copy_(x)

    spawn(kernbench, worker)


def test_a_program_is_later_by_its_copies_alone(kernbench: Kernbench) -> None:
    values = list(range(1024))

    def finish(x: torch.Tensor) -> list[float]:
        dist.init_process_group("nccl")
        y = x.reshape(32, 32)
        y = y @ y
        dist.all_reduce(y)
        dist.destroy_process_group()
        sums: list[float] = y.sum(0).tolist()
        return sums

    def named(rank: int) -> None:
        seen.append(finish(torch.tensor(values, dtype=torch.float32, device="cuda")))

    def moved(rank: int) -> None:
        seen.append(finish(torch.tensor(values, dtype=torch.float32).cuda()))

    def twice(rank: int) -> None:
        seen.append(finish(torch.tensor(values, dtype=torch.float32).cuda().cpu().cuda()))

    seen: list[list[float]] = []
    ends = [spawn(kernbench, named, 2, default_device="cuda").engine.loop.now]
    ends += [spawn(kernbench, worker, 2).engine.loop.now for worker in (named, moved, twice)]
    copy = DISPATCH_PS + 4096 * PCIE_PS_PER_BYTE + LATENCY_PS
    assert ends[1:] == [ends[0], ends[0], ends[0] + 2 * copy]
    assert len(seen) == 8
    assert all(each == seen[0] for each in seen)


def test_indices_from_the_host_are_copied_and_the_copy_takes_time(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        host = current_process().host
        x, index = torch.arange(8.0).cuda(), torch.tensor([3, 1])
        x.cpu()
        before = host.clock
        y = x[index]
        copy = DISPATCH_PS + 16 * PCIE_PS_PER_BYTE + LATENCY_PS
        assert host.clock == before + copy + DISPATCH_PS
        assert y.tolist() == [3, 1]

    spawn(kernbench, worker)


def test_host_and_device_draw_from_generators_of_their_own(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.manual_seed(3)
        first, there = torch.rand(2), torch.rand(2, device="cuda")
        assert torch.rand(2).tolist() != first.tolist()
        torch.cuda.manual_seed_all(3)
        assert torch.rand(2, device="cuda").tolist() == there.tolist()
        torch.manual_seed(3)
        torch.rand(5, device="cuda")
        assert torch.rand(2).tolist() == first.tolist()

        text = "Expected a 'cuda' device type for generator but found 'cpu'"
        calls: list[Callable[[], object]] = [
            lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
            lambda: torch.randperm(2, device="cuda", generator=torch.Generator()),
            lambda: torch.bernoulli(there, generator=torch.Generator()),
            lambda: torch.multinomial(there, 1, generator=torch.Generator()),
            lambda: nn.init.normal_(there, generator=torch.Generator()),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match=text):
                call()
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            torch.rand(2, generator=torch.Generator("cuda"))
        assert torch.rand(2, device="cuda", generator=torch.Generator("cuda")).is_cuda

    spawn(kernbench, worker)


def test_a_block_draws_from_the_generator_of_one_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.manual_seed(1)
        here, there = torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()
        torch.manual_seed(1)
        with extend.draw_from(torch.Generator("cuda").manual_seed(9)):
            assert torch.rand(2).tolist() == here
            assert torch.rand(2, device="cuda").tolist() != there
        assert torch.rand(2, device="cuda").tolist() == there

    spawn(kernbench, worker)


class Net(nn.Module):
    """The model of a tutorial, with a buffer that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.register_buffer("scale", torch.full((2,), 0.5))
        self.table = torch.ones(2)  # neither: `to` forgets it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x) * self.scale
        return out


def test_a_model_left_on_the_host_is_found(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        model, x, target = Net(), torch.randn(3, 4), torch.tensor([0, 1, 1])
        with pytest.raises(
            RuntimeError, match=r"linear got tensor \[3, 4\].* on cuda:0 and tensor"
        ):
            model(x.to(device))
        assert model.to(device) is model
        with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu!"):
            model(x)
        with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu!"):
            F.cross_entropy(model(x.to(device)), target)
        with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu!"):
            _ = model(x.to(device)) + model.table

        optimizer = torch.optim.Adam(model.parameters())
        F.cross_entropy(model(x.to(device)), target.to(device)).backward()
        optimizer.step()
        state = optimizer.state_dict()["state"][0]
        assert {str(state[name].device) for name in ("exp_avg", "exp_avg_sq")} == {"cuda:0"}
        assert {str(p.grad.device) for p in model.parameters() if p.grad is not None} == {"cuda:0"}

        kept = model.state_dict()
        fresh = Net()
        fresh.load_state_dict(kept)
        assert {str(entry.device) for entry in fresh.state_dict().values()} == {"cpu"}
        assert torch.equal(fresh.layers[0].weight, kept["layers.0.weight"].cpu())
        assert model.cpu().scale.is_cpu
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            optimizer.step()  # its state is still on the device

    spawn(kernbench, worker)


def _trained(where: str, backend: str | None, seen: dict[Any, Any]) -> Callable[[int], None]:
    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        torch.manual_seed(rank)
        model = DistributedDataParallel(Net().to(where), find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(rank + step)).to(where)).square().mean().backward()
            optimizer.step()
        seen[where, backend, rank] = [p.cpu().tolist() for p in model.parameters()]
        dist.destroy_process_group()

    return worker


def test_data_parallel_training_on_the_host_and_on_devices(kernbench: Kernbench) -> None:
    seen: dict[Any, Any] = {}
    for where, backend in (("cpu", "gloo"), ("cpu", None), ("cuda", "nccl")):
        spawn(kernbench, _trained(where, backend, seen), 2)
    assert len(seen) == 6
    assert all(values == seen["cuda", "nccl", 0] for values in seen.values())
    with pytest.raises(SpawnException, match=r"parameter layers\.0\.weight is on cpu"):
        spawn(kernbench, _trained("cpu", "nccl", seen), 2)


def test_models_on_the_host_must_be_alike_too(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        with pytest.raises(ValueError, match="device_ids and output_device arguments only work"):
            DistributedDataParallel(nn.Linear(2, 2), device_ids=[rank])
        DistributedDataParallel(nn.Linear(2, 2 + rank))

    with pytest.raises(SpawnException, match="DataParallelError") as caught:
        spawn(kernbench, worker, 2)
    assert set(caught.value.errors) == {0, 1}
    assert {type(error).__name__ for error in caught.value.errors.values()} == {"DataParallelError"}


def test_nccl_takes_no_tensor_of_the_host(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.send(x, 0)):
            with pytest.raises(
                RuntimeError, match="No backend type associated with device type cpu"
            ):
                call(torch.ones(2))
        group = dist.new_group(backend="gloo")
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        y = torch.ones(2).cuda()
        dist.all_reduce(y)
        assert x.tolist() == y.tolist() == [2, 2]
        dist.destroy_process_group()

    spawn(kernbench, worker, 2)


def test_a_norm_over_a_group_counts_ranks_without_gradients(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        grads = [torch.full((4,), 2.0, device="cuda")] if rank else []
        norm = nn.utils.get_total_norm(grads, group=dist.group.WORLD)
        assert (norm.is_cuda, norm.item()) == (True, 4)
        dist.destroy_process_group()

    spawn(kernbench, worker, 2)


def test_a_report_says_the_dial_in_its_last_line(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.ones(2).cuda().numpy()

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, worker)
    assert str(caught.value).endswith("replay: seed 0, schedule 0, default_device cpu")
    with pytest.raises(UsageError, match="default_device: expected one of cuda, cpu, got 'gpu'"):
        spawn(kernbench, worker, default_device="gpu")
