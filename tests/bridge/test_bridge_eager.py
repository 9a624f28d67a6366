"""What PyTorch itself takes: host times and memory, on a machine with round numbers, by hand."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from kernbench.runtime_api.pytorch_versions import minor_of

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

MIB = 1 << 20
US = 10**6
"""Picoseconds of a microsecond."""


def _on_ranks(
    worker: Callable[[int], Any], ranks: int, *, data: bool, workspace: str = "1 B"
) -> Any:
    """Returns what rank 0 gives: 10 us a kernel, 1 us a view, 5 us with autograd, x 1.5 beside."""
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    eager = {"view": "1us", "autograd": "5us", "dtensor": "40us", "beside_percent": 150}
    eager |= {"among": "3us", "tensor": "2us", "library.product": "20us"}
    eager |= {"backward": "100us", "step": "50us", "zero_grad": "30us", "zeroed": "4us"}
    eager |= {"workspace": workspace}
    changes = ["system.host.dispatch=10us"]
    changes += [f"system.host.eager.{name}={value}" for name, value in eager.items()]
    topology = load_topology("h200x8", overrides=changes).topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=data)
    given = {}

    def main(rank: int) -> None:
        given[rank] = worker(rank)

    with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
        torch.multiprocessing.spawn(main, nprocs=ranks)
    return given[0]


def _host_us(call: Callable[[], object]) -> float:
    """Returns the host time of a call, whose first run finds out shapes."""
    from kernbench.process.process import current_process

    call()
    host = current_process().host
    before = host.clock
    call()
    return (host.clock - before) / US


def _times(rank: int) -> list[float]:
    torch.cuda.set_device(rank)
    x = torch.ones(64, 64, device="cuda")
    w = torch.ones(64, 64, device="cuda", requires_grad=True)
    with torch.no_grad():
        plain = [_host_us(lambda: x + x), _host_us(x.t)]
    kept = [w + x]

    def backward() -> None:
        w.grad = None
        torch.autograd.grad(w.t(), w, x)

    return [*plain, _host_us(lambda: kept.append(w + x)), _host_us(w.t), _host_us(backward)]


@pytest.mark.parametrize("data", [True, False])
def test_an_operation_takes_the_host_time_of_its_kind(data: bool) -> None:
    # A view with autograd takes 1 + 5 us, in the forward and in the backward pass, which takes 100.
    assert _on_ranks(_times, 1, data=data) == [10, 1, 15, 6, 112]


@pytest.mark.parametrize("data", [True, False])
def test_a_rank_beside_others_takes_longer(data: bool) -> None:
    assert _on_ranks(_times, 2, data=data) == [15, 1.5, 22.5, 9, 168]


def _optimisers(rank: int) -> list[float]:
    torch.cuda.set_device(rank)
    found = []
    for device in ("cuda", "cpu"):
        model = torch.nn.Linear(8, 8, device=device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def given(call: Callable[[], object], leaves: list[Any]) -> Callable[[], object]:
            def run() -> None:
                for each in leaves:
                    each.grad = each.detach()
                call()

            return run

        leaves = list(model.parameters())
        calls = (optimizer.step, optimizer.zero_grad, model.zero_grad)
        found += [given(call, leaves) for call in calls]
    with torch.no_grad():
        return [_host_us(call) for call in found]


def test_optimisers_take_time_beside_what_they_issue_and_for_each_gradient_that_goes() -> None:
    # Two detached views a call; a command on a list of two, 10 + 2 x 2; two gradients of 4.
    expected = [2 + 50 + 14, 2 + 30 + 8, 2 + 30 + 8]
    assert _on_ranks(_optimisers, 1, data=True) == [*expected, 0, 0, 0]


def _lists(rank: int) -> list[float]:
    torch.cuda.set_device(rank)
    x = torch.ones(64, 64, device="cuda")
    lists = [torch.ones(8, device="cuda") for _ in range(4)]

    def both() -> None:
        torch._foreach_add_(lists, 1.0)
        torch.mm(x, x)

    with torch.no_grad():
        return [_host_us(lambda: torch._foreach_add_(lists, 1.0)), _host_us(both)]


@pytest.mark.parametrize("data", [True, False])
def test_an_operation_on_lists_takes_time_for_each_tensor_and_a_product_its_own(data: bool) -> None:
    # 10 + 4 x 2 us for the list; the product 20 more. Behind another operation 3 us more, but not
    # for the product of the second pass: both are a loop then.
    assert _on_ranks(_lists, 1, data=data) == [18, 18 + 3 + 10 + 20]


def _dtensor(rank: int) -> list[float]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
    with torch.no_grad():
        local = torch.ones(4, 4, device="cuda")
        whole = DTensor.from_local(local, init_device_mesh("cuda", (2,)), [Shard(0)])
        found = [_host_us(lambda: local + local), _host_us(lambda: whole + whole)]
    dist.destroy_process_group()
    return found


def test_an_operation_on_a_dtensor_takes_its_dispatch_beside_its_kernel() -> None:
    assert _on_ranks(_dtensor, 2, data=False) == [15, 15 + 60]


def _peak_of_fsdp2(rank: int) -> int:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
    mesh = init_device_mesh("cuda", (2,))
    layers = [torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    x = torch.ones(1, 1024, device="cuda")
    with torch.no_grad():
        model(x)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            model(x)
    dist.destroy_process_group()
    return int(torch.cuda.max_memory_allocated())


@pytest.mark.parametrize("data", [True, False])
def test_the_peak_of_fsdp2_is_what_is_sharded_and_one_layer_gathered(data: bool) -> None:
    # Three halves of 4 MiB; of one layer what was gathered, flat, and its weight; and what was
    # gathered of the layer before, which PyTorch keeps until the weight is made; since 2.15, until
    # the next is gathered.
    peak = _on_ranks(_peak_of_fsdp2, 2, data=data)
    gathered = 3 if minor_of(torch.__version__) < (2, 15) else 2
    assert 0 <= peak - (3 * 2 + gathered * 4) * MIB < MIB // 16


def _peak_of_products(rank: int) -> list[int]:
    del rank
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    seen = []
    for _ in range(2):
        y = x @ x
        seen.append(torch.cuda.memory_allocated() // MIB)
        y.sum().backward()
        seen.append(torch.cuda.memory_allocated() // MIB)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x @ x
    return [*seen, torch.cuda.memory_allocated() // MIB]


@pytest.mark.parametrize("data", [True, False])
def test_cublas_takes_a_workspace_a_pass_and_stream(data: bool) -> None:
    found = _on_ranks(_peak_of_products, 1, data=data, workspace="4 MiB")
    assert found == [4, 8, 8, 8, 12]


def _pauses(rank: int) -> None:
    torch.cuda.set_device(rank)
    w = torch.ones(64, 64, device="cuda", requires_grad=True)
    x = torch.ones(64, 64, device="cuda")
    time.sleep(300e-6)
    for _ in range(10):
        w.t().t() + x
    time.sleep(200e-6 * rank)
    torch.distributed.barrier(device_ids=[rank])
    torch.cuda.synchronize()


def test_a_breakdown_counts_what_a_host_does_between_commands_and_no_pause() -> None:
    import kernbench
    from kernbench.report import breakdown

    eager = ["view=1us", "autograd=5us", "beside_percent=100"]
    changes = ["system.host.dispatch=10us", *(f"system.host.eager.{each}" for each in eager)]

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        _pauses(rank)

    ctx = kernbench.torchrun_spawn(worker, nprocs=2, overrides=changes, record="full").context
    rows = [row for row in breakdown(ctx.engine.op_log, ctx.engine.dispatch_ps) if row.rank >= 0]
    for row in rows:
        # Each turn: two views and an operation that autograd sees, on the host.
        assert row.host_ps >= 10 * (2 * 6 + 15) * US
        assert row.exposed_host_ps <= row.host_ps <= row.span_ps - 300 * US
        # Nothing is idle but while the host works or sleeps.
        assert row.exposed_host_ps > 0.9 * (row.idle_ps - (300 + 200 * row.rank) * US)
    assert len(rows) == 2
