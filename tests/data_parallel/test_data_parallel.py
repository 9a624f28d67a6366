"""Data parallel training is training on the whole batch: numbers, buckets, time, and errors."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_text import cut, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.data_parallel.reducer import assign
from kernbench.data_parallel.replicas import DataParallelError
from kernbench.errors import UnsupportedError
from kernbench.memory import DType, dtypes
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch import nn
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.torch.distributed.device_mesh import init_device_mesh
from kernbench.torch.nn.parallel import DistributedDataParallel

INPUT, HIDDEN, OUTPUT = 3, 5, 2
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def net(dtype: Any = torch.float64) -> nn.Sequential:
    """Returns a model of the rank's own values."""
    return nn.Sequential(
        nn.Linear(INPUT, HIDDEN, dtype=dtype), nn.ReLU(), nn.Linear(HIDDEN, OUTPUT, dtype=dtype)
    )


def values(model: nn.Module) -> list[Any]:
    return [parameter.detach().cpu().numpy() for parameter in model.parameters()]


def grads(model: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.cpu().numpy() for p in model.parameters()]


def batch(rank: int, rows: int = 4) -> tuple[Any, Any]:
    numbers = np.random.default_rng(100 + rank)
    return numbers.normal(size=(rows, INPUT)), numbers.normal(size=(rows, OUTPUT))


def on_device(array: Any, dtype: Any = torch.float64) -> torch.Tensor:
    return torch.tensor(array, dtype=dtype, device="cuda")


def dense_grads(weights: list[Any], x: Any, y: Any) -> list[Any]:
    """Returns the gradients of half the squared error, summed, of `net`."""
    up, up_bias, down, down_bias = weights
    hidden = x @ up.T + up_bias
    active = np.maximum(hidden, 0)
    error = active @ down.T + down_bias - y
    back = (error @ down) * (hidden > 0)
    return [back.T @ x, back.sum(0), error.T @ active, error.sum(0)]


def backward(model: nn.Module, x: Any, y: Any, dtype: Any = torch.float64) -> None:
    error = model(on_device(x, dtype)) - on_device(y, dtype)
    (error * error).sum().mul(0.5).backward()


def spawn(kernbench: Kernbench, ranks: int, work: Callable[[int], object], **dials: Any) -> Any:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.manual_seed(rank)
        work(rank)
        dist.destroy_process_group()

    return kernbench.spawn(worker, nprocs=ranks, **dials)


def same_everywhere(arrays: list[Any]) -> bool:
    bits = [None if array is None else array.tobytes() for array in arrays]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, bits)
    return all(each == bits for each in found)


# Numbers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 1e-6},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True, "find_unused_parameters": True, "bucket_cap_mb": 1e-4},
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_gradients_are_the_mean_of_all_ranks(
    kernbench: Kernbench, ranks: int, options: dict[str, Any]
) -> None:
    def work(rank: int) -> None:
        model = net()
        ddp = DistributedDataParallel(model, **options)
        assert same_everywhere(values(model))
        for step in range(3):
            if step < 2:
                model.zero_grad(set_to_none=step == 0)
            before = grads(model)
            if rank == 1:
                # Ranks that come late are waited for.
                for _ in range(50):
                    torch.ones(2, device="cuda")
            backward(ddp, *batch(rank, rows=rank + 1))
            parts = [dense_grads(values(model), *batch(r, rows=r + 1)) for r in range(ranks)]
            for at, found in enumerate(grads(model)):
                expected = sum(part[at] for part in parts) / ranks
                if before[at] is not None:
                    expected = expected + before[at]
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            assert same_everywhere(grads(model))

    spawn(kernbench, ranks, work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_divided_before_it_is_summed(kernbench: Kernbench, dtype: Any) -> None:
    """As in PyTorch: sums of large 16-bit gradients do not overflow, and roundings are the same."""

    def work(rank: int) -> None:
        model = nn.Linear(1, 4, bias=False, dtype=dtype)
        ddp = DistributedDataParallel(model)
        largest = 3.0e38
        ddp(torch.full((1, 1), largest, dtype=dtype, device="cuda")).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.dtype is dtype
        np.testing.assert_allclose(model.weight.grad.float().tolist(), largest, rtol=1e-2)

    spawn(kernbench, 2, work)


def test_ranks_that_train_stay_the_same_and_follow_the_whole_batch(kernbench: Kernbench) -> None:
    ranks, rate = 4, 0.05

    def work(rank: int) -> None:
        model = net()
        ddp = DistributedDataParallel(model, bucket_cap_mb=1e-4)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=rate)
        dense = values(model)
        for step in range(10):
            optimizer.zero_grad()
            backward(ddp, *batch(rank + step))
            optimizer.step()
            parts = [dense_grads(dense, *batch(r + step)) for r in range(ranks)]
            dense = [
                value - rate * sum(part[at] for part in parts) / ranks
                for at, value in enumerate(dense)
            ]
        for found, expected in zip(values(model), dense, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-11)
        assert same_everywhere(values(model))

    spawn(kernbench, ranks, work)


