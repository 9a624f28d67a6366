"""One spawn: its ranks start, run, and return or fail; a clean-up leaves nothing of them behind."""

import inspect
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol, cast

from kernbench.classes.partition import Partition
from kernbench.classes.roles import Role
from kernbench.classes.splits import Met, Splits
from kernbench.des import (
    Carriers,
    DeadlockError,
    Killed,
    SwallowedAbortError,
    Task,
    current_carrier,
    cut_short,
    order,
)
from kernbench.errors import (
    CallSite,
    KernbenchError,
    OperandError,
    call_site,
    call_site_of,
    is_ours,
    site_fact,
    site_in,
)
from kernbench.process import flight_record as flight
from kernbench.process.called import called, issued
from kernbench.process.process import Process
from kernbench.ranks import time_limit, watchdog
from kernbench.ranks.eager_log import EagerLog
from kernbench.ranks.environments import own_environments
from kernbench.ranks.exploring import choose_late
from kernbench.ranks.hash_seeds import Calls
from kernbench.ranks.hidden_deadlocks import hidden_deadlock
from kernbench.ranks.leaving import let_go
from kernbench.ranks.livelock import LivelockError, LivelockGuard
from kernbench.ranks.meeting import CollectiveMismatchError
from kernbench.ranks.printing import WholeLines, whole_lines
from kernbench.ranks.rank_status import rank_status
from kernbench.ranks.reviewing import Reviewer
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.spawn_errors import (
    LeakError,
    RankAborted,
    RankKilledError,
    SpawnException,
    SpawnInterrupted,
    swallowed,
)
from kernbench.ranks.spawn_state import RankSession
from kernbench.ranks.time_limit import TimeLimitError
from kernbench.ranks.transfers import TransferMismatchError
from kernbench.ranks.verdicts import RankDeadlockError
from kernbench.ranks.waiting import waits_for
from kernbench.ranks.world import GroupLeakWarning, World

_JOINT: Final = (CollectiveMismatchError, RankDeadlockError, TransferMismatchError)
"""Errors of several ranks, which are reported when all of these have come."""

_AT_ONCE: Final = (LivelockError, TimeLimitError)
"""Those of them for which nobody is waited any longer."""


class SpawnSession(RankSession, Protocol):
    """A session in which ranks are spawned; `RuntimeContext` describes the attributes."""

    world: World
    on_choice: Callable[[str], None] | None
    roles: Role | None
    collapsed: list[Partition]
    splits: Splits

    @property
    def schedule(self) -> Schedule | None:
        """Decides which message each receive from any source takes; None: the first to come."""
        ...

    @property
    def calls(self) -> Calls | None:
        """Notes what ranks call together; None if nobody asks."""
        ...


def session_of(process: Process) -> SpawnSession:
    """Returns the context that a process belongs to."""
    return cast(SpawnSession, process.ctx)


