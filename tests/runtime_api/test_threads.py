"""Contexts in several threads, one context in one thread after another, and what is refused."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from greenlet import greenlet

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.torch import distributed as dist

pytestmark = pytest.mark.usefixtures("small_heap")

RANKS = 4

Outcome = tuple[list[list[float]], int]


def simulate(ctx: RuntimeContext | None = None) -> Outcome:
    """Returns what all ranks hold after a few all-reduces, and when the context is then, in ps."""
    if ctx is None:
        ctx = RuntimeContext(RunSpec(topology="h200x8"), quiet=True)
    held: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.arange(256, dtype=torch.float32, device="cuda") + rank
        for _ in range(20):
            dist.all_reduce(x)
            x = x / (RANKS + rank % 2)
        held[rank] = x.tolist()

    with ctx:
        torch.ones(8, device="cuda").sum().item()
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
        return [held[rank] for rank in range(RANKS)], ctx.main.host.clock


@pytest.fixture
def restless() -> Iterator[None]:
    """Lets Python change threads at almost every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_contexts_in_threads_do_not_disturb_each_other() -> None:
    alone = simulate()
    with ThreadPoolExecutor(4) as pool:
        outcomes = [future.result() for future in [pool.submit(simulate) for _ in range(8)]]
    assert outcomes == [alone] * 8


def test_one_context_in_one_thread_after_another() -> None:
    ctx = RuntimeContext(RunSpec(topology="h200x8"), quiet=True)
    values, _ = simulate()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        found = [one.submit(simulate, ctx).result(), other.submit(simulate, ctx).result()]
    found.append(simulate(ctx))
    assert [outcome[0] for outcome in found] == [values] * 3


def test_a_function_of_asyncio_to_thread_runs_on_the_context_that_is_entered() -> None:
    def on_main() -> str:
        return str(torch.cuda.get_device_name(0))

    async def main() -> tuple[str, Outcome]:
        with RuntimeContext(RunSpec(topology="sip8"), quiet=True):
            RuntimeContext(RunSpec(topology="h200x8"), quiet=True)  # later, but not entered
            return await asyncio.to_thread(on_main), await asyncio.to_thread(simulate)

    with RuntimeContext(RunSpec(topology="sip8"), quiet=True):
        here = on_main()
    name, outcome = asyncio.run(main())
    assert name == here
    assert outcome == simulate()


def refused_in_thread(ctx: RuntimeContext, call: Callable[[], object]) -> str:
    """Returns the report about a call in a thread that a rank has started."""
    found: list[str] = []

    def thread() -> None:
        with pytest.raises(Exception, match=r"^\[R12\]") as error:
            call()
        found.append(str(error.value))

    def worker(rank: int) -> None:
        beside = threading.Thread(target=thread)
        beside.start()
        beside.join()

    with ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found[0]


def test_r12_a_thread_beside_a_rank(ctx: RuntimeContext) -> None:
    report = refused_in_thread(ctx, lambda: torch.ones(3))
    lines = report.splitlines()
    assert lines[0] == "[R12] a thread uses a context while another thread simulates on it"
    assert "torch.ones(3)" in lines[1]
    assert lines[2].startswith("  hint: ranks are tasks of one thread")


def test_r12_a_spawn_beside_a_spawn_of_the_same_context(ctx: RuntimeContext) -> None:
    def spawn() -> None:
        ctx.multiprocessing.spawn(print, nprocs=1)

    assert "[R12]" in refused_in_thread(ctx, spawn)


def test_output_and_collector_are_as_before_after_threads() -> None:
    before = sys.stdout, gc.get_threshold()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(simulate) for _ in range(4)]:
            future.result()
    assert (sys.stdout, gc.get_threshold()) == before


def greenlets() -> int:
    gc.collect()
    return sum(issubclass(type(thing), greenlet) for thing in gc.get_objects())


def test_contexts_leave_no_stacks_behind() -> None:
    simulate()
    before = greenlets()
    for _ in range(3):
        simulate()
    assert greenlets() <= before  # one of a thread that has ended may go meanwhile

    def fails(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            raise ValueError
        dist.barrier()

    with RuntimeContext(RunSpec(topology="h200x8"), quiet=True) as ctx:
        for _ in range(3):
            with pytest.raises(SpawnException):
                ctx.multiprocessing.spawn(fails, nprocs=RANKS)
    assert greenlets() <= before


def test_threads_that_end_leave_no_stacks_behind() -> None:
    simulate()
    before = greenlets()
    for _ in range(3):
        thread = threading.Thread(target=simulate)
        thread.start()
        thread.join()
    assert greenlets() <= before + 1  # that of the latest thread
