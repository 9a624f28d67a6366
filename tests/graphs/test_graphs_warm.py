"""What kernels of a CUDA graph find in the L2, and how long they take with it, by hand."""

import pytest

import kernbench.torch as torch
from kernbench.graphs.warm import Cache
from kernbench.hw.warmed import Warmed
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

MB = 10**6


def test_pieces_are_there_until_others_have_filled_the_cache() -> None:
    cache = Cache(10)
    # The first 10 bytes drive out what was there before, which has to be written back.
    assert cache.touch("a", 6, writes=True) == (0, 6)
    assert cache.touch("b", 3, writes=False) == (0, 3)
    assert cache.touch("a", 6, writes=False) == (6, 0)
    assert cache.touch("c", 2, writes=False) == (0, 1)  # b leaves, and the last byte from before
    assert cache.touch("b", 3, writes=False) == (0, 6)  # a leaves, which is written back
    assert cache.touch("c", 2, writes=False) == (2, 0)
    assert cache.touch("large", 11, writes=True) == (0, 11)  # and leaves itself
    assert cache.touch("large", 11, writes=True) == (0, 11)


def test_a_kernel_takes_time_in_proportion_to_what_it_finds_and_what_is_written_back() -> None:
    price = Warmed(100, 60, 20)
    assert price.lasting(10, 0, 10, 8) == 100
    assert price.lasting(10, 0, 8, 8) == 100
    assert price.lasting(10, 0, 4, 8) == 80
    assert price.lasting(10, 0, 0, 8) == 60
    assert price.lasting(10, 5, 0, 8) == 40
    assert price.lasting(10, 10, 0, 8) == 20
    twice = 2 * price + 5
    assert (twice, twice.clean, twice.warm) == (205, 125, 45)


def _us(overrides: tuple[str, ...], nbytes: int, calls: int = 4) -> list[float]:
    """Returns the microseconds of calls of `add` on bytes, of a graph, in order."""
    machine = ("system.sip.launch=0 s", "system.sip.cube.hbm.bandwidth=1 TB/s", *overrides)
    machine += ("system.sip.kernels.pointwise.share=100",)
    spec = RunSpec(topology="h200x8", overrides=machine, record="full", data=False)
    with RuntimeContext(spec) as ctx:
        x, y = (torch.empty(nbytes, dtype=torch.int8, device="cuda") for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                y.copy_(x)
        torch.cuda.synchronize()
        first = len(ctx.engine.op_log.records)
        graph.replay()
        torch.cuda.synchronize()
        played = ctx.engine.op_log.records[first:]
        y.copy_(x)  # outside of a graph
        torch.cuda.synchronize()
        (eager,) = ctx.engine.op_log.records[first + len(played) :]
        assert eager.end - eager.start == 2 * nbytes
        return [(one.end - one.start) / 1e6 for one in played]


WARM = ("system.sip.warm.kept=10 MB", "system.sip.warm.bandwidth=4 TB/s")


def test_a_graph_reads_from_the_l2_what_its_call_before_has_touched() -> None:
    # 2 x 4 MB at 1 TB/s, then at 4 TB/s.
    assert _us(WARM, 4 * MB) == [8, 2, 2, 2]


def test_what_does_not_fit_comes_from_memory_each_time() -> None:
    assert _us(WARM, 6 * MB) == [12, 12, 12, 12]


def test_a_machine_that_says_nothing_of_it_keeps_nothing() -> None:
    assert _us(("system.sip.warm=null",), 4 * MB) == [8, 8, 8, 8]


def test_a_product_reads_weights_that_stayed_and_writes_nothing_back() -> None:
    spec = RunSpec(topology="h200x8", record="full", data=False)
    with RuntimeContext(spec) as ctx:
        x = torch.empty(16, 4096, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                torch.mm(x, weight)
        torch.cuda.synchronize()
        first = len(ctx.engine.op_log.records)
        graph.replay()
        torch.cuda.synchronize()
        took = [(one.end - one.start) / 1e6 for one in ctx.engine.op_log.records[first:]]
    moved = 2 * (4096 * 4096 + 2 * 16 * 4096)
    cold = 1.3 + 0.4 + 2 * moved / 4.45e6  # as many bytes are written back before
    assert took == pytest.approx([cold, *[1.3 + 0.4 + moved / 8e6] * 2], rel=0.01)
