"""Runs workers on fresh machines and checks that nothing is left of them."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kernbench.errors import UsageError
from kernbench.ranks import watchdog
from kernbench.ranks.exploring import Explored, explore
from kernbench.ranks.schedules import Schedule
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import Fidelity, GraphEngine
from kernbench.sim_engine.op_log import Detail
from kernbench.topology import load_topology


class LeftoverError(AssertionError):
    """Something of a simulated run is still there after it."""


class UnexploredWarning(UserWarning):
    """A program has more schedules than `explore` was to try."""


class Kernbench:
    """What the fixture `kernbench` gives to a test."""

    def __init__(self) -> None:
        self._contexts: Final[list[RuntimeContext]] = []

    def context(
        self,
        topology: str | Path = "sip8",
        *,
        data: bool = True,
        fidelity: Fidelity = "kernel",
        record: Detail = "summary",
        seed: int = 0,
        argv: Sequence[str] = (),
        ccl_file: Path | None = None,
        overrides: Sequence[str] = (),
        eager_limit: int = 0,
        watchdog_s: float = watchdog.SECONDS,
        step_budget: int = 0,
        schedule: Schedule | Sequence[int] | None = None,
    ) -> RuntimeContext:
        """Returns a context on a fresh machine.

        Args:
            topology: A YAML file, or the name of a shipped machine.
            data: Whether tensors hold values.
            fidelity: How closely time is simulated.
            record: How much the log keeps.
            seed: Of the ranks' random generators.
            argv: What the program finds in `ctx.argv`.
            ccl_file: The `ccl.yaml`; by default the working directory's, else the shipped one.
            overrides: `dotted.field=value` texts for the machine (`system...`) or `ccl.yaml`.
            eager_limit: Bytes up to which messages are sent without their receive.
            watchdog_s: Seconds of wall time without a simulated step that are too many; 0: none.
            step_budget: Commands that a rank may issue in a spawn; 0: any number.
            schedule: What receives from any source take, or the picks of a `Schedule`, such as
                `[2, 1]`; None: the message that comes first.

        Raises:
            UsageError: If there is no such machine, or an argument cannot be used.
        """
        __tracebackhide__ = True
        of_machine = [text for text in overrides if text.startswith("system.")]
        if schedule is not None and not isinstance(schedule, Schedule):
            schedule = Schedule(schedule)
        try:
            handle = load_topology(topology, of_machine)
            engine = GraphEngine(handle.topology_obj, data, fidelity=fidelity, record=record)
        except UsageError as error:
            # What is wrong is in the test, so nothing below it is of use there.
            raise error.with_traceback(None) from None
        ctx = RuntimeContext(
            engine=engine,
            seed=seed,
            argv=argv,
            ccl_file=ccl_file,
            ccl_overrides=[text for text in overrides if text not in of_machine],
            eager_limit=eager_limit,
            watchdog_s=watchdog_s,
            step_budget=step_budget,
            schedule=schedule,
        )
        self._contexts.append(ctx)
        return ctx

    def spawn(
        self,
        worker: Callable[..., object],
        *,
        nprocs: int = 8,
        args: tuple[Any, ...] = (),
        topology: str | Path = "sip8",
        **dials: Any,
    ) -> RuntimeContext:
        """Calls `worker(rank, *args)` once for each rank of a fresh machine.

        Args:
            worker: Runs as each rank.
            nprocs: Number of ranks.
            args: Further arguments.
            topology: A YAML file, or the name of a shipped machine.
            dials: As in `context`.

        Returns:
            The context, to look at afterwards.

        Raises:
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        ctx = self.context(topology, **dials)
        with ctx:
            ctx.multiprocessing.spawn(worker, args=args, nprocs=nprocs)
        return ctx

    def explore(
        self,
        worker: Callable[..., object],
        *,
        nprocs: int = 8,
        args: tuple[Any, ...] = (),
        topology: str | Path = "sip8",
        schedules: int = 10,
        **dials: Any,
    ) -> Explored:
        """Runs a worker as `spawn` does, again and again, with other matches of messages.

        Args:
            worker: Runs as each rank.
            nprocs: Number of ranks.
            args: Further arguments; the same objects each time.
            topology: A YAML file, or the name of a shipped machine.
            schedules: How many to try at most, see `kernbench run --explore`. With fewer than
                there are, an `UnexploredWarning` says so.
            dials: As in `context`.

        Returns:
            How many schedules were tried, and whether these are all.

        Raises:
            ScheduleError: If what hosts read, or how ranks end, depends on what a receive from any
                source takes (P8).
            SpawnException: If a rank failed though nobody interfered.
        """
        __tracebackhide__ = True

        def attempt(schedule: Schedule) -> None:
            __tracebackhide__ = True
            self.spawn(
                worker, nprocs=nprocs, args=args, topology=topology, schedule=schedule, **dials
            )

        tried = explore(attempt, schedules, _again)
        if not tried.complete:
            warnings.warn(
                f"{tried.number} schedules were tried, which agree; more are left: raise "
                f"explore(..., schedules={schedules})",
                UnexploredWarning,
                stacklevel=2,
            )
        return tried

    def check_nothing_left(self) -> None:
        """Checks that no task, wait, collective or queued event outlives the runs.

        Raises:
            LeftoverError: With a list of what does.
        """
        contexts = list(self._contexts)
        self._contexts.clear()
        left = [line for ctx in contexts for line in leftovers(ctx)]
        if left:
            raise LeftoverError("left behind after the test: " + "; ".join(left))


def _again(name: str) -> str:
    """Returns how a test runs the schedule of a name again."""
    picks = ", ".join(name.split("."))
    return f"kernbench.spawn(..., schedule=[{picks}])"


def leftovers(ctx: RuntimeContext) -> list[str]:
    """Returns what is still under way in a context, one text each."""
    loop = ctx.engine.loop
    left = [f"task {task.name} waits for {task.waiting_for}" for task in loop.tasks()]
    left += [f"pending wait for {event.label}" for event in ctx.worker_waits]
    if not left and not loop.idle:
        left.append("queued events")
    if ctx.world.size:
        left.append("a spawn")
    if ctx.engine.network.claims:
        left.append("claimed links")
    return left
