"""`torch.multiprocessing`: one task per rank in this process."""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from kernbench.des import DeadlockError, current_carrier
from kernbench.errors import KernbenchError, UnsupportedError, call_site, call_site_of, site_fact
from kernbench.runtime_api.distributed import World
from kernbench.runtime_api.process import MAIN, Process, current_process
from kernbench.runtime_api.rendezvous import ProcessGroup, folded
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

__all__ = ["SpawnException", "spawn"]

_REVIEW_OWNER: Final = 1 << 62
_ABORT_OWNER: Final = _REVIEW_OWNER + 1
"""After everybody else at the same instant, so that the list of those who failed is complete."""


class RankAborted(SystemExit):
    """Thrown into a rank at its wait because another one failed; not a user's `sys.exit`."""


class LeakError(KernbenchError):
    """A rank returned without waiting for what it had started (C13)."""


class RankDeadlockError(KernbenchError):
    """Ranks wait for what can never happen."""


class SpawnException(Exception):  # noqa: N818 - the name users rely on
    """Ranks have failed.

    Attributes:
        errors: By rank, what it failed with; ranks that were only aborted are not in it.
    """

    def __init__(self, errors: dict[int, BaseException], aborted: dict[int, str]) -> None:
        self.errors = errors
        self.aborted = aborted
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{folded(list(self.errors))} failed"]
        shown: dict[str, list[int]] = {}
        for rank, error in self.errors.items():
            site = call_site_of(error)
            where = f"\n  {site_fact(site)}" if site is not None else ""
            text = f"{type(error).__name__}: {_text_of(error)}{where}"
            shown.setdefault(text, []).append(rank)
        for text, same in shown.items():
            lines.append(f"{folded(same)}: {text}")
        return "\n".join([*lines, *self.aborted_lines()])

    def aborted_lines(self) -> list[str]:
        """Returns where ranks were aborted that had done nothing wrong, a line a place."""
        places: dict[str, list[int]] = {}
        for rank, where in self.aborted.items():
            if rank not in self.errors:
                places.setdefault(where, []).append(rank)
        return [f"{folded(ranks)} aborted {where}" for where, ranks in places.items()]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its text could not be made>"


