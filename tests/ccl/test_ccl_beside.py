"""When collectives begin that are ready beside kernels of their device: by hand, in us."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from ccl_machine import SUM, shipped_algorithm

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.ccl.collective import Collective
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.prepared import CollectiveShape
from kernbench.des import Beside, Event
from kernbench.memory import Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.sim_engine.host import Host
from kernbench.testing import Kernbench
from kernbench.topology import Topology, load_topology

US = 10**6
WAITS = "system.sip.overlap.notice=2 us"
SLOWS = (WAITS, "system.sip.overlap.kernel=28", "system.sip.overlap.collective=8")
COUNT = 1 << 16


class Kernel(NamedTuple):
    """A kernel of rank 0: when it is issued, how long it takes, its stream."""

    issued: float
    lasts: float
    stream: int = 0
    small: bool = False


def machine(*overrides: str) -> Topology:
    return load_topology("sip8", overrides).topology_obj


def begins(
    topology: Topology,
    kernels: Sequence[Kernel],
    ready: Sequence[float],
    *,
    fidelity: Fidelity = "kernel",
    after: int | None = None,
) -> tuple[list[float], list[float], list[float]]:
    """Runs an all-reduce beside kernels; returns when its ranks begin and end, and kernels end.

    Args:
        topology: The machine.
        kernels: Kernels of rank 0, in the order of issue.
        ready: When each rank issues the all-reduce, after the kernels.
        fidelity: `tile` runs it live.
        after: Number of the kernel that rank 0's part waits for, too.
    """
    engine = GraphEngine(topology, enable_data=False, fidelity=fidelity, record="full")
    engine.devices[0].go_beside(engine.loop)
    if any(kernel.stream for kernel in kernels):
        engine.devices[0].share(engine.loop)
    hosts = [Host(engine.loop, rank, engine.rank_owner(rank), 0, 64) for rank in range(len(ready))]
    streams = [Stream(f"k{number}", 0) for number in range(2)]
    done: list[Event] = []
    for kernel in kernels:
        hosts[0].clock = round(kernel.issued * US)
        lasts = round(kernel.lasts * US)
        work = Hold(
            engine, engine.devices[0].compute, Beside(lasts) if kernel.small else lasts, None
        )
        command = Command("k", "compute", hosts[0], streams[kernel.stream], work)
        engine.submit(command)
        done.append(command.done)
    model, sips = CollectiveModel(engine), tuple(range(len(ready)))
    shape = CollectiveShape(shipped_algorithm(), "all_reduce", sips, (COUNT,), dtypes.float32)
    group = Collective(model, model.prepare(shape), SUM)
    for rank, time in enumerate(ready):
        hosts[rank].clock = round(time * US)
        memory = Storage(engine.devices[rank].hbm, 4 * COUNT, "x", None)
        view = View(memory.buffer, dtypes.float32, (COUNT,), (1,), 0)
        stream = Stream("c", rank)
        if rank == 0 and after is not None:
            stream.waits.append(done[after])
        part = group.join(rank, [view], [view])
        engine.submit(Command("c", "collective", hosts[rank], stream, part))
    engine.loop.run()
    found = sorted((r for r in engine.op_log.records if r.name == "c"), key=lambda r: r.rank)
    ends = [r.end / US for r in engine.op_log.records if r.name == "k"]
    return [r.start / US for r in found], [r.end / US for r in found], ends


LONG = [Kernel(10, 20), Kernel(12, 30), Kernel(14, 5)]
"""10 to 30, 30 to 60, 60 to 65: the host runs ahead."""


@pytest.mark.parametrize(
    ("ready", "begin"),
    [
        (7, 7),
        (8, 8),  # 2 us before the first kernel
        (8.000001, 30),
        (9, 30),
        (10, 30),
        (15, 30),
        (27.999999, 30),
        (28, 30),
        (28.000001, 60),  # less than 2 us before the second one, which is faster
        (45, 60),
        (59, 65),
        (65, 65),
        (70, 70),
    ],
)
def test_a_collective_begins_when_the_kernel_ends_beside_which_it_is_ready(
    ready: float, begin: float
) -> None:
    at_once, *_ = begins(machine(), LONG, [ready, 0])
    assert at_once == [ready, 0]
    for fidelity in ("kernel", "tile"):
        starts, ends, _ = begins(machine(WAITS), LONG, [ready, 0], fidelity=fidelity)
        assert starts == [begin, 0]
        # From then on it takes as long as that of a rank that is ready then, without kernels.
        assert ends == begins(machine(), [], [begin, 0], fidelity=fidelity)[1]


def test_a_collective_that_waits_for_a_kernel_is_not_delayed_by_it() -> None:
    # It is ready at 30 and begins then. A kernel at 30 comes before it, one at 32 does not.
    for more, begin in (([], 30), ([Kernel(12, 30)], 60), ([Kernel(32, 30)], 30)):
        starts, *_ = begins(machine(WAITS), [Kernel(10, 20), *more], [20, 0], after=0)
        assert starts == [begin, 0]


def test_a_kernel_that_leaves_room_delays_nobody() -> None:
    kernels = [Kernel(10, 20, small=True), Kernel(12, 30), Kernel(14, 5, small=True)]
    for ready, begin in ((20, 20), (29, 60), (62, 62)):
        assert begins(machine(WAITS), kernels, [ready, 0])[0] == [begin, 0]


def test_kernels_of_two_streams_delay_alike() -> None:
    # The second one is issued at 12 and begins at 30, when the first one ends.
    kernels = [Kernel(10, 20), Kernel(12, 30, stream=1), Kernel(80, 5, stream=1)]
    for ready, begin in ((15, 30), (40, 60), (78.5, 85)):
        assert begins(machine(WAITS), kernels, [ready, 0])[0] == [begin, 0]


def test_each_rank_waits_for_kernels_of_its_own_device() -> None:
    starts, ends, _ = begins(machine(WAITS), LONG, [15, 16, 50, 3])
    assert starts == [30, 16, 50, 3]
    assert ends == begins(machine(), [], [30, 16, 50, 3])[1]


def test_a_collective_whose_launch_is_shorter_than_the_notice_moves_nothing_before() -> None:
    # What begins within 2 us is known after 2 us, so data moves from then on; the launch is over.
    launch = "system.sip.collective_launch=0 ns"
    starts, ends, _ = begins(machine(WAITS, launch), [], [10, 10])
    assert starts == [10, 10]
    assert ends == begins(machine(launch), [], [12, 12])[1]


def test_a_kernel_beside_a_collective_takes_longer_and_so_does_the_collective() -> None:
    # Both ranks begin the collective at 30. Rank 0's next kernel is longer than the collective: at
    # 72 % until that ends, which takes it 1 / 0.92 of its time.
    kernels = [Kernel(10, 20), Kernel(12, 100)]
    _, (end, other), _ = begins(machine(), [], [30, 30])
    assert end == other < 100
    for fidelity in ("kernel", "tile"):
        starts, ends, kernel_ends = begins(machine(*SLOWS), kernels, [15, 30], fidelity=fidelity)
        assert starts == [30, 30]
        lasts = (end - 30) / 0.92
        assert ends == [pytest.approx(30 + lasts, abs=2e-6), other]
        assert kernel_ends == [30, pytest.approx(130 + 0.28 * lasts, abs=2e-6)]


Spans = dict[tuple[str, int], list[tuple[int, int]]]


def spans(kernbench: Kernbench, program: Callable[[int], object], **fields: Any) -> Spans:
    """Returns from when to when commands of two ranks ran, by name and rank, in picoseconds."""
    ctx = kernbench.spawn(
        program, nprocs=2, topology=fields.pop("topology", "sip8"), record="full", **fields
    )
    found: Spans = {}
    for record in ctx.engine.op_log.records:
        found.setdefault((record.name, record.rank), []).append((record.start, record.end))
    return found


@tl.jit
def _repeat(y: Any, times: tl.constexpr, block: tl.constexpr) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    for _ in range(times):
        tl.store(y + at, tl.load(y + at))


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_a_tile_kernel_delays_if_there_is_a_program_for_each_pe(
    kernbench: Kernbench, fidelity: Fidelity
) -> None:
    def program(rank: int, grid: int) -> None:
        dist.init_process_group("nccl")
        x, y = torch.zeros(64, device="cuda"), torch.zeros(64 * 64, device="cuda")
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        _repeat[(grid,)](y, 100, 64)
        with torch.cuda.stream(side):
            dist.all_reduce(x)

    for grid, waits in ((31, False), (32, True)):  # the machine has 32 PEs
        found = spans(
            kernbench,
            partial(program, grid=grid),
            fidelity=fidelity,
            overrides=[WAITS],
        )
        for rank in (0, 1):
            ((begin, end),) = found["_repeat", rank]
            ((start, _),) = found["all_reduce", rank]
            assert begin + 2 * US <= start
            assert start < end if not waits else start == end


@pytest.mark.parametrize(("rows", "waits"), [(512, False), (1024, True)])
def test_a_product_with_fewer_tiles_than_pes_delays_nobody(
    kernbench: Kernbench, rows: int, waits: bool
) -> None:
    # Tiles of 64 x 64: 8 x 2 of 512 rows, 16 x 2 of 1024.
    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        x, a = torch.zeros(64, device="cuda"), torch.zeros(rows, 1024, device="cuda")
        b, side = torch.zeros(1024, 128, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        torch.matmul(a, b)
        with torch.cuda.stream(side):
            dist.all_reduce(x)

    found = spans(kernbench, program, overrides=[WAITS])
    ((begin, end),) = found["aten::mm", 0]
    ((start, _),) = found["all_reduce", 0]
    assert begin < start
    assert start < end if not waits else start == end


def test_a_side_of_a_message_waits_for_kernels_that_run_as_it_comes(kernbench: Kernbench) -> None:
    # Rank 0 sends beside its kernel, and rank 1 comes while a second kernel of rank 0 runs, beside
    # which the send waits for it on PEs that it has.
    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        x, a = torch.zeros(64, device="cuda"), torch.zeros(1024, 1024, device="cuda")
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        torch.matmul(a, a)
        if rank == 0:
            with torch.cuda.stream(side):
                work = dist.isend(x, 1)
            torch.matmul(a, a)
            work.wait()
        else:
            torch.exp(a)
            dist.recv(x, 0)

    found = spans(kernbench, program, overrides=[WAITS])
    (_, first_end), (second, second_end) = found["aten::mm", 0]
    ((_, come),) = found["aten::exp", 1]
    assert first_end == second < come < second_end
    assert [start for start, _ in (*found["send", 0], *found["recv", 1])] == [come, come]
