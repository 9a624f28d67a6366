"""The short way of operations gives what the long one gives: numbers, times, memory, reports."""

import random
from collections.abc import Callable
from typing import Any

import pytest

import kernbench
from kernbench.process.access import OwnershipError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
_ROUNDS = 3
"""An operation is learned in the first round, and takes the short way in the others."""

_LENGTH = 24

Tensors = dict[Any, Any]
Step = Callable[[Tensors], Any]


def _first(rank: int) -> Tensors:
    """Returns the tensors of a program: several types, and some that do not lie in order."""
    torch.manual_seed(rank)
    base = torch.rand(4, 4).cuda()
    return {
        "x": base,
        "y": torch.rand(4, 4).cuda(),
        "turned": torch.rand(4, 4).cuda().t(),
        "row": torch.rand(1, 4).cuda().expand(4, 4),
        "half": torch.rand(4, 4).cuda().bfloat16(),
        "whole": torch.arange(16).cuda().view(4, 4),
        "truth": (torch.arange(16) % 3 == 0).cuda().view(4, 4),
        "host": torch.rand(4, 4),
        "one": torch.tensor(2.0),
        "param": torch.nn.Parameter(torch.rand(4, 4).cuda()),
        "image": torch.rand(1, 2, 4, 4).cuda(),
        "filters": torch.rand(2, 2, 3, 3).cuda(),
        "inside": base[1:3],
    }


_NAMES = ("x", "y", "turned", "row", "half", "whole", "truth", "host", "one", "param", "inside")
_SCALARS = (2, 1, True, 2.5, 1.0, -3.0)


def _binary(pick: random.Random) -> Step:
    op = pick.choice((torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.pow))
    a, b = pick.choice(_NAMES), pick.choice((*_NAMES, *_SCALARS))
    return lambda have: op(have[a], have.get(b, b))


def _product(pick: random.Random) -> Step:
    op = pick.choice((torch.mm, lambda a, b: torch.addmm(a, a, b), torch.matmul))
    a, b = pick.choice(_NAMES), pick.choice(_NAMES)
    return lambda have: op(have[a], have[b])


def _alone(pick: random.Random) -> Step:
    a, dim, keep = pick.choice(_NAMES), pick.choice((0, 1, -1)), pick.random() < 0.5
    ops: tuple[Callable[[Any], Any], ...] = (
        torch.relu,
        torch.tanh,
        lambda one: one.sum(),
        lambda one: one.sum(dim, keepdim=keep),
        lambda one: one.mean(dim, dtype=torch.float32),
        lambda one: torch.softmax(one.float(), dim),
        lambda one: one.max(dim).values,
        lambda one: one.clone(memory_format=torch.contiguous_format),
        lambda one: one.bfloat16(),
        lambda one: one.clamp(0.25, 0.75),
        torch.zeros_like,
        lambda one: one.new_zeros(3),
        lambda one: one.nonzero(),
        lambda one: torch.dropout(one, 0.5, True),
        torch.nn.functional.gelu,
        lambda one: torch.where(one > 0, one, 0.5),
        lambda one: one.fill_(0.5) if not one.requires_grad else None,
    )
    op = pick.choice(ops)
    return lambda have: op(have[a])


def _in_place(pick: random.Random) -> Step:
    name = pick.choice(("add_", "mul_", "sub_", "copy_", "clamp_min_"))
    a, b = pick.choice(_NAMES), pick.choice((*_NAMES, *_SCALARS))

    def step(have: Tensors) -> Any:
        with torch.no_grad():
            getattr(have[a], name)(have.get(b, b))
        return have[a]

    return step


def _into(pick: random.Random) -> Step:
    a, b, out = (pick.choice(_NAMES) for _ in range(3))
    return lambda have: torch.add(have[a], have[b], out=have[out].detach())


def _view(pick: random.Random) -> Step:
    a = pick.choice(_NAMES)
    ops: tuple[Callable[[Any], Any], ...] = (
        lambda one: one.t(),
        lambda one: one.view(16),
        lambda one: one[1:, ::2],
        lambda one: one.unsqueeze(0).expand(2, 4, 4),
        lambda one: one.split(2)[1],
        lambda one: one.detach(),
        lambda one: one.reshape(2, 8),
    )
    op = pick.choice(ops)

    def step(have: Tensors) -> Any:
        made = op(have[a])
        return made + made

    return step


