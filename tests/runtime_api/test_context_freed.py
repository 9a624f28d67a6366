"""A context leaves nothing in its process: it is freed with its last reference, as all it holds."""

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.ranks.spawn_errors import SpawnException, SpawnInterrupted
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing.harness import Kernbench

pytestmark = pytest.mark.usefixtures("small_heap")

RANKS = 8

Worker = Callable[[int], None]


def reduces(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1024))
    dist.destroy_process_group()


def keeps_its_group(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1024))


def makes_groups(rank: int) -> None:
    dist.init_process_group("nccl")
    group = dist.new_group([0, 1, 2])
    if rank < 3:
        dist.all_reduce(torch.ones(8), group=group)
    dist.all_gather_object([None] * RANKS, {"rank": rank})
    dist.destroy_process_group()


def fails(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(1024)
    dist.all_reduce(x)
    if rank == 3:
        raise ValueError(f"with {x[0].item()}")
    dist.barrier()


def waits_for_ever(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(1024)
    if rank != 3:
        dist.all_reduce(x)
    dist.barrier()


def is_interrupted(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 3:
        raise KeyboardInterrupt
    dist.barrier()


def runs_out_of_memory(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.empty(1 << 50)


def sends(rank: int) -> None:
    dist.init_process_group("nccl")
    x, y = torch.ones(1024), torch.empty(1024)
    works = [dist.isend(x, (rank + 1) % RANKS), dist.irecv(y, (rank - 1) % RANKS)]
    for work in works:
        assert work is not None
        work.wait()
    if rank:
        dist.send(x, 0)
    else:
        for _ in range(RANKS - 1):
            dist.recv(y)  # from anyone
    dist.destroy_process_group()


def receives_what_nobody_sends(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.irecv(torch.empty(1024), (rank - 1) % RANKS)


def sends_unlike_counts(rank: int) -> None:
    dist.init_process_group("nccl")
    counts = [1] * RANKS
    dist.all_to_all_single(torch.empty(RANKS), torch.ones(RANKS), counts, counts)
    if rank:
        dist.all_to_all_single(torch.empty(RANKS), torch.ones(RANKS), counts, counts)


def uses_streams(rank: int) -> None:
    dist.init_process_group("nccl")
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.ones(1024)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x * 2
        event.record()
    event.wait()
    dist.all_reduce(y)
    dist.destroy_process_group()


@tl.jit
def doubled(x_ptr: object, n: int, BLOCK: tl.constexpr) -> None:
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def launches(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(1000)
    doubled[(4,)](x, 1000, BLOCK=256)
    dist.all_reduce(x)
    dist.destroy_process_group()


def trains(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16).to("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.dropout(model(torch.ones(4, 16))).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


PROGRAMS: list[Worker] = [
    reduces,
    keeps_its_group,
    makes_groups,
    fails,
    waits_for_ever,
    is_interrupted,
    runs_out_of_memory,
    sends,
    receives_what_nobody_sends,
    sends_unlike_counts,
    uses_streams,
    launches,
    trains,
]


def run(worker: Worker, **fields: object) -> RuntimeContext:
    # Without the watchdog, whose thread may be looking at the loop at this very moment.
    ctx = RuntimeContext(RunSpec(watchdog_s=0, **fields))  # type: ignore[arg-type]
    try:
        with ctx:
            ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    except (SpawnException, SpawnInterrupted):
        pass
    return ctx


def left(worker: Worker, **fields: object) -> list[str]:
    """Returns which parts of a context are there although nobody refers to it any more."""
    return alive(parts_of(run(worker, **fields)))


def alive(parts: list[weakref.ref[object]]) -> list[str]:
    return [type(found).__name__ for part in parts if (found := part()) is not None]


def parts_of(ctx: RuntimeContext) -> list[weakref.ref[object]]:
    parts = [ctx, ctx.engine, ctx.engine.loop, ctx.main, ctx.shared, *ctx.processes]
    return [weakref.ref(part) for part in parts]


@contextmanager
def no_collector() -> Iterator[None]:
    """Switches the search for garbage off: what dies inside dies by its last reference."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def census() -> Counter[str]:
    """Returns how many objects of ours there are, stacks among them, by type."""
    return Counter(
        type(each).__qualname__
        for each in gc.get_objects()
        if str(type(each).__module__).partition(".")[0] == "kernbench"
    )


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.parametrize("worker", PROGRAMS)
def test_a_context_is_freed_with_its_last_reference(worker: Worker) -> None:
    assert len(parts_of(run(worker))) == 5 + RANKS  # and caches are warm
    with no_collector():
        assert left(worker) == []


@pytest.mark.parametrize("fields", [{"record": "full"}, {"fidelity": "tile"}, {"eager_limit": 64}])
def test_so_is_one_with_other_dials(fields: dict[str, object]) -> None:
    with no_collector():
        assert left(sends, **fields) + left(trains, **fields) == []


def test_so_is_one_that_only_main_uses() -> None:
    with no_collector():
        ctx = RuntimeContext()
        x = ctx.ones(8, device="cuda")
        assert (x + x).sum().item() == 16
        parts = parts_of(ctx)
        del ctx, x
        assert alive(parts) == []


def test_so_is_that_of_the_fixture_after_its_test() -> None:
    with no_collector():
        harness = Kernbench()
        parts = parts_of(harness.spawn(reduces, watchdog_s=0))
        assert parts[0]() is not None
        harness.check_nothing_left()
        assert alive(parts) == []


def test_names_bound_to_a_context_outlive_it() -> None:
    # Whoever holds a name of the context holds what the name needs.
    ones = RuntimeContext().ones
    assert ones(4, device="cuda").sum().item() == 4


@pytest.mark.parametrize("worker", PROGRAMS)
def test_the_tenth_context_adds_nothing(worker: Worker) -> None:
    for _ in range(2):  # caches are full with the second
        run(worker)
    gc.collect()
    before = census(), threading.active_count(), descriptors()
    with no_collector():
        for _ in range(10):
            run(worker)
        assert (census(), threading.active_count(), descriptors()) == before


def test_contexts_of_threads_leave_no_stacks() -> None:
    def one(worker: Worker) -> None:
        thread = threading.Thread(target=run, args=(worker,))
        thread.start()
        thread.join()

    for worker in (reduces, fails):
        one(worker)
    gc.collect()
    before = census()
    with no_collector():
        for _ in range(5):
            for worker in (reduces, fails):
                one(worker)
        assert census() == before
