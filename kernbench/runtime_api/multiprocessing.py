"""`torch.multiprocessing`: one task per rank in this process."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from reprlib import repr as shortened
from typing import Any, Final

from kernbench.classes.partition import NotAlikeError
from kernbench.des import Carriers, InterruptedContextError, turn
from kernbench.errors import KernbenchError, OperandError, UnsupportedError, call_site, site_fact
from kernbench.process.process import MAIN, Process, Session, current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.ranks.spawning import Spawn, session_of
from kernbench.runtime_api.collapsing import check_witnesses, partition_of

__all__ = ["SpawnException", "spawn"]


def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Calls `fn(rank, *args)` once for each rank and waits for all of them.

    All commands that main has issued are done before the first rank starts, and all commands of the
    ranks before `spawn` returns. Spawns of several threads, each on a context of its own, run one
    after the other.

    Args:
        fn: Runs as each rank; its return value is dropped.
        args: Further arguments; the ranks share the same objects.
        nprocs: Number of ranks; rank r has the r-th device of the context.
        join: Must be True.
        daemon: Must be False.
        start_method: Must be `spawn`.

    Raises:
        SpawnException: If a rank raised, or ranks wait for what can never happen.
        SpawnInterrupted: If the user interrupts; the ranks are aborted first. The error says where
            all ranks were, and is a `KeyboardInterrupt`.
        KernbenchError: If there are more ranks than devices, `nprocs` is not positive, or another
            spawn is running (C19).
        OperandError: If `fn` is no function, or `args` no tuple.
        UnsupportedError: For other values of `join`, `daemon` or `start_method`.
    """
    __tracebackhide__ = True
    if not join or daemon or start_method != "spawn":
        raise UnsupportedError(
            "spawn(join=False, daemon=True, start_method=...) is not simulated",
            [site_fact(call_site())],
            hint="spawn(fn, args, nprocs) waits for all ranks",
        )
    spawn_on(None, fn, args, nprocs)


def check_first(process: Process) -> None:
    """Checks that a process may spawn ranks.

    Raises:
        KernbenchError: C19, if it is a rank itself, or ranks run.
    """
    session = session_of(process)
    world = session.world
    if process.rank == MAIN and not world.size:
        return
    whose = f"inside rank {process.rank} of" if process.rank != MAIN else "during"
    if session.spec.nproc_per_node is None:
        first = site_fact(world.site, "the outer spawn is at")
        hint = "spawn once, and let the ranks branch"
    else:
        first = "each rank runs the whole program: --nproc-per-node starts them"
        hint = (
            "a program that spawns its ranks runs once: kernbench torchrun FILE, or kernbench run "
            "--as-torch FILE, without --nproc-per-node"
        )
    raise KernbenchError(
        f"spawn was called {whose} another spawn",
        [site_fact(call_site()), first],
        hint=hint,
        code="C19",
    )


def spawn_on(
    carriers: Carriers | None,
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    light: Collection[int] = (),
) -> None:
    """Does what `spawn` does, with ranks that run on given carriers.

    Args:
        carriers: Where the ranks' stacks come from, such as a `ThreadPool`, which the caller
            closes; None: from where the context takes them.
        fn: Runs as each rank, as in `spawn`.
        args: Further arguments.
        light: Ranks whose stacks come from where the context takes them all the same.

    Raises:
        SpawnException: As `spawn` does.
        SpawnInterrupted: As `spawn` does.
        KernbenchError: As `spawn` does.
        InterruptedContextError: If an interrupt has cut an earlier run short.
    """
    __tracebackhide__ = True
    process = current_process()
    ctx = session_of(process)
    loop = ctx.engine.loop
    if process.rank == MAIN and loop.unsettled and loop.driver is None:
        raise InterruptedContextError
    check_first(process)
    _check_call(fn, args)
    args = tuple(args)
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise KernbenchError(
            f"spawn(nprocs={nprocs!r}): expected a positive number of ranks",
            [site_fact(call_site())],
        )
    if nprocs > len(ctx.devices):
        topology, named = ctx.engine.topology, len(ctx.devices)
        facts = [site_fact(call_site()), f"machine {topology.name}, one SIP a rank"]
        if named < topology.world_size:
            raise KernbenchError(
                f"spawn of {nprocs} ranks on {named} of {topology.world_size} SIPs, which "
                "--devices (devices=) names",
                facts,
                hint="spawn fewer ranks, or name more SIPs",
            )
        raise KernbenchError(
            f"spawn of {nprocs} ranks on a machine with {named} SIPs",
            facts,
            hint="spawn fewer ranks, or choose a larger machine: --topology, machine= or, with "
            "pytest, --kb-machine",
        )
    partition = partition_of(ctx, nprocs)
    process.synchronize()
    # Where each rank is a class, nobody stands for another one, and nothing is to be proved.
    stood = partition if partition is not None and len(partition) < nprocs else None
    spawned = Spawn(ctx, process, fn, args, nprocs, carriers=carriers, light=light, partition=stood)
    try:
        with turn(), _collecting_rarely():
            spawned.run()
    except (SpawnException, NotAlikeError) as error:
        if stood is not None:
            errors = error.errors.values() if isinstance(error, SpawnException) else [error]
            ctx.splits.note(len(ctx.collapsed), stood, spawned.met, errors)
        raise
    if partition is not None:
        check_witnesses(ctx, partition)
        ctx.collapsed.append(partition)


def _check_call(fn: object, args: object) -> None:
    """Checks that ranks can call `fn(*args)`, whatever it takes."""
    __tracebackhide__ = True
    if not callable(fn):
        told = f"argument 'fn' must be a function, which each rank calls; got {shortened(fn)}"
    elif not isinstance(args, Iterable):
        told = f"argument 'args' must be a tuple; got {shortened(args)}"
    else:
        return
    raise OperandError(
        f"spawn(): {told}",
        [site_fact(call_site())],
        hint="spawn(worker, args=(x, y), nprocs=2) calls worker(rank, x, y)",
    )


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Lets Python look for garbage less often.

    Ranks run ahead of their devices, so many objects are alive and few of them are garbage: with
    Python's default, a third of the time goes into the search.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _ALLOCATIONS:  # 0: the user has switched the collector off
        gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_ALLOCATIONS: Final = 50_000
"""Objects made, less objects freed, between two collections of the youngest generation."""


def _drain_pending(ctx: Session) -> None:
    """Drives the loop, on main, until no command for which a worker could wait is pending."""
    while ctx.worker_waits:
        ctx.engine.loop.run(until=ctx.worker_waits[0])