class Norm(nn.Module):
    """Counts its calls and keeps what it saw last."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((2,), start))
        self.frozen = nn.Parameter(torch.full((3,), start), requires_grad=False)
        self.register_buffer("seen", torch.full((2,), start))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("calls", torch.tensor([int(start)], device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.copy_(x.detach())
            self.calls.add_(1)
        return x * self.scale


@pytest.mark.parametrize(
    ("options", "initial"),
    [
        ({}, "first"),
        ({"broadcast_buffers": True}, "first"),
        ({"broadcast_buffers": False}, "own"),
        ({"forward_sync_buffers": False}, "first"),
        ({"forward_sync_buffers": True, "broadcast_buffers": False}, "first"),
    ],
)
def test_values_of_the_first_rank_of_the_group(
    kernbench: Kernbench, options: dict[str, Any], initial: str
) -> None:
    def work(rank: int) -> None:
        pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        group, first = pairs[rank % 2], rank % 2
        model = Norm(float(rank))
        ddp = DistributedDataParallel(model, process_group=group, **options)
        begin = first if initial == "first" else rank
        for tensor in (model.scale, model.frozen):
            assert set(tensor.tolist()) == {first}
        for tensor in (model.seen, model.calls):
            assert set(tensor.tolist()) == {begin}
        for step in range(2):
            ddp(torch.full((2,), float(10 * step + rank), device="cuda")).sum().backward()
        assert model.seen.tolist() == [10.0 + rank] * 2
        ddp(torch.zeros(2, device="cuda"))
        # A call begins with the buffers of the first rank, then each goes its own way.
        assert model.calls.tolist() == [begin + 3]
        assert model.frozen.grad is None
        assert model.scale.grad is not None
        mine = [0 + first, 2 + first]
        expected = sum(10 * step + sum(mine) / 2 for step in range(2))
        assert model.scale.grad.tolist() == [expected] * 2

    spawn(kernbench, 4, work)


class Look(Norm):
    """Returns its buffer."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def forward(self, x: torch.Tensor) -> Any:
        return self.seen.tolist()


