"""What a model needs of HBM, before it is there: counted by hand for a few layers."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.memory.allocator import OutOfMemoryError
from kernbench.process.process import current_process
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.model_memory import TensorSize, check_model_fits, model_memory
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

MIB = 1 << 20
Built = tuple[torch.nn.Module, torch.optim.Optimizer | None]


class Net(torch.nn.Module):
    """Parameters of 4 MiB, 1 MiB and, frozen, 2 MiB."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.big = torch.nn.Linear(1024, 1024, bias=False)
        self.small = torch.nn.Parameter(torch.zeros(512, 1024, dtype=torch.bfloat16))
        self.frozen = torch.nn.Parameter(torch.zeros(512, 1024), requires_grad=False)
        if rank == 2:
            self.more = torch.nn.Linear(2048, 1024, bias=False)


def _net(rank: int) -> Built:
    model = Net(rank)
    return model, torch.optim.AdamW(model.parameters())


def _small(kernbench: Kernbench, mib: int) -> RuntimeContext:
    cubes = kernbench.context().engine.topology.num_cubes
    return kernbench.context(overrides=[f"system.sip.cube.hbm.capacity={mib * 1024 // cubes} KiB"])


def test_every_byte_is_counted(kernbench: Kernbench) -> None:
    ctx = kernbench.context()
    found = model_memory(ctx, _net, 3)
    assert [each.rank for each in found] == [each.sip for each in found] == [0, 1, 2]
    assert found[0].parameters == (
        TensorSize("small", (512, 1024), "torch.bfloat16", MIB),
        TensorSize("frozen", (512, 1024), "torch.float32", 2 * MIB),
        TensorSize("big.weight", (1024, 1024), "torch.float32", 4 * MIB),
    )
    for each, more in zip(found, (0, 0, 8), strict=True):
        assert each.parameters_bytes == (7 + more) * MIB
        assert each.gradients_bytes == (5 + more) * MIB
        assert each.optimizer_bytes == 2 * (5 + more) * MIB
        assert each.total_bytes == (22 + 4 * more) * MIB


def test_optimizers_keep_what_they_say(kernbench: Kernbench) -> None:
    def build(make: object) -> int:
        model = torch.nn.Linear(16, 16, bias=False)
        (memory,) = model_memory(ctx, lambda rank: (model_of(), make_of(make)), 1)
        del model
        return memory.optimizer_bytes

    ctx = kernbench.context()
    kept: list[torch.nn.Module] = []

    def model_of() -> torch.nn.Module:
        kept[:] = [torch.nn.Linear(16, 16, bias=False)]
        return kept[0]

    def make_of(make: object) -> torch.optim.Optimizer | None:
        return make(kept[0].parameters()) if callable(make) else None

    assert build(None) == 0
    assert build(torch.optim.SGD) == 0
    assert build(lambda p: torch.optim.SGD(p, momentum=0.9)) == 1024
    assert build(torch.optim.Adam) == build(torch.optim.AdamW) == 2048


def test_a_count_is_what_a_step_leaves_allocated(kernbench: Kernbench) -> None:
    ctx = kernbench.context()
    (expected,) = model_memory(ctx, _net, 1)
    left = []

    def worker(rank: int) -> None:
        model, optimizer = _net(rank)
        assert isinstance(model, Net)
        assert optimizer is not None
        before = torch.cuda.memory_allocated()
        loss = model.big(torch.ones(1, 1024)).sum() + model.small.sum()
        loss.backward()
        optimizer.step()
        del loss
        torch.cuda.synchronize()
        left.append((before, torch.cuda.memory_allocated()))

    ctx.multiprocessing.spawn(worker, nprocs=1)
    assert left == [(expected.parameters_bytes, expected.total_bytes)]


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_count_is_what_two_backward_passes_leave_allocated(
    kernbench: Kernbench, dtype: torch.dtype, zeroed: bool
) -> None:
    def build(rank: int) -> Built:
        del rank
        model = torch.nn.Linear(1024, 512, bias=False, dtype=dtype)
        model.register_parameter(
            "frozen", torch.nn.Parameter(torch.zeros(1024, dtype=dtype), requires_grad=False)
        )
        return model, None

    def worker(rank: int) -> None:
        model, _ = build(rank)
        for passes in range(2):
            if passes and zeroed:
                model.zero_grad(set_to_none=False)
            model(torch.ones(1, 1024, dtype=dtype)).sum().backward()
            torch.cuda.synchronize()
            left.append(torch.cuda.memory_allocated())

    left: list[int] = []
    ctx = kernbench.context()
    (once,), (more,) = (
        model_memory(ctx, build, 1, accumulates=accumulates) for accumulates in (False, True)
    )
    ctx.multiprocessing.spawn(worker, nprocs=1)
    assert left == [once.total_bytes, more.total_bytes]
    narrow = dtype in {torch.bfloat16, torch.float16}
    assert more.gradients_bytes - once.gradients_bytes == narrow * 4 * 512 * 1024