def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Calls `fn(rank, *args)` once for each rank and waits for all of them.

    Everything that main has issued is done before the first rank starts, and everything that the
    ranks have issued before this returns.

    Args:
        fn: Runs as each rank; its return value is dropped.
        args: Further arguments; the ranks share the very objects.
        nprocs: Number of ranks; rank r has the r-th device of the context.
        join: Must be True.
        daemon: Must be False.
        start_method: Must be `spawn`.

    Raises:
        SpawnException: If a rank raised, or a collective could not be completed.
        KernbenchError: If there are more ranks than devices, or inside a rank (C19).
    """
    __tracebackhide__ = True
    if not join or daemon or start_method != "spawn":
        raise UnsupportedError(
            "spawn(join=False, daemon=True, start_method=...) is not simulated",
            [site_fact(call_site())],
            hint="spawn(fn, args, nprocs) waits for all ranks",
        )
    process = current_process()
    if process.rank != MAIN:
        raise KernbenchError(
            f"spawn was called inside rank {process.rank}", [site_fact(call_site())], code="C19"
        )
    ctx = process.ctx
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise KernbenchError(
            f"spawn(nprocs={nprocs!r}): expected a positive number of ranks",
            [site_fact(call_site())],
        )
    if nprocs > len(ctx.devices):
        raise KernbenchError(
            f"spawn of {nprocs} ranks on a machine with {len(ctx.devices)} SIPs",
            [site_fact(call_site()), f"machine {ctx.engine.topology.name}, one SIP a rank"],
            hint="spawn fewer ranks, or choose a larger machine with --topology",
        )
    if ctx.world.size:
        raise KernbenchError("a spawn is running already", [site_fact(call_site())], code="C19")
    process.synchronize()
    _Spawn(ctx, process, fn, args, nprocs).run()


def _drain_pending(ctx: "RuntimeContext") -> None:
    """Drives the loop until nothing that a worker waits for is pending; for main."""
    while ctx._pending_worker_waits:
        ctx.engine.loop.run(until=ctx._pending_worker_waits[0])


class _Spawn:
    """One spawn, from the start of its ranks until nothing of them is left."""

    def __init__(
        self,
        ctx: "RuntimeContext",
        main: Process,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        nprocs: int,
    ) -> None:
        self._ctx = ctx
        self._main = main
        self._fn = fn
        self._args = args
        self._loop = ctx.engine.loop
        self._errors: dict[int, BaseException] = {}
        self._aborted: dict[int, str] = {}
        self._aborting = False
        clock = main.host.clock
        self._processes = [
            Process(ctx, ctx.engine, rank, ctx.devices[rank], clock) for rank in range(nprocs)
        ]

    def run(self) -> None:
        """Runs the ranks to their end."""
        __tracebackhide__ = True  # of pytest: what failed is the user's worker
        ctx, nprocs = self._ctx, len(self._processes)
        world = ctx.world = World(nprocs, ProcessGroup("WORLD", range(nprocs)))
        world.review = self._review_later
        world.blame = self._blame
        start = max(self._main.host.clock, self._loop.now)
        for process in self._processes:
            task = self._loop.start(
                self._rank_main,
                process,
                owner=process.host.owner,
                name=process.name,
                subject=process,
                clock=start,
            )
            process.task = process.host.task = task
        try:
            self._drive()
        finally:
            self._abort()
            self._loop.discard()
            ctx.engine.network.forget_claims()
            ctx._pending_worker_waits.clear()
            world.rank_by_greenlet.clear()
            ctx.world = World()
            ctx.processes = self._processes
            for process in self._processes:
                process.task = process.host.task = None
        clocks = [process.host.clock for process in self._processes]
        self._main.host.clock = max(self._loop.now, start, *clocks)
        for error in self._errors.values():
            if isinstance(error, KeyboardInterrupt):
                raise error
        if self._errors:
            ordered = {rank: self._errors[rank] for rank in sorted(self._errors)}
            raise SpawnException(ordered, dict(sorted(self._aborted.items()))) from next(
                iter(ordered.values())
            )

    def _drive(self) -> None:
        while True:
            try:
                self._loop.run()
            except DeadlockError as deadlock:
                if not self._aborting:
                    self._blame_deadlock(deadlock)
                self._abort()
                continue
            return

    def _rank_main(self, process: Process) -> None:
        world = self._ctx.world
        carrier = current_carrier()
        world.rank_by_greenlet[carrier] = process.rank
        try:
            result = self._fn(process.rank, *self._args)
            if inspect.isgenerator(result) or inspect.iscoroutine(result):
                result.close()
                raise KernbenchError(
                    f"the worker of rank {process.rank} is a generator or a coroutine: calling it "
                    "runs nothing",
                    hint="give spawn a plain function",
                )
            self._returned(process)
        except RankAborted as aborted:
            site = call_site_of(aborted)
            returned = process.rank in world.exited
            where = "after its worker had returned" if returned else site_fact(site)
            self._aborted[process.rank] = where
        except SystemExit as stop:
            if stop.code:
                self._failed(process.rank, stop)
            else:
                self._returned(process)
        except BaseException as error:
            self._failed(process.rank, error)
        finally:
            process.alive = False
            world.rank_by_greenlet.pop(carrier, None)

    def _returned(self, process: Process) -> None:
        """Lets the rank's streams run dry, then looks for what it has left behind."""
        world = self._ctx.world
        world.exited[process.rank] = process
        try:
            self._check_left_behind(process)
            for stream in process.streams():
                process.wait_stream(stream)
            process.host.raise_fault()
        except KernbenchError as error:
            self._failed(process.rank, error)

    def _check_left_behind(self, process: Process) -> None:
        world = self._ctx.world
        works = [
            work for work in world.works.get(process.rank, []) if not process.knows(work.command)
        ]
        if works:
            raise LeakError(
                f"rank {process.rank} returned without waiting for {len(works)} operation"
                f"{'s' if len(works) > 1 else ''}",
                [site_fact(work.command.site, f"{work.command.name} issued at") for work in works],
                hint="call work.wait() on what async_op=True returned",
                code="C13",
            )
        self._review_later()

    def _review_later(self) -> None:
        """Looks for collectives that cannot complete once this instant is over.

        Ranks that are about to call them in the same instant are then in the report.
        """
        self._loop.at(self._loop.now, self._loop.owner(_REVIEW_OWNER), self._review)

    def _review(self) -> None:
        world = self._ctx.world
        if self._aborting or world.group is None:
            return
        for meeting in world.group.open.values():
            if any(rank in world.exited for rank in world.group.absent(meeting)):
                error = world.group.missing(meeting, world.exited)
                for rank in sorted(meeting.calls):
                    self._failed(rank, error)
                return

    def _failed(self, rank: int, error: BaseException) -> None:
        self._errors.setdefault(rank, error)
        if not self._aborting:
            self._aborting = True
            self._loop.at(self._loop.now, self._loop.owner(_ABORT_OWNER), self._abort)

    def _abort(self) -> None:
        """Ends every task that is left, rank by rank; each runs its `finally`."""
        self._aborting = True
        for task in self._loop.tasks():
            task.interrupt(RankAborted("another rank failed"))
            if task.error is not None and isinstance(task.subject, Process):
                self._errors.setdefault(task.subject.rank, task.error)

    def _blame(self, ranks: Iterable[int], error: BaseException) -> None:
        for rank in ranks:
            self._failed(rank, error)

    def _blame_deadlock(self, deadlock: DeadlockError) -> None:
        group = self._ctx.world.group
        assert group is not None
        for meeting in group.open.values():
            error: KernbenchError = group.missing(meeting, self._ctx.world.exited)
            self._explain(error, deadlock)
            for rank in meeting.calls:
                self._failed(rank, error)
            return
        error = RankDeadlockError("ranks wait for what can never happen")
        self._explain(error, deadlock)
        for task, _ in deadlock.waits:
            if isinstance(task.subject, Process):
                self._failed(task.subject.rank, error)
        if not self._errors:
            self._failed(0, error)

    def _explain(self, error: KernbenchError, deadlock: DeadlockError) -> None:
        for task, reason in deadlock.waits:
            error.add_fact(f"{task.name} is parked at {format_time(task.clock)}: {reason}")