def test_buffers_are_those_of_the_first_rank_at_every_call(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        for wanted, found in ((True, 5.0), (False, 5.0 + rank)):
            model = Look()
            ddp = DistributedDataParallel(model, broadcast_buffers=wanted)
            model.seen.fill_(5.0 + rank)
            assert ddp(torch.zeros(2, device="cuda")) == [found] * 2

    spawn(kernbench, 2, work)


def test_nothing_is_made_the_same_when_nobody_asks(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Norm(float(rank))
        with CommDebugMode() as mode:
            DistributedDataParallel(model, init_sync=False)
        assert mode.get_total_counts() == 0
        assert model.scale.tolist() == [float(rank)] * 2

    spawn(kernbench, 2, work)


def test_gradients_add_up_without_messages_in_no_sync(kernbench: Kernbench) -> None:
    ranks = 2

    def work(rank: int) -> None:
        model = net()
        ddp = DistributedDataParallel(model)
        with CommDebugMode() as silent, ddp.no_sync():
            for step in range(2):
                backward(ddp, *batch(10 * rank + step))
        assert silent.get_total_counts() == 0
        own = [dense_grads(values(model), *batch(10 * rank + step)) for step in range(2)]
        for at, found in enumerate(grads(model)):
            np.testing.assert_allclose(found, own[0][at] + own[1][at], rtol=1e-12)
        with CommDebugMode() as mode:
            backward(ddp, *batch(10 * rank + 2))
        assert mode.get_comm_counts() == {"all_reduce": 1}
        every = [
            dense_grads(values(model), *batch(10 * r + step))
            for r in range(ranks)
            for step in range(3)
        ]
        for at, found in enumerate(grads(model)):
            np.testing.assert_allclose(found, sum(g[at] for g in every) / ranks, rtol=1e-11)
        assert same_everywhere(grads(model))

    spawn(kernbench, ranks, work)


def test_evaluation_sends_nothing_but_buffers(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        ddp = DistributedDataParallel(net())
        with CommDebugMode() as mode, torch.no_grad():
            for _ in range(2):
                ddp(on_device(batch(rank)[0]))
        assert mode.get_total_counts() == 0

    spawn(kernbench, 2, work)


def test_gradients_lie_in_the_buckets_if_asked(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = net()
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        for _ in range(2):
            backward(ddp, *batch(rank))
            found = [parameter.grad for parameter in model.parameters()]
            assert len({id(grad.memory) for grad in found if grad is not None}) == 1
            model.zero_grad(set_to_none=False)
            assert all(not grad.any() for grad in grads(model))

    spawn(kernbench, 2, work)


# Buckets


sizes = st.lists(
    st.tuples(st.sampled_from([dtypes.float32, dtypes.bfloat16]), st.integers(0, 9)), max_size=12
)


@given(sizes, st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_buckets_hold_all_parameters_and_close_at_their_limit(
    parts: list[tuple[DType, int]], limits: list[int]
) -> None:
    buckets = assign(parts, limits)
    assert sorted(index for bucket in buckets for index in bucket) == [*range(len(parts))]
    last = [bucket[-1] for bucket in buckets]
    assert last == sorted(last, reverse=True)
    for dtype in {dtype for dtype, _ in parts}:
        own = [bucket for bucket in buckets if parts[bucket[0]][0] is dtype]
        order = [index for bucket in own for index in bucket]
        assert order == [at for at in reversed(range(len(parts))) if parts[at][0] is dtype]
        for place, bucket in enumerate(own):
            limit = limits[min(place, len(limits) - 1)]
            held = [parts[index][1] for index in bucket]
            assert sum(held[:-1]) < limit
            assert place == len(own) - 1 or sum(held) >= limit


def test_the_first_bucket_is_small_by_default(kernbench: Kernbench) -> None:
    def layers() -> nn.Sequential:
        # 1 MiB, 1/4 MiB, 3/4 MiB; then 24 MiB, 1 MiB, 1 MiB from the back.
        mib = (1, 1, 24, 0.75, 0.25)
        return nn.Sequential(*[nn.Linear(1024, int(256 * n), bias=False) for n in mib])

    def work(rank: int) -> None:
        ddp = DistributedDataParallel(layers())
        assert ddp.reducer.buckets == [
            ["4.weight", "3.weight"],
            ["2.weight", "1.weight"],
            ["0.weight"],
        ]
        ddp = DistributedDataParallel(layers(), bucket_cap_mb=1)
        assert ddp.reducer.buckets == [
            ["4.weight", "3.weight"], ["2.weight"], ["1.weight"], ["0.weight"]
        ]  # fmt: skip

    spawn(kernbench, 2, work, data=False)


@pytest.mark.parametrize(("cap", "count"), [(None, 1), (1e-6, 4), (1e-4, 2)])
def test_a_message_for_each_bucket(kernbench: Kernbench, cap: float | None, count: int) -> None:
    def work(rank: int) -> None:
        ddp = DistributedDataParallel(net(), bucket_cap_mb=cap)
        assert [n for names in ddp.reducer.buckets for n in names] == NAMES[::-1]
        with CommDebugMode() as mode:
            backward(ddp, *batch(rank))
        assert mode.get_comm_counts() == {"all_reduce": count}
        assert mode.get_comm_bytes() == {
            "all_reduce": 8 * (INPUT * HIDDEN + HIDDEN + HIDDEN * OUTPUT + OUTPUT)
        }

    spawn(kernbench, 2, work)


class Mixed(nn.Module):
    """Parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.c = nn.Parameter(torch.ones(2))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.a.sum() + self.b.sum().float() + self.c.sum()) * factor


def test_a_bucket_holds_one_type(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Mixed()
        ddp = DistributedDataParallel(model)
        assert ddp.reducer.buckets == [["b"], ["c", "a"]]
        ddp(float(1 + rank)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.dtype is parameter.dtype
            assert set(parameter.grad.tolist()) == {1.5}

    spawn(kernbench, 2, work)


def test_two_modules_in_one_backward_pass(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        a, b = (DistributedDataParallel(model) for model in models)
        x = torch.full((1, 1), float(rank), device="cuda")
        (a(x) + b(2 * x)).sum().backward()
        assert [grads(model)[0].tolist() for model in models] == [[[0.5]], [[1.0]]]

    spawn(kernbench, 2, work)


class Either(nn.Module):
    """Two layers, in the order that a rank likes."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False, dtype=torch.float64)
        self.b = nn.Linear(4, 4, bias=False, dtype=torch.float64)
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.b, self.a) if self.swapped else (self.a, self.b)
        y: torch.Tensor = second(first(x))
        return y


def test_buckets_meet_whatever_the_order_of_gradients(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Either(swapped=rank == 1)
        ddp = DistributedDataParallel(model, bucket_cap_mb=1e-6)
        x = np.random.default_rng(rank).normal(size=(3, 4))
        ddp(on_device(x)).sum().backward()
        a, b = values(model)
        expected = [np.zeros((4, 4)), np.zeros((4, 4))]
        for r in range(3):
            x = np.random.default_rng(r).normal(size=(3, 4))
            first, second = (b, a) if r == 1 else (a, b)
            ones = np.ones((3, 4))
            of_second = ones.T @ (x @ first.T) / 3
            of_first = (ones @ second).T @ x / 3
            expected[0] += of_second if r == 1 else of_first
            expected[1] += of_first if r == 1 else of_second
        for found, wanted in zip(grads(model), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)

    spawn(kernbench, 3, work)


# Time


def test_messages_run_beside_the_backward_pass(kernbench: Kernbench) -> None:
    width, layers = 1024, 6

    def work(rank: int) -> None:
        model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
        ddp = DistributedDataParallel(model, bucket_cap_mb=4)
        x = torch.ones(2048, width, device="cuda")
        flat = torch.ones(width, width, device="cuda")

        def timed(step: Callable[[], object]) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            torch.cuda.synchronize()
            start.record()
            step()
            end.record()
            end.synchronize()
            return start.elapsed_time(end)

        def alone() -> None:
            with ddp.no_sync():
                ddp(x).sum().backward()

        def messages() -> None:
            for _ in range(layers):
                dist.all_reduce(flat)

        alone()
        compute, communication = timed(alone), timed(messages)
        whole = timed(lambda: ddp(x).sum().backward())
        assert max(compute, communication) < whole
        # All but one bucket can hide behind what is left to compute.
        hidden = compute + communication - whole
        assert hidden > 0.5 * min(compute, communication)

    spawn(kernbench, 4, work, data=False)


def test_a_bucket_begins_before_the_backward_pass_ends(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
        ddp = DistributedDataParallel(model, bucket_cap_mb=1)
        ddp(torch.ones(512, 512, device="cuda")).sum().backward()
        torch.cuda.synchronize()

    ctx = spawn(kernbench, 2, work, data=False, record="full")
    records = [r for r in ctx.engine.op_log.records if r.rank == 1]
    sums = [r for r in records if r.category == "collective" and r.name == "all_reduce"]
    products = [r for r in records if r.name == "aten::mm"]
    assert len(sums) == 4
    assert len({r.track for r in sums}) == 1
    assert {r.track for r in sums}.isdisjoint(r.track for r in products)
    last = max(r.end for r in products)
    assert [r.start < last for r in sums] == [True, True, True, False]


@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]
)
def test_times_do_not_depend_on_data(kernbench: Kernbench, options: dict[str, Any]) -> None:
    ends: list[int] = []

    def work(rank: int) -> None:
        model = Parts(2)
        ddp = DistributedDataParallel(model, **options)
        for step in range(2):
            chosen = {step % 2} if options.get("find_unused_parameters") else {0, 1}
            ddp(torch.ones(2, 4, device="cuda"), chosen).sum().backward()

    for data in (True, False):
        ctx = spawn(kernbench, 2, work, data=data)
        ends.append(ctx.engine.loop.now)
    assert ends[0] == ends[1] > 0


# Unused parameters


class Parts(nn.Module):
    """Layers of which each call uses some, with a result in a dataclass."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(count)])

    def forward(self, x: torch.Tensor, chosen: set[int]) -> torch.Tensor:
        found = [part(x) for at, part in enumerate(self.parts) if at in chosen]
        total: torch.Tensor = sum(found[1:], found[0])
        return total


@pytest.mark.parametrize("as_views", [False, True])
def test_unused_parameters_count_as_zero(kernbench: Kernbench, as_views: bool) -> None:
    def work(rank: int) -> None:
        model = Parts(4)
        ddp = DistributedDataParallel(
            model, find_unused_parameters=True, gradient_as_bucket_view=as_views
        )
        # Part 0 is used by all, 1 by rank 0 alone, 2 by rank 1 alone, 3 by nobody.
        x = torch.full((2, 4), 1.0 + rank, device="cuda")
        ddp(x, {0, 1 + rank}).sum().backward()
        first = [g if g is None else set(g.reshape(-1).tolist()) for g in grads(model)]
        assert first == [{3.0}, {1.0}, {2.0}, None]
        # A gradient of before is kept by those that nobody uses.
        ddp(x, {3}).sum().backward()
        second = [g if g is None else set(g.reshape(-1).tolist()) for g in grads(model)]
        assert second == [{3.0}, {1.0}, {2.0}, {3.0}]

    spawn(kernbench, 2, work)


@dataclass
class Result:
    loss: torch.Tensor
    more: dict[str, Any]


class Two(nn.Module):
    """Has outputs inside of other things."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)
        self.c = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, *, both: bool) -> Result:
        return Result(self.a(x).sum(), {"list": [self.b(x).sum()] if both else ["none"]})


def test_outputs_are_found_inside_of_other_things(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Two()
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        x = torch.ones(2, 4, device="cuda")
        ddp(x, both=False).loss.backward()
        assert [g is None for g in grads(model)] == [False, True, True]
        found = ddp(x, both=True)
        (found.loss + found.more["list"][0]).backward()
        assert [g is None for g in grads(model)] == [False, False, True]

    spawn(kernbench, 2, work)


def unused(rank: int) -> None:
    dist.init_process_group("nccl")
    ddp = DistributedDataParallel(Parts(3), bucket_cap_mb=1e-6)
    x = torch.ones(2, 4, device="cuda")
    ddp(x, {1}).sum().backward()
    ddp(x, {1}).sum().backward()


def test_parameters_without_gradient_are_named_at_the_next_call(kernbench: Kernbench) -> None:
    found = views(kernbench, unused, 2)
    assert found == {
        (at,): f"""\
DataParallelError: rank {at} begins a forward pass of DistributedDataParallel, but the gradients \
of the one before are not averaged: 2 of 3 parameters got none
  at FILE+5: ddp(x, {{1}}).sum().backward()
  without gradient: parts.0.weight, parts.2.weight
  hint: a loss must depend on all outputs of forward; if it uses only a part of the parameters, \
pass find_unused_parameters=True"""
        for at in (0, 1)
    }


def left_alone(rank: int) -> None:
    dist.init_process_group("nccl")
    model = Parts(2)
    ddp = DistributedDataParallel(model)
    ddp(torch.ones(2, 4, device="cuda"), {0, 1} if rank else {0}).sum().backward()
    assert model.parts[0].weight.grad.tolist()


def test_a_rank_with_an_unused_parameter_is_missed_by_the_others(kernbench: Kernbench) -> None:
    found = views(kernbench, left_alone, 2)
    assert {ranks: cut(text) for ranks, text in found.items()} == {
        (1,): """\
CollectiveMismatchError: [C1] all_reduce #3 of group WORLD: rank 1 waits for rank 0
  waiting rank 1: all_reduce([32], torch.float32, sum) of DistributedDataParallel's bucket 0 \
at T, at FILE+4: \
ddp(torch.ones(2, 4, device="cuda"), {0, 1} if rank else {0}).sum().backward()
  missing rank 0 returned at FILE+5: assert model.parts[0].weight.grad.tolist(); its last \
collective was #2, rank 0: broadcast([32], torch.float32, src=0) of DistributedDataParallel's \
parameters or buffers at T, at FILE+3: ddp = DistributedDataParallel(model)
  hint: every rank wraps its module in DistributedDataParallel and takes as many steps with it as \
the others: look for uneven numbers of batches, and for a branch on the rank; if some ranks leave \
parameters unused, pass find_unused_parameters=True"""
    }


def _uneven(rank: int, find_unused: bool) -> None:
    dist.init_process_group("nccl")
    ddp = DistributedDataParallel(nn.Linear(4, 4).cuda(), find_unused_parameters=find_unused)
    for _ in range(1 + rank):
        ddp(torch.ones(2, 4, device="cuda")).sum().backward()


def _wrapped_once(rank: int, find_unused: bool) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        DistributedDataParallel(nn.Linear(4, 4).cuda(), find_unused_parameters=find_unused)


def _uneven_buffers(rank: int, find_unused: bool) -> None:
    dist.init_process_group("nccl")
    ddp = DistributedDataParallel(Norm(0.0).cuda(), find_unused_parameters=find_unused)
    for _ in range(1 + rank):
        ddp(torch.ones(2, device="cuda"))


def _uneven_buffers_of_the_host(rank: int, find_unused: bool) -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    model = nn.Linear(4, 4)
    model.register_buffer("steps", torch.zeros(3, dtype=torch.int64, device="cpu"))
    ddp = DistributedDataParallel(model, find_unused_parameters=find_unused)
    for _ in range(1 + rank):
        ddp(torch.ones(2, 4, device="cuda"))


@pytest.mark.parametrize(
    ("worker", "find_unused", "texts"),
    [
        (
            _uneven,
            False,
            ["waiting rank 1: all_reduce([20]", "of DistributedDataParallel's bucket 0 at"],
        ),
        (
            _uneven,
            True,
            ["[2], torch.int32, sum) of DistributedDataParallel's used parameters at"],
        ),
        (
            _uneven_buffers_of_the_host,
            False,
            ["broadcast([3], torch.int64, src=0) on cpu of DistributedDataParallel's parameters"],
        ),
        (_wrapped_once, False, ["which checks that parameters are alike"]),
        (
            _uneven_buffers,
            False,
            ["waiting rank 1: broadcast(", "of DistributedDataParallel's parameters or buffers"],
        ),
    ],
)
def test_a_missing_step_is_told_as_the_wrappers(
    kernbench: Kernbench, worker: Any, find_unused: bool, texts: list[str]
) -> None:
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2, args=(find_unused,))
    found = str(caught.value)
    assert "[C1]" in found
    for text in texts:
        assert text in found
    assert "look for uneven numbers of batches" in found


def twice(rank: int) -> None:
    dist.init_process_group("nccl")
    ddp = DistributedDataParallel(Parts(2))
    x = torch.ones(2, 4, device="cuda")
    y = ddp.module.parts[0](x)
    z = ddp(x, {0, 1})
    y.sum().backward()
    z.sum().backward()


def test_a_second_gradient_is_refused(kernbench: Kernbench) -> None:
    assert views(kernbench, twice, 2) == {
        (at,): f"""\
DataParallelError: rank {at}: parts.0.weight got a second gradient before all parameters had \
their first one
  at FILE+7: z.sum().backward()
  hint: go back once from the sum of the losses; use a parameter only where the outputs of \
forward depend on it, and return no parameter itself from forward"""
        for at in (0, 1)
    }


def test_a_second_backward_pass_after_a_call_is_not_averaged(kernbench: Kernbench) -> None:
    """As in PyTorch."""

    def work(rank: int) -> None:
        model = nn.Linear(1, 1, bias=False)
        ddp = DistributedDataParallel(model)
        loss = ddp(torch.full((1, 1), float(rank), device="cuda")).sum()
        loss.backward(retain_graph=True)
        assert grads(model)[0].tolist() == [[0.5]]
        loss.backward()
        assert grads(model)[0].tolist() == [[0.5 + rank]]

    spawn(kernbench, 2, work)


def test_a_backward_pass_inside_another_has_an_end_of_its_own(kernbench: Kernbench) -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                side = torch.ones(1, device="cuda", requires_grad=True)
                (side * 2).sum().backward()
            assert side.grad is not None
            return grad * side.grad

    def work(rank: int) -> None:
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1)
        ddp = DistributedDataParallel(model, bucket_cap_mb=1e-6)
        x = torch.full((1, 1), float(rank), device="cuda", requires_grad=True)
        Inner.apply(ddp(Inner.apply(x))).sum().backward()
        assert [g.tolist() for g in grads(model)] == [[[1.0]], [[1.0]]]
        assert x.grad is not None
        assert x.grad.tolist() == [[4.0]]

    spawn(kernbench, 2, work)


# What cannot be


def _other(kind: str, rank: int) -> nn.Module:
    odd = rank == 2
    if kind == "shape":
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 if odd else 2))
    if kind == "dtype":
        return nn.Linear(2, 2, dtype=torch.bfloat16 if odd else torch.float32)
    if kind == "count":
        return nn.Linear(2, 2, bias=not odd)
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(not odd)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize(
    ("kind", "first", "other"),
    [
        (
            "shape",
            "1.weight [2, 2] torch.float32 at place 2",
            "1.weight [3, 2] torch.float32 at place 2",
        ),
        (
            "dtype",
            "weight [2, 2] torch.float32 at place 0",
            "weight [2, 2] torch.bfloat16 at place 0",
        ),
        ("count", "bias [2] torch.float32 at place 1", "1 of them, and none at place 1"),
        (
            "frozen",
            "bias [2] torch.float32 at place 1",
            "bias [2] torch.float32 at place 1, which requires no gradient",
        ),
    ],
)
def test_ranks_with_other_parameters(
    kernbench: Kernbench, kind: str, first: str, other: str
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        DistributedDataParallel(_other(kind, rank))

    assert views(kernbench, worker, 3) == {
        (0, 1, 2): f"""\
DataParallelError: DistributedDataParallel over group WORLD: rank 2 has other parameters or \
buffers than rank 0
  at FILE+2: DistributedDataParallel(_other(kind, rank))
  rank 0 has {first}
  rank 2 has {other}
  hint: build the same module on all ranks of the group; ranks that hold different parts of a \
model belong to different data-parallel groups"""
    }


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dim", 1),
        ("check_reduction", True),
        ("static_graph", True),
        ("delay_all_reduce_named_params", [("weight", None)]),
        ("param_to_hook_all_reduce", object()),
        ("mixed_precision", object()),
        ("skip_all_reduce_unused_params", True),
    ],
)
def test_options_that_are_not_simulated(kernbench: Kernbench, option: str, value: Any) -> None:
    def work(rank: int) -> None:
        text = rf"DistributedDataParallel\({option}=\) is not simulated"
        with pytest.raises(UnsupportedError, match=text):
            DistributedDataParallel(net(), **{option: value})

    spawn(kernbench, 1, work)