def _backward(pick: random.Random) -> Step:
    other, lower = pick.choice(("x", "y", "turned", "row")), pick.random() < 0.5

    def step(have: Tensors) -> Any:
        parameter = have["param"]
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=lower):
            out = (have[other].detach() @ parameter).relu()
        (out.float() ** 2).mean().backward()
        grad, parameter.grad = parameter.grad, None
        return grad

    return step


def _convolution(pick: random.Random) -> Step:
    padding = pick.choice((0, 1))
    return lambda have: torch.nn.functional.conv2d(have["image"], have["filters"], padding=padding)


def _switch(pick: random.Random) -> Step:
    name = pick.choice(("highest", "high"))
    allowed = pick.random() < 0.5
    kind = pick.randrange(4)

    def step(have: Tensors) -> Any:
        if kind == 0:
            torch.set_float32_matmul_precision(name)
        elif kind == 1:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        elif kind == 2:
            torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"
        else:
            torch.backends.cudnn.allow_tf32 = allowed
        return have["x"] @ have["y"]

    return step


def _collective(pick: random.Random) -> Step:
    a, late = pick.choice(("x", "y", "turned")), pick.random() < 0.4
    use = pick.choice(("add", "add_", "view", "mm"))

    def step(have: Tensors) -> Any:
        given = have[a].contiguous()
        work = torch.distributed.all_reduce(given, async_op=True)
        try:
            if not late:
                work.wait()
            if use == "add_":
                given.add_(1)  # without a wait a mistake, which is reported here
            return given.view(16) if use == "view" else given + given
        finally:
            work.wait()

    return step


def _blank(pick: random.Random) -> Step:
    filled = pick.random() < 0.7

    def step(have: Tensors) -> Any:
        made = torch.empty(4, 4, device="cuda")
        if filled:
            torch.add(have["x"], have["y"], out=made)
        torch.distributed.all_reduce(made)
        return made + have["x"]

    return step


def _stream(pick: random.Random) -> Step:
    ordered = pick.random() < 0.6

    def step(have: Tensors) -> Any:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            if ordered:
                side.wait_stream(torch.cuda.default_stream())
            made = have["x"] + have["y"]
        if ordered:
            torch.cuda.default_stream().wait_stream(side)
        return made * 2

    return step


def _range(pick: random.Random) -> Step:
    del pick

    def step(have: Tensors) -> Any:
        with torch.profiler.record_function("part"):
            return have["x"] * have["y"]

    return step


_KINDS = (
    *(_binary, _binary, _binary, _product, _product, _alone, _alone, _alone, _in_place, _in_place),
    *(_into, _view, _view, _backward, _convolution, _switch, _collective, _blank, _range),
)


def _make(seed: int) -> list[Step]:
    pick = random.Random(seed)
    steps = [pick.choice(_KINDS)(pick) for _ in range(_LENGTH)]
    if seed % 3 == 0:  # from here on operations are looked at for races
        steps.append(_stream(pick))
    return steps


def _seen(made: Any, data: bool) -> Any:
    """Returns what a program can see of a tensor, and of its device."""
    from kernbench.bridge.base.here import this_rank

    rank = this_rank()
    told: list[Any] = [rank.process.host.clock, rank.hbm.allocated, rank.hbm.peak]
    if isinstance(made, torch.Tensor):
        told += [made.shape, made.stride(), made.dtype, made.device, made._version]
        told += [made.requires_grad, type(made), made.is_contiguous()]
        if data:
            told.append(str(made.detach().cpu().double().tolist()))  # NaN is NaN, too
    return told


