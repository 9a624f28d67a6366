"""A kernel that is given no tensor runs on the rank's device and its current stream."""

import kernbench.torch as torch
from kernbench import tl
from kernbench.testing import Kernbench


@tl.jit
def compute(rounds: int, block: tl.constexpr) -> None:
    """Computes, and sends what comes out to the next program, which drops it."""
    tile = tl.dot(tl.zeros((block, block)), tl.zeros((block, block)))
    for _ in range(rounds):
        tile = tl.exp(tile)
    i, n = tl.program_id(0), tl.num_programs(0)
    tl.send(tl.sum(tile, axis=0), (i + 1) % n)
    tl.recv((i + n - 1) % n)


@tl.jit
def nothing() -> None:
    pass


def microseconds(stream: torch.cuda.Stream, rounds: int) -> float:
    """Returns for how long a stream is busy while a kernel is launched on the current one."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(stream)
    compute[(4,)](rounds, block=128)
    end.record(stream)
    end.synchronize()
    return 1000 * start.elapsed_time(end)


def test_it_runs_on_the_device_of_its_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        times = [microseconds(torch.cuda.current_stream(), rounds) for rounds in (100, 200)]
        assert 20 < times[0] < times[1] - 10
        nothing[(1,)]()

    with kernbench.context(record="full") as ctx:
        ctx.multiprocessing.spawn(worker, args=(), nprocs=2)
        kernels = [r for r in ctx.engine.op_log.records if r.category == "kernel"]
    assert sorted((r.rank, r.name) for r in kernels) == [
        (rank, name) for rank in range(2) for name in ("compute", "compute", "nothing")
    ]


def test_it_runs_on_the_current_stream(kernbench: Kernbench) -> None:
    with kernbench.context():
        default, side = torch.cuda.current_stream(), torch.cuda.Stream()
        alone = microseconds(default, 200)
        with torch.cuda.stream(side):
            assert microseconds(default, 200) < 0.2 * alone
            torch.cuda.synchronize()
            assert microseconds(side, 200) == alone


def test_it_runs_on_the_device_that_is_set(kernbench: Kernbench) -> None:
    with kernbench.context():
        first = torch.cuda.current_stream()
        alone = microseconds(first, 200)
        with torch.cuda.device(1):
            assert microseconds(torch.cuda.current_stream(), 200) == alone