class Spawn:
    """One spawn, from the start of its ranks until nothing of them is left.

    Args:
        main: The main process of the context, which waits for the ranks.
        fn: Function that runs as each rank; called with the rank and `args`.
        args: Arguments of `fn` after the rank.
        carriers: Where the ranks' stacks come from; None: from where the loop takes them.
        light: Ranks whose stacks come from where the loop takes them all the same.
        partition: Classes of ranks, of each of which one runs; None: every rank runs.

    Attributes:
        met: What ranks have done together.
    """

    def __init__(
        self,
        ctx: SpawnSession,
        main: Process,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        nprocs: int,
        *,
        carriers: Carriers | None = None,
        light: Collection[int] = (),
        partition: Partition | None = None,
    ) -> None:
        self._ctx = ctx
        self._main = main
        self._fn = fn
        self._args = args
        self._site = call_site()
        self._loop = ctx.engine.loop
        self._carriers = carriers
        self._light = light
        self._errors: dict[int, BaseException] = {}
        self._failed_at: dict[int, int] = {}
        self._aborted: dict[int, str] = {}
        self._aborted_at: dict[int, int] = {}
        self._stopped: dict[int, CallSite | None] = {}
        self._aborting = False
        self._cut_short = True  # until it is known
        self._tasks: list[Task] = []
        self._interrupts = 0
        self._reviewer: Reviewer | None = None
        self._watch: watchdog.Watch | None = None
        self._eager: EagerLog | None = None
        self._leaks: GroupLeakWarning | None = None
        self._lines: WholeLines | None = None
        self._stood: list[str] = []
        clock = main.host.clock
        self._processes = [
            Process(ctx, ctx.engine, rank, ctx.devices[rank], clock, beside=nprocs > 1)
            for rank in (range(nprocs) if partition is None else partition.callers)
        ]
        self._nprocs = nprocs
        self._partition = partition
        self.met: Final = Met()

    def run(self) -> None:
        """Runs the ranks to their end; main waits.

        Raises:
            SpawnException: If ranks failed.
            SpawnInterrupted: If the user interrupted the run.
        """
        __tracebackhide__ = True  # pytest then shows the user's worker
        loop = self._loop
        loop.unsettled = (
            True  # also if an interrupt comes between any two bytecodes of what follows
        )
        try:
            self._run()
        except (SpawnException, SpawnInterrupted):
            loop.unsettled = self._cut_short
            raise
        except (KernbenchError, Warning) as error:
            loop.unsettled = cut_short(error)
            raise
        loop.unsettled = self._cut_short

    def _run(self) -> None:
        __tracebackhide__ = True
        ctx, loop = self._ctx, self._loop
        start = max(self._main.host.clock, loop.now)
        interrupt: KeyboardInterrupt | None = None
        on_limit, usual = loop.on_limit, loop.carriers
        with own_environments(), whole_lines(len(self._processes)) as self._lines:
            try:
                self._set_up(start)
                self._drive()
            except KeyboardInterrupt as error:  # it came while no rank was running
                interrupt = error
                self._note_interrupt()
            finally:
                loop.on_limit = on_limit
                loop.current = loop.driver = None  # an interrupt may have cut a change short
                try:
                    self._end(usual)
                except Exception:
                    if interrupt is None:
                        raise
                    # What the interrupt has cut short need not end in order.
        self._take_up_errors()
        hidden = None
        if self._eager is not None:
            hidden = hidden_deadlock(self._eager, ctx.spec.eager_limit)
        clocks = [process.host.clock for process in self._processes]
        self._main.host.clock = self._main.host.since = max(loop.now, start, *clocks)
        failed, self._errors = self._errors, {}  # their tracebacks refer to this spawn
        self._cut_short = interrupt is not None  # it came to the hub
        for raised in failed.values():
            if cut_short(raised, outside=isinstance(raised, watchdog.NoProgressError)):
                self._cut_short = True
            if isinstance(raised, KeyboardInterrupt):
                interrupt = raised
        if interrupt is not None:
            try:
                raise SpawnInterrupted(max(loop.now, *clocks), self._stood) from interrupt
            finally:
                interrupt = None  # its traceback may refer to this frame
        if failed:
            order = sorted(failed, key=lambda rank: (self._failed_at[rank], rank))
            errors = {rank: failed[rank] for rank in order}
            aborted = dict(sorted(self._aborted.items()))
            times = {**self._aborted_at, **self._failed_at}
            schedule = ctx.schedule
            spec = ctx.spec if schedule is None else replace(ctx.spec, schedule=schedule.taken)
            raise SpawnException(errors, aborted, spec, times) from errors[min(order)]
        site = self._site
        for warning in (hidden, self._leaks):
            if warning is not None and site is not None:
                warnings.warn_explicit(warning, type(warning), site.file, site.line)

    def _take_up_errors(self) -> None:
        """Finds errors that came beside the ranks' own code, such as an interrupt at its end."""
        for process, task in zip(self._processes, self._tasks, strict=False):
            rank, error = process.rank, task.error
            if error is not None and not isinstance(error, RankAborted | SwallowedAbortError):
                self._errors.setdefault(rank, error)
                self._failed_at.setdefault(rank, task.clock)

    def _set_up(self, start: int) -> None:
        ctx = self._ctx
        world = ctx.world = World(
            self._nprocs,
            self._site,
            partition=self._partition,
            met=self.met,
            schedule=ctx.schedule,
            blame=self._blame,
            eager=EagerLog() if ctx.spec.eager_limit else None,
            on_choice=ctx.on_choice,
        )
        reviewer = self._reviewer = Reviewer(world, self._loop, self._processes, self._abort_later)
        world.review, world.suspect = reviewer.review_later, reviewer.suspect
        self._main.ranks = self._processes
        self._loop.on_park = reviewer.parked
        guard = LivelockGuard(world, self._processes)
        usual = self._loop.carriers
        for process in self._processes:
            light = process.rank in self._light
            self._loop.carriers = usual if light else self._carriers or usual
            if ctx.calls is not None:
                process.heard = ctx.calls.of(process)
            process.budget = ctx.spec.step_budget or None
            process.host.fruitless = guard.watch(process)
            task = self._loop.start(
                self._rank_main,
                process,
                owner=process.host.owner,
                name=process.name,
                subject=process,
                clock=start,
            )
            process.task = process.host.task = task
            self._tasks.append(task)
        self._loop.carriers = self._carriers or usual
        self._loop.on_limit = time_limit.on_ranks(ctx.spec.max_time_ps, world, self._processes)
        self._watch = watchdog.begin(self._loop, ctx.spec.watchdog_s)

    def _end(self, usual: Carriers) -> None:
        try:
            self._abort()
        finally:
            self._loop.carriers = usual
            self._clean_up()

    def _clean_up(self) -> None:
        ctx, world = self._ctx, self._ctx.world
        if self._watch is not None:
            watchdog.end(self._watch)
        self._loop.on_park = None
        self._loop.discard()
        ctx.engine.network.forget()
        ctx.worker_waits.clear()
        self._eager = world.eager
        self._leaks = world.leaks()
        world.end()
        self._reviewer = None
        ctx.world = World(schedule=ctx.schedule)
        for process in self._processes:
            flight.freeze(process, self._loop.now)
            let_go(process)

    def _drive(self) -> None:
        while True:
            try:
                self._loop.run()
            except DeadlockError as deadlock:
                if not self._aborting and choose_late(self._ctx.world):
                    continue
                if not self._aborting and self._reviewer is not None:
                    self._reviewer.explain(deadlock, told=bool(self._errors))
                self._abort()
                continue
            return

    # A rank

    def _rank_main(self, process: Process) -> None:
        world = self._ctx.world
        carrier = current_carrier()
        world.rank_by_carrier[carrier] = process.rank
        try:
            self._returned(process, self._call(process))
        except RankAborted as aborted:
            if process.rank in world.exited:
                place = world.exit_sites.get(process.rank)
                where = "after the worker had returned" + (f" {site_fact(place)}" if place else "")
            else:
                # Not the last line: `finally` may have waited again.
                where = site_fact(self._stopped.get(process.rank) or call_site_of(aborted))
            error = self._errors.get(process.rank)
            hidden = _hidden(aborted)
            if hidden and isinstance(error, KernbenchError):
                error.add_note(f"{process.name} was handling {hidden}")
            self._aborted[process.rank] = f"{where}, handling {hidden}" if hidden else where
        except BaseException as error:
            self._raised(process, error)
        finally:
            process.alive = False
            process.frame = None
            if self._reviewer is not None:
                self._reviewer.ended(process)
            if self._lines is not None:
                self._lines.finish(process.rank)
            world.rank_by_carrier.pop(carrier, None)

    def _call(self, process: Process) -> CallSite | None:
        """Runs the worker of a rank and returns where it returned or called `sys.exit(0)`."""
        try:
            result = self._fn(process.rank, *self._args)
        except RankAborted:
            raise
        except TypeError as error:
            wrong = self._misfit(error)
            if wrong is None:
                raise
            raise wrong from None
        except SystemExit as stop:
            if stop.code:
                raise
            return self._exit_site(process, stop)
        if runs_nothing(result):
            raise KernbenchError(
                f"the worker of rank {process.rank} is a generator or a coroutine: calling it "
                "runs nothing",
                hint="give spawn a plain function",
            )
        return self._return_site(process)

    def _exit_site(self, process: Process, stop: SystemExit) -> CallSite | None:
        """Returns where a rank called `sys.exit`, or where the function returned that it called."""
        frame = process.frame
        if frame is None or frame in [entry for entry, _ in traceback.walk_tb(stop.__traceback__)]:
            process.frame = None
            return call_site_of(stop)
        return self._return_site(process)

    def _misfit(self, error: TypeError) -> OperandError | None:
        """Returns the error for a worker that does not take its arguments; None if it does."""
        traceback = error.__traceback__
        if traceback is None or traceback.tb_next is not None:
            return None
        try:
            signature = inspect.signature(self._fn)
        except (TypeError, ValueError):
            return None
        try:
            signature.bind(0, *self._args)
        except TypeError as misfit:
            name = getattr(self._fn, "__name__", type(self._fn).__name__)
            given = f"the rank and {len(self._args)} of args" if self._args else "the rank alone"
            return OperandError(
                f"spawn cannot call {name}{signature}: {misfit}",
                [site_fact(self._site, "spawned at"), f"it is called with {given}"],
                hint=f"spawn({name}, args=(...), nprocs=...) calls {name}(rank, *args)",
            )
        return None

    def _return_site(self, process: Process) -> CallSite | None:
        """Returns where a rank's function returned; its first line if the rank issued nothing."""
        frame, process.frame = process.frame, None
        if frame is not None:
            return CallSite(frame.f_code, frame.f_lasti)
        code = getattr(getattr(self._fn, "func", self._fn), "__code__", None)
        return None if code is None else CallSite(code, 0)

    def _returned(self, process: Process, site: CallSite | None) -> None:
        """Checks what a returned rank has left behind, then waits for its streams."""
        world = self._ctx.world
        world.exited[process.rank] = process
        if site is not None:
            world.exit_sites[process.rank] = site
        try:
            self._check_left_behind(process)
            if waits_for(process):
                world.review()
            for stream in process.streams():
                process.wait_stream(stream, "host")
            process.host.raise_fault()
        except KernbenchError as error:
            self._raised(process, error)

    def _check_left_behind(self, process: Process) -> None:
        """Raises LeakError (C13) if the rank has not waited for an asynchronous operation."""
        commands = [
            command
            for command in self._ctx.world.unwaited.get(process.rank, {}).values()
            if not process.knows(command)
        ]
        if not commands:
            return
        places: dict[tuple[str, CallSite | None], list[str]] = {}
        for command in commands:
            places.setdefault((command.name, command.site), []).append(issued(command, "issued"))
        raise LeakError(
            f"rank {process.rank} returned without waiting for {len(commands)} operation"
            f"{'s' if len(commands) > 1 else ''}",
            [
                told[0] if len(told) == 1 else f"{len(told)} times, first {told[0]}"
                for told in places.values()
            ],
            hint="keep the work that each of these calls returned, and call its wait()",
            code="C13",
        )

    # Failures

    def _raised(self, process: Process, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._interrupts += 1
            self._note_interrupt(process, call_site_of(error))
        elif isinstance(error, Killed):
            killed = RankKilledError(
                f"rank {process.rank} was ended by GreenletExit, which kernbench did not throw",
                [called(process, "", site=call_site_of(error))],
                code="R6",
            )
            killed.__cause__ = error
            error = killed
        elif isinstance(error, watchdog.NoProgressError):
            error.explain(process.name)
        elif isinstance(error, RecursionError):
            error.add_note(_depth_note(error))
        elif isinstance(error, KernbenchError):
            if call_site_of(error) is None:
                error.__traceback__ = None  # pytest would show our frames for want of others
            hidden = _hidden(error)
            if hidden:
                error.add_note(f"{process.name} was handling {hidden}")
        self._failed(process.rank, error, process.host.clock)

    def _note_interrupt(self, process: Process | None = None, site: CallSite | None = None) -> None:
        """Keeps where all ranks are at the first interrupt.

        Args:
            process: The rank that was running; None if none was.
            site: Where it was.
        """
        if not self._stood:
            running = {} if process is None else {process.rank: site}
            self._stood = rank_status(self._ctx.world, self._processes, running)

    def _failed(self, rank: int, error: BaseException, time: int) -> None:
        if rank not in self._errors:
            self._errors[rank] = error
            self._failed_at[rank] = time
        if self._aborting or self._reviewer is None:
            return
        joint = isinstance(error, _JOINT) and not isinstance(error, _AT_ONCE)
        if joint and self._reviewer.begin_round():
            return
        if isinstance(error, KeyboardInterrupt):
            self._abort_later(order.INTERRUPT)
            return
        self._reviewer.end_round()
        if not self._aborting:
            self._abort_later()

    def _abort_later(self, owner: int = order.ABORT) -> None:
        self._stop_looking()
        self._loop.at(self._loop.now, self._loop.owner(owner), self._abort)

    def _stop_looking(self) -> None:
        """Stops the search for deadlocks: ranks are being aborted, so their waits mean nothing."""
        self._aborting = True
        if self._reviewer is not None:
            self._reviewer.active = False

    def _blame(self, ranks: Iterable[int], error: BaseException) -> None:
        for rank in ranks:
            self._failed(rank, error, self._loop.now)

    def _abort(self) -> None:
        """Ends every remaining task, rank by rank; each task runs its `finally` blocks."""
        self._stop_looking()
        for process in self._processes:
            flight.stop(process)
            if process.alive:
                self._aborted_at.setdefault(process.rank, process.host.clock)
                if process.task is not None:
                    self._stopped.setdefault(process.rank, site_in(process.task.frame))
        interrupts = self._interrupts
        try:
            for task in self._loop.tasks():
                subject = task.subject
                task.interrupt(RankAborted("another rank failed"))
                if task.error is not None and isinstance(subject, Process):
                    error = task.error
                    if isinstance(error, SwallowedAbortError):
                        error = swallowed(task.name, error)
                    self._failed(subject.rank, error, self._loop.now)
                if self._interrupts > interrupts:
                    break  # a second interrupt while ranks were ending: run no more user code
        finally:
            self._loop.abandon()


def runs_nothing(result: object) -> bool:
    """Returns whether what a function returned shows that none of it has run, and closes it."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result):
        result.close()  # Python warns of a coroutine that nobody awaits
        return True
    return inspect.isasyncgen(result)


def _hidden(error: BaseException) -> str:
    """Returns the user's exception that was handled, as in a `finally`, when an error came."""
    first = error.__context__
    trace = None if first is None else first.__traceback__
    if trace is None or is_ours(trace.tb_frame) or error.__suppress_context__:
        return ""  # the frame that handles it is the outermost one of the trace
    if first is None or isinstance(first, KernbenchError | RankAborted):
        return ""
    what = "".join(traceback.format_exception_only(first)).strip().partition("\n")[0]
    return f"{what}, raised {site_fact(call_site_of(first))}"


def _depth_note(error: BaseException) -> str:
    depth, traceback = 0, error.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    return f"the calls were {depth} deep"
