"""When the commands of a replayed CUDA graph run, and what a replay costs the host."""

import kernbench.torch as torch
from kernbench.process.process import current_process
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.op_log import Record

US = 1_000_000
"""Picoseconds."""

TIMES = {"compute": "10 us", "graph": "7 us", "event": "0 s", "copy": "10 us"}


def context(*more: str) -> RuntimeContext:
    times = [f"system.host.dispatch_of.{name}={time}" for name, time in TIMES.items()]
    return RuntimeContext(RunSpec(topology="sip8", overrides=(*times, *more), record="full"))


def since(ctx: RuntimeContext, begin: int) -> list[Record]:
    """Returns the records of what was issued from a moment of the host on."""
    return [one for one in ctx.engine.op_log.records if one.issued >= begin]


def test_three_kernels_are_three_dispatches_and_a_replay_is_one() -> None:
    with context() as ctx:
        host = current_process().host
        x = torch.zeros(64, device="cuda")
        torch.cuda.synchronize()
        begin = host.clock
        for _ in range(3):
            x.add_(1)
        assert host.clock - begin == 3 * 10 * US
        torch.cuda.synchronize()
        eager = since(ctx, begin)
        took = eager[0].end - eager[0].start
        assert took < 10 * US  # so that the host bounds it
        assert [one.start - begin for one in eager] == [10 * US, 20 * US, 30 * US]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                x.add_(1)
        assert x.tolist() == [3.0] * 64  # nothing runs at the capture
        begin = host.clock
        graph.replay()
        assert host.clock - begin == 7 * US
        torch.cuda.synchronize()
        played = since(ctx, begin + 7 * US)
        assert [one.issued - begin for one in played] == [7 * US] * 3
        starts = [7 * US, 7 * US + took, 7 * US + 2 * took]
        assert [one.start - begin for one in played] == starts
        assert [one.name for one in played] == [one.name for one in eager]
        assert x.tolist() == [6.0] * 64


def test_branches_run_on_their_streams_and_wait_for_each_other_alone() -> None:
    with context() as ctx:
        host, side = current_process().host, torch.cuda.Stream()
        x, big = torch.zeros(64, device="cuda"), torch.zeros(1 << 20, device="cuda")
        source = torch.ones(1 << 20, device="cpu").pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            current = torch.cuda.current_stream()
            x.add_(1)
            side.wait_stream(current)
            with torch.cuda.stream(side):
                big.copy_(source, non_blocking=True)
            x.add_(1)
            current.wait_stream(side)
            big.add_(1)
        begin = host.clock
        graph.replay()
        torch.cuda.synchronize()
        played = since(ctx, begin + 1)
        (copy,) = [one for one in played if one.category == "copy"]
        first, second, last = [one for one in played if one.category == "compute"]
        assert copy.track not in {one.track for one in (first, second, last)}
        assert copy.start == first.end == second.start  # both wait for the first one alone
        assert second.end < copy.end == last.start  # and the last one for both
        assert big.sum().item() == 2 << 20


def test_a_graph_takes_one_place_in_the_launch_queue() -> None:
    with context("system.host.launch_queue=4"):
        host, x = current_process().host, torch.zeros(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                x.add_(1)
        torch.cuda.synchronize()
        begin = host.clock
        graph.replay()
        graph.replay()
        assert host.clock - begin == 2 * 7 * US  # 40 commands, and nobody waits
        assert x.tolist() == [40.0] * 64


def test_what_is_issued_after_a_replay_comes_after_all_of_it() -> None:
    with context() as ctx:
        host, side = current_process().host, torch.cuda.Stream()
        x, y = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.add_(1)
            torch.cuda.current_stream().wait_stream(side)
        begin = host.clock
        graph.replay()
        z = y + x
        torch.cuda.synchronize()
        inside, after = since(ctx, begin + 1)[:2]
        assert inside.track != after.track
        assert after.start >= inside.end
        assert z.tolist() == [1.0] * 64


def test_without_a_time_of_its_own_a_replay_is_a_dispatch() -> None:
    with RuntimeContext(RunSpec(topology="sip8")):  # 2 us a command
        host, x = current_process().host, torch.zeros(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
            x.add_(1)
        begin = host.clock
        graph.replay()
        assert host.clock - begin == 2 * US
