"""Names for parts of a program: which commands belong to them, and what traces show."""

import json
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.report import write_trace
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.nvtx_ranges import NVTX
from kernbench.runtime_api.ranges import RangeError
from kernbench.testing import Kernbench

record_function = torch.profiler.record_function
nvtx = torch.cuda.nvtx


def _commands(ctx: RuntimeContext, rank: int = 0) -> list[tuple[str, tuple[str, ...]]]:
    records = [r for r in ctx.engine.op_log.records if r.rank == rank and r.category != "range"]
    return [(r.name, r.ranges) for r in sorted(records, key=lambda r: (r.issued, r.start))]


def _push_and_fail() -> None:
    nvtx.range_push("left open")
    raise KeyError


def _ranges(ctx: RuntimeContext, rank: int = 0) -> dict[str, tuple[int, int, tuple[str, ...]]]:
    records = [r for r in ctx.engine.op_log.records if r.rank == rank and r.category == "range"]
    return {r.name: (r.start, r.end, r.ranges) for r in records}


def test_commands_belong_to_the_ranges_around_them(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4)
        with record_function("outer"):
            x = x.exp()
            with record_function("inner"):
                x = x.sin()
            x = x.cos()
        x.neg()

    ctx = kernbench.spawn(worker, nprocs=1, record="full")
    assert _commands(ctx) == [
        ("aten::ones", ()),
        ("aten::exp", ("outer",)),
        ("aten::sin", ("outer", "inner")),
        ("aten::cos", ("outer",)),
        ("aten::neg", ()),
    ]
    dispatch = ctx.engine.dispatch_ps
    assert _ranges(ctx) == {
        "inner": (2 * dispatch, 3 * dispatch, ("outer",)),
        "outer": (dispatch, 4 * dispatch, ()),
    }


def test_what_goes_back_belongs_to_where_it_came_from(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4, requires_grad=True)
        with record_function("first"):
            y = x.exp()
        y = y.sin()
        with record_function("last"):
            loss = (y * 3).sum()
        with record_function("backward"):
            loss.backward()
            x.neg()

    ctx = kernbench.spawn(worker, nprocs=1, record="full")
    found = _commands(ctx)
    begun = found.index(("aten::ones_like", ("backward",)))
    # The gradients of sum, sin and exp, the latest first. What was called in no range stays in the
    # one around the backward pass.
    assert found[begun:] == [
        ("aten::ones_like", ("backward",)),
        ("aten::mul", ("last",)),
        ("aten::cos", ("backward",)),
        ("aten::mul", ("backward",)),
        ("aten::mul", ("first",)),
        ("aten::neg", ("backward",)),
    ]