def test_errors(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        def text(error: type[Exception], make: Callable[[], object]) -> str:
            with pytest.raises(error) as caught:
                make()
            return str(caught.value)

        assert "no parameter of the module given to DistributedDataParallel requires a" in text(
            DataParallelError, lambda: DistributedDataParallel(nn.ReLU())
        )
        on_host = text(DataParallelError, lambda: DistributedDataParallel(net().cpu()))
        assert f"on rank {rank}: parameter 0.weight is on cpu" in on_host
        assert f"expected cuda:{rank}" in on_host
        assert "wraps a Module; got int" in text(
            TypeError,
            lambda: DistributedDataParallel(3),  # type: ignore[arg-type]
        )
        assert "can only be None or contain a single element; got [0, 1]" in text(
            ValueError, lambda: DistributedDataParallel(net(), device_ids=[0, 1])
        )
        other = 1 - rank
        for options in ({"device_ids": [other]}, {"output_device": other}):
            assert f"rank {rank} used cuda:{other}, the device of rank {other}" in text(
                Exception,
                lambda o=options: DistributedDataParallel(net(), **o),  # type: ignore[misc]
            )
        ddp = DistributedDataParallel(net())
        for call in (ddp.join, lambda: ddp.register_comm_hook(None, print)):
            assert "is not simulated" in text(UnsupportedError, call)

    spawn(kernbench, 2, work)


def test_groups_and_meshes(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        pair = dist.new_group([0, 1])
        if rank == 2:
            with pytest.raises(ValueError, match="C8"):
                DistributedDataParallel(net(), process_group=pair)
        flat = init_device_mesh("cuda", (4,), mesh_dim_names=("dp",))
        square = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        assert DistributedDataParallel(net(), device_mesh=flat).process_group.size() == 4
        with pytest.raises(ValueError, match="got one of 2 dimensions"):
            DistributedDataParallel(net(), device_mesh=square)
        with pytest.raises(ValueError, match="got both"):
            DistributedDataParallel(net(), device_mesh=flat, process_group=dist.group.WORLD)
        line = square.get_group("dp")
        assert DistributedDataParallel(net(), process_group=line).process_group is line

    spawn(kernbench, 4, work)


# What it is


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Echo(nn.Module):
    """Returns what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, a: Any, b: Any) -> Any:
        return a, b


def test_it_is_a_module(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = net()
        ddp = DistributedDataParallel(model, device_ids=[rank])
        assert ddp.module is model
        assert [*ddp.state_dict()] == [f"module.{name}" for name in NAMES]
        assert not ddp.eval().module.training
        # A list of one device moves what is given to it.
        x, y = (torch.tensor(array, device="cpu") for array in batch(rank))
        assert ddp(x).device == torch.device("cuda", rank)
        echo = DistributedDataParallel(Echo(), device_ids=[rank])
        pair, table = echo((x, [y]), b={"k": Pair(x, y), "n": 3})
        found = [pair[0], pair[1][0], *table["k"]]
        assert [each.device for each in found] == [torch.device("cuda", rank)] * 4
        assert isinstance(table["k"], Pair)
        assert table["n"] == 3

    spawn(kernbench, 2, work)


def test_the_context_has_it(kernbench: Kernbench) -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group("nccl")
        model = torch.nn.Linear(2, 2)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp(torch.ones(1, 2, device="cuda")).sum().backward()
        assert model.weight.grad.tolist() == [[1.0, 1.0]] * 2

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_buckets_go_with_the_module(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = net()
        before = torch.cuda.memory_allocated()
        ddp = DistributedDataParallel(model)
        assert torch.cuda.memory_allocated() > before
        del ddp
        assert torch.cuda.memory_allocated() == before
        with CommDebugMode() as mode:
            backward(model, *batch(rank))
        assert mode.get_total_counts() == 0

    spawn(kernbench, 2, work)


def test_a_loss_falls(kernbench: Kernbench) -> None:
    """The whole of it, as a user writes it."""
    losses: dict[int, list[float]] = {}

    def work(rank: int) -> None:
        model = net(torch.float32)
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.05)
        x, y = (on_device(array, torch.float32) for array in batch(rank, rows=16))
        losses[rank] = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            losses[rank].append(loss.item())

    spawn(kernbench, 2, work)
    means = np.mean([losses[0], losses[1]], axis=0)
    assert means[-1] < 0.7 * means[0]


def test_buffers_on_the_host_are_those_of_the_first_rank_too(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        layer = torch.nn.Linear(2, 2, device="cuda")
        layer.register_buffer("seen", torch.full((3,), float(rank + 1), device="cpu"))
        ddp = DistributedDataParallel(layer)
        assert dict(ddp.module.named_buffers())["seen"].tolist() == [1.0, 1.0, 1.0]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)
