"""Programs of PyTorch without numbers."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch


def _run(*, data: bool, worker: Callable[[int], None], ranks: int, fake: bool = False) -> int:
    torch = pytest.importorskip("torch")
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    engine = GraphEngine(
        load_topology("h200x8").topology_obj, enable_data=False, moves_at_call=True
    )
    with RuntimeContext(engine=engine, quiet=True), bridged(data=data, fake=fake):
        torch.multiprocessing.spawn(worker, nprocs=ranks)
        return engine.loop.now


def _train(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=4, init_method="tcp://x:1")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
    mesh = init_device_mesh("cuda", (4,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.ones(4, 32, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    _SEEN.append((rank, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
    dist.destroy_process_group()


_SEEN: list[tuple[int, int, int]] = []


def test_time_and_memory_are_those_of_a_run_with_numbers() -> None:
    _SEEN.clear()
    with_numbers = _run(data=True, worker=_train, ranks=4), sorted(_SEEN)
    _SEEN.clear()
    assert (_run(data=False, worker=_train, ranks=4), sorted(_SEEN)) == with_numbers


def _reads(rank: int) -> None:
    import torch

    del rank
    value = torch.rand(3, device="cuda")  # of numbers that follow from the program, none is made up
    _SEEN.append((int(value.sum().item()), len(value.nonzero()), int(value.cpu()[0])))


def test_what_is_known_of_shapes_is_what_operations_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernbench.bridge.operations.shape_mode import Shapes

    _SEEN.clear()
    repeated = _run(data=False, worker=_train, ranks=4), sorted(_SEEN)
    init = Shapes.__init__
    learnt: list[Shapes] = []

    def shadowing(self: Shapes) -> None:
        init(self)
        self.shadows = True
        learnt.append(self)

    monkeypatch.setattr(Shapes, "__init__", shadowing)
    _SEEN.clear()
    assert (_run(data=False, worker=_train, ranks=4), sorted(_SEEN)) == repeated
    assert any(shapes.seen for shapes in learnt)


def _counts_on_the_host(rank: int) -> None:
    import torch

    torch.cuda.set_device(rank)
    linear = torch.nn.Linear(2, 2, device="cuda")
    optimizer = torch.optim.AdamW(linear.parameters())
    counted = torch.tensor(0.0)
    scaled = torch.tensor(3.0)
    for _ in range(3):
        linear(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        counted += 1
        scaled = scaled * 2
    first, second = (int(state["step"].item()) for state in optimizer.state.values())
    _SEEN.append((first, second, int(counted.item() + scaled.item()) + 100 * rank))


def test_values_of_the_host_are_real_without_numbers_on_the_device() -> None:
    _SEEN.clear()
    _run(data=False, worker=_counts_on_the_host, ranks=2)
    assert sorted(_SEEN) == [(3, 3, 27), (3, 3, 127)]


def test_a_value_that_is_read_is_refused() -> None:
    from kernbench.bridge.tensors.no_numbers import MADE_UP

    with pytest.raises(Exception, match="there are no numbers"):
        _run(data=False, worker=_reads, ranks=1)
    assert MADE_UP.count == 0


def test_a_value_that_is_read_is_made_up_and_counted() -> None:
    from kernbench.bridge.tensors.no_numbers import MADE_UP

    _SEEN.clear()
    _run(data=False, worker=_reads, ranks=1, fake=True)
    assert _SEEN == [(0, 0, 0)]
    assert MADE_UP.count >= 3
    assert "rank 0 at" in str(MADE_UP.as_json()["first"])
    assert "test_bridge_off.py" in str(MADE_UP.as_json()["first"])


def _casts(rank: int) -> None:
    import torch

    del rank
    x, linear = torch.ones(2, 2, device="cuda"), torch.nn.Linear(2, 2, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y = linear(x)
        assert y.dtype == torch.bfloat16
        assert (y @ y).dtype == torch.bfloat16
        assert y.softmax(-1).dtype == torch.float32
        assert torch.cat((x, y)).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert linear(x).dtype == torch.float32


@pytest.mark.parametrize("data", [True, False])
def test_autocast_casts_by_the_lists_of_cuda(data: bool) -> None:
    _run(data=data, worker=_casts, ranks=1)


def _gathers(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
    mesh = init_device_mesh("cuda", (2,))
    whole = DTensor.from_local(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)])
    for _ in range(3):
        held = whole.redistribute(placements=[Replicate()]).to_local() + 1
        _SEEN.append((rank, held.numel(), torch.cuda.memory_allocated()))
        del held
    dist.destroy_process_group()  # refused while a collective is not waited for


@pytest.mark.parametrize("data", [True, False])
def test_a_functional_collective_is_waited_for_and_then_lets_its_memory_go(data: bool) -> None:
    _SEEN.clear()
    _run(data=data, worker=_gathers, ranks=2)
    assert len(set(_SEEN)) == 2, "each pass holds as much as the first"


def _makes_of_parts(rank: int) -> None:
    import torch

    torch.cuda.set_device(rank)
    x = torch.rand(3, device="cuda")
    assert torch.tensor([[x[0], 1.0], [x[1], 2.0]]).tolist() == [[0.0, 1.0], [0.0, 2.0]]
    assert torch.tensor([x[2], 1.0], device="cuda").shape == (2,)


def test_a_tensor_made_of_values_of_the_device_reads_them() -> None:
    _run(data=False, worker=_makes_of_parts, ranks=1, fake=True)
    with pytest.raises(Exception, match="reads a value of a tensor on its device"):
        _run(data=False, worker=_makes_of_parts, ranks=1)