def test_what_is_refused_depends_on_whether_gradients_add_up(kernbench: Kernbench) -> None:
    ctx = _small(kernbench, 22)
    ctx.check_model_fits(_net, 1)
    with pytest.raises(OutOfMemoryError) as caught:
        ctx.check_model_fits(_net, 1, accumulates=True)
    lines = str(caught.value).splitlines()
    assert "it needs 24 MiB, and the device has 22 MiB" in lines[0]
    assert lines[2] == "  gradients 7 MiB (7340032 B)"
    assert lines[4] == "  gradients add up over backward passes: with float32 sums of narrower ones"


def test_a_model_that_does_not_fit_is_refused_with_names(kernbench: Kernbench) -> None:
    ctx = _small(kernbench, 21)
    with pytest.raises(OutOfMemoryError) as caught:
        check_model_fits(ctx, _net, 3)
    assert str(caught.value) == (
        "[M7] the model of rank 2 does not fit its device cuda:2: it needs 54 MiB, and the device "
        "has 21 MiB of HBM\n"
        "  parameters 15 MiB (15728640 B)\n"
        "  gradients 13 MiB (13631488 B)\n"
        "  optimizer state 26 MiB (27262976 B)\n"
        "  gradients are of one backward pass a step; accumulates=True counts several\n"
        "  activations are not counted\n"
        "  largest parameters:\n"
        "    8 MiB (8388608 B) more.weight torch.float32[1024, 2048]\n"
        "    4 MiB (4194304 B) big.weight torch.float32[1024, 1024]\n"
        "    2 MiB (2097152 B) frozen torch.float32[512, 1024]\n"
        "    1 MiB (1048576 B) small torch.bfloat16[512, 1024]\n"
        "  ranks 0-1 neither, with up to 22 MiB\n"
        "  hint: shard the model over more ranks (tensor parallelism), take a smaller type, or "
        "raise system.sip.cube.hbm.capacity in the topology file"
    )


def test_a_model_that_just_fits_is_not_refused(kernbench: Kernbench) -> None:
    ctx = _small(kernbench, 22)
    found = ctx.check_model_fits(_net, 2)
    assert found == check_model_fits(ctx, _net, 2)
    assert [each.total_bytes for each in found] == [each.capacity for each in found]


def test_counting_touches_nothing(kernbench: Kernbench) -> None:
    ctx = kernbench.context(record="full")
    check_model_fits(ctx, _net, 2)
    assert ctx.engine.loop.now == 0
    assert ctx.engine.op_log.records == []
    assert ctx.engine.devices[0].hbm.peak == 0
    assert not ctx.processes
    # What runs outside of any `with` is on the machine that was made last, still.
    assert current_process() is ctx.main


def test_the_build_may_make_groups_and_its_mistakes_are_told(kernbench: Kernbench) -> None:
    ctx = kernbench.context()

    def build(rank: int) -> Built:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(4))
        model = torch.nn.Linear(4, 4 * dist.get_world_size(), bias=False)
        dist.destroy_process_group()
        return model, None

    assert [each.parameters_bytes for each in model_memory(ctx, build, 2)] == [128, 128]
    with pytest.raises(SpawnException, match="ZeroDivisionError"):
        model_memory(ctx, lambda rank: (Net(1 // rank), None), 2)
    assert current_process() is ctx.main


@pytest.mark.parametrize(
    "build",
    [
        lambda rank: torch.nn.Linear(2, 2),
        # A container, which has a length too.
        lambda rank: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        lambda rank: (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    ],
)
def test_a_module_comes_with_its_optimizer_or_none(ctx: RuntimeContext, build: Any) -> None:
    with pytest.raises(SpawnException, match="returns a module, and its optimizer or None") as told:
        ctx.check_model_fits(build, 1)
    assert ": ctx.check_model_fits(build, 1)" in str(told.value)