def _run(seed: int, *, data: bool, full: bool) -> Any:
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    engine = GraphEngine(
        load_topology("h200x8").topology_obj,
        enable_data=False,
        moves_at_call=True,
        record="full" if full else "summary",
    )
    seen: dict[int, list[Any]] = {}
    unknown: dict[int, Any] = {}

    def worker(rank: int) -> None:
        from kernbench.bridge.base.here import this_rank

        torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl", rank=rank, world_size=2, init_method="tcp://x:1"
        )
        have, steps, mine = _first(rank), _make(seed), seen.setdefault(rank, [])
        for _ in range(_ROUNDS):
            for step in steps:
                made = None
                try:
                    made = step(have)
                except Exception as error:
                    mine.append((type(error), str(error)))
                mine.append(_seen(made, data))
        torch.cuda.synchronize()
        unknown[rank] = this_rank().mode.unknown

    with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
        torch.multiprocessing.spawn(worker, nprocs=2)
        log, end = engine.op_log, engine.loop.now
        # When ranks that are gone give their workspaces back is up to Python and PyTorch.
        memory = [change for change in log.memory if change.time < end]
        records = [sorted(map(repr, each)) for each in (log.records, log.waits, memory)]
        return seen, unknown, records, log.totals, end, engine.loop.late_calls


def _note_given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by one when the short way gives a tensor."""
    from kernbench.bridge.tensors.storages import hold_new

    given: list[int] = []

    def held(*args: Any) -> Any:
        given.append(1)
        return hold_new(*args)

    monkeypatch.setattr("kernbench.bridge.operations.direct.hold_new", held)
    return given


def _check(seed: int, monkeypatch: pytest.MonkeyPatch, *, data: bool, full: bool) -> None:
    given = _note_given(monkeypatch)
    short = _run(seed, data=data, full=full)
    assert given
    given.clear()
    monkeypatch.setattr("kernbench.bridge.operations.direct._is_simple", lambda func: False)
    monkeypatch.setattr("kernbench.bridge.operations.direct._is_view", lambda func: False)
    long = _run(seed, data=data, full=full)
    assert not given
    for rank, mine in long[0].items():
        for number, (one, other) in enumerate(zip(short[0][rank], mine, strict=True)):
            assert one == other, f"what rank {rank} saw as number {number}"
    assert short == long


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_see_the_same(
    seed: int, data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(seed, monkeypatch, data=data, full=seed % 2 == 1)


@pytest.mark.at_length
@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_many_random_programs_see_the_same(
    seed: int, data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(seed, monkeypatch, data=data, full=seed % 2 == 1)


@pytest.mark.parametrize("data", [True, False])
def test_a_list_of_dimensions_is_not_taken_for_strides(data: bool) -> None:
    def busy(step: Callable[[], Any]) -> int:
        from kernbench.bridge.base.here import this_rank

        torch.cuda.synchronize()
        before = this_rank().process.host.clock
        step()
        torch.cuda.synchronize()
        return int(this_rank().process.host.clock - before)

    def worker(_: int) -> list[int]:
        whole, few = (torch.rand(4096, n, device="cuda") for n in (4096, 1))
        wide = few.expand(4096, 4096)
        assert wide.stride() == (1, 0)
        few.amax()  # behind itself, an operation takes the host less time
        return [busy(step) for step in (wide.amax, lambda: whole.amax((1, 0))) for _ in range(3)]

    times = kernbench.torchrun_spawn(worker, nprocs=1, data=data).returned[0]
    assert times[0] == times[1] == times[2] < times[3] == times[4] == times[5]


@pytest.mark.parametrize("data", [True, False])
def test_a_tensor_of_another_rank_is_refused_however_often_its_shape_was_met(data: bool) -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group()
        mine = shared[rank] = torch.ones(4, device="cuda")
        steps: tuple[Callable[[Any], Any], ...] = (
            lambda one: one * one,
            lambda one: one * mine,
            lambda one: one.mul_(one),
            lambda one: torch.stack([one, one]),
            lambda one: one.view(2, 2),
        )
        for step in (*steps, *steps):
            step(mine)
        torch.distributed.barrier()
        for step in steps:
            with pytest.raises(OwnershipError):
                step(shared[1 - rank])
        torch.distributed.barrier()

    shared: Tensors = {}
    kernbench.torchrun_spawn(worker, nprocs=2, data=data)