def test_collectives_of_every_tier_know_their_range(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with record_function("sum"):
            dist.all_reduce(torch.ones(64))

    for fidelity in ("tile", "kernel"):
        ctx = kernbench.spawn(worker, nprocs=4, record="full", fidelity=fidelity)
        log = ctx.engine.op_log
        kinds = {r.category for r in log.records}
        assert {"collective", "send", "recv"} <= kinds
        assert {r.ranges for r in log.records if r.category != "range"} == {("sum",)}


def test_ranges_take_no_time_and_ranks_have_their_own(kernbench: Kernbench) -> None:
    def worker(rank: int, named: bool) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(64)
        for step in range(2):
            if named:
                nvtx.range_push(f"{rank}")
            dist.all_reduce(x)
            x.tolist()
            if named:
                assert nvtx.range_pop() == 0
            assert step < 2

    clocks = []
    for named in (False, True):
        ctx = kernbench.spawn(worker, args=(named,), nprocs=3, record="full")
        clocks.append([process.host.clock for process in ctx.processes])
    assert clocks[0] == clocks[1]
    for rank in range(3):
        of_rank = {path for name, path in _commands(ctx, rank) if name != "aten::ones"}
        assert of_rank == {(f"{rank}",)}


def test_a_function_can_be_named_and_may_call_itself(kernbench: Kernbench) -> None:
    @record_function("double", "of x")
    def double(x: Any, times: int) -> Any:
        return double(x + x, times - 1) if times else x

    ctx = kernbench.spawn(lambda rank: double(torch.ones(2), 2), nprocs=1, record="full")
    names = [path for name, path in _commands(ctx) if name == "aten::add"]
    assert names == [("double",), ("double", "double")]
    args = [r.args for r in ctx.engine.op_log.records if r.category == "range"]
    assert args == [{"args": "of x"}] * 3


def test_a_failure_leaves_no_range_open(kernbench: Kernbench) -> None:
    seen = []

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    def worker(rank: int) -> None:
        x = torch.ones(2, requires_grad=True)
        with record_function("layer"):
            y = Failing.apply(x)
        with record_function("step"), pytest.raises(ZeroDivisionError):
            y.sum().backward()
        with pytest.raises(KeyError), record_function("other"), nvtx.range("inside"):
            _push_and_fail()
        x.neg()
        seen.append(rank)

    ctx = kernbench.spawn(worker, nprocs=1, record="full")
    assert seen == [0]
    assert ("aten::neg", ()) in _commands(ctx)
    assert set(_ranges(ctx)) == {"layer", "step", "other", "inside", "left open"}


def test_nvtx_tells_the_depth(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        assert [nvtx.range_push("a"), nvtx.range_push("b")] == [0, 1]
        assert [nvtx.range_pop(), nvtx.range_pop()] == [1, 0]
        nvtx.range_pop()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=1)
    error = caught.value.errors[0]
    assert isinstance(error, RangeError)
    assert "rank 0 ended a range, and none is open" in str(error)
    assert "range_push before range_pop" in str(error)


def test_a_trace_shows_ranges_on_the_host(kernbench: Kernbench, tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        with record_function("outer"), record_function("inner"):
            torch.ones(4).tolist()

    ctx = kernbench.spawn(worker, nprocs=1, record="full")
    file = tmp_path / "trace.json"
    write_trace(ctx.engine.op_log, ctx.engine.topology, file, dispatch_ps=ctx.engine.dispatch_ps)
    events = json.loads(file.read_text())["traceEvents"]
    shown = {e["name"]: e for e in events if e.get("cat") == "user_annotation"}
    assert set(shown) == {"outer", "inner"}
    hosts = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "host"}
    assert {e["tid"] for e in shown.values()} == hosts
    (kernel,) = [e for e in events if e.get("cat") == "kernel"]
    assert kernel["args"]["ranges"] == ["outer", "inner"]


def test_memory_of_a_collective_is_free_when_it_is_dropped(kernbench: Kernbench) -> None:
    """Neither a handle that was waited for nor the choice of an algorithm keeps tensors."""
    from kernbench.ccl import plan

    plan.record.cache_clear()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1024)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            whole = torch.empty(4096)
            dist.all_gather_into_tensor(whole, x)
            y = x + 1
            work = dist.all_reduce(y, async_op=True)
            work.wait()
            del whole, y, work
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before

    kernbench.spawn(worker, nprocs=4)


def test_ranges_of_a_program_of_pytorch_are_ended_by_what_began_them(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4)
        NVTX["mark"]("here {}")
        outer = NVTX["range_start"]("outer")
        x = x.exp()
        inner = NVTX["range_start"]("inner")
        x.sin()
        NVTX["range_end"](inner)
        NVTX["range_end"](outer)

    ctx = kernbench.spawn(worker, nprocs=1, record="full")
    dispatch = ctx.engine.dispatch_ps
    assert _ranges(ctx) == {
        "here {}": (dispatch, dispatch, ()),
        "outer": (dispatch, 3 * dispatch, ()),
        "inner": (2 * dispatch, 3 * dispatch, ("outer",)),
    }
