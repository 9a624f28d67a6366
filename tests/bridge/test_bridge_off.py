"""Programs of PyTorch without numbers."""

from collections.abc import Callable

import pytest

from kernbench.runtime_api.pytorch_versions import minor_of

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


_STRIDES: list[tuple[int, ...]] = []


def _convolves(rank: int) -> None:
    import torch

    last = torch.channels_last
    torch.cuda.set_device(rank)
    with torch.device("cuda"):
        torch.manual_seed(0)
        body = torch.nn.Sequential(
            torch.nn.Conv2d(8, 16, 3, bias=False),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(16, 8, 3),
        ).to(memory_format=last)
        x = torch.ones(2, 8, 6, 6)
        wide = torch.nn.Conv3d(8, 4, 1).to(memory_format=torch.channels_last_3d)
    # The order of a result is that of any operand.
    for given in x.contiguous(memory_format=last), x:
        result = given
        for layer in body:
            result = layer(result)
            _STRIDES.append(result.stride())
        result.square().mean().backward()
    _STRIDES.append(wide(x[..., None]).stride())
    _STRIDES.append(torch.nn.functional.conv2d(x, torch.ones(4, 8, 1, 1, device="cuda")).stride())


def test_convolutions_keep_the_order_of_elements_that_they_have_with_numbers() -> None:
    _STRIDES.clear()
    with_numbers = _run(data=True, worker=_convolves, ranks=1), [*_STRIDES]
    assert _STRIDES[:4] == [(256, 1, 64, 16)] * 3 + [(288, 1, 48, 8)]
    _STRIDES.clear()
    assert (_run(data=False, worker=_convolves, ranks=1), _STRIDES) == with_numbers


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


def _writes_thrice(rank: int) -> None:
    import torch

    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    matrix, places = torch.ones(4, 4, device="cuda"), torch.arange(4, device="cuda")
    for _ in range(4):
        x.addcdiv_(y, y, value=0.5).addcmul_(y, y, value=2).add_(y, alpha=2)
        x.addmv_(matrix, y, beta=2, alpha=3).div_(y, rounding_mode="floor").clamp_(max=3)
        x.scatter_reduce_(0, places, y, "sum", include_self=False)
        x.index_add_(0, places, y, alpha=2)
    _SEEN.append((rank, x.numel(), 0))
    linear = torch.nn.Linear(2, 2, device="cuda")
    for kind in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adadelta):
        optimizer = kind(linear.parameters(), foreach=False)
        for _ in range(4):
            linear(torch.ones(1, 2, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_what_is_written_with_arguments_by_any_name_is_repeated() -> None:
    times = [_run(data=data, worker=_writes_thrice, ranks=1) for data in (True, False)]
    assert times[0] == times[1]


def test_no_name_of_an_argument_is_one_that_runs_it() -> None:
    """An operation's arguments by name go on to functions of this package."""
    import inspect

    import torch

    from kernbench.bridge.cuda.randomness import draw
    from kernbench.bridge.operations import shape_mode
    from kernbench.bridge.tensors.no_numbers import shaping

    names = {
        argument.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        for argument in schema.arguments
        if argument.kwarg_only
    }
    assert {"value", "alpha", "rounding_mode"} <= names
    for function in (draw, shape_mode._first, shaping(torch.ops.aten.add.Tensor)):
        taken = inspect.signature(function).parameters.values()
        by_name = {one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD}
        assert not by_name & names, function


def _begins(rank: int) -> None:
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2,))
    init = torch.nn.init
    plain = torch.nn.Parameter(torch.empty(4, 4, device="cuda"))
    on_host = torch.nn.Parameter(torch.ones(4, 4))
    parts = [
        torch.nn.Parameter(distribute_tensor(torch.ones(4, 4, device="cuda"), mesh, [placement]))
        for placement in (Shard(0), Replicate())
    ]
    begins: list[Callable[[torch.Tensor], torch.Tensor]] = [
        init.trunc_normal_,
        lambda tensor: init.trunc_normal_(tensor, std=0.02),
        lambda tensor: init.trunc_normal_(tensor, 3.0, 1.0, 4.0, 5.0),  # draws in another way
        init.normal_,
        init.uniform_,
        init.xavier_normal_,
        init.kaiming_uniform_,
        init.orthogonal_,
    ]
    if minor_of(torch.__version__) < (2, 14):  # since then a DTensor has no eye_
        begins.append(init.eye_)
    for begin in begins:
        for tensor in (plain, *parts, on_host):
            assert begin(tensor) is tensor
    with torch.no_grad():
        assert (init.trunc_normal_(on_host, 0.0, 1.0, 1.5, 5.0) >= 1.5).all()
    _SEEN.append((rank, 0, 0))


@pytest.mark.parametrize("fake", [True, False])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_parameters_begin_with_random_numbers(fake: bool) -> None:
    from kernbench.isolation.made_up import MADE_UP

    _SEEN.clear()
    _run(data=False, worker=_begins, ranks=2, fake=fake)
    assert sorted(_SEEN) == [(0, 0, 0), (1, 0, 0)]
    assert MADE_UP.count == 0


def test_a_value_that_is_read_is_refused() -> None:
    from kernbench.isolation.made_up import MADE_UP

    with pytest.raises(Exception, match="there are no numbers"):
        _run(data=False, worker=_reads, ranks=1)
    assert MADE_UP.count == 0


def test_a_value_that_is_read_is_made_up_and_counted() -> None:
    from kernbench.isolation.made_up import MADE_UP

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
