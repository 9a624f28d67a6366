"""Runs workers on fresh machines and checks that no run leaves anything behind."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kernbench.classes.splits import Splits, until_stable
from kernbench.errors import UsageError
from kernbench.ranks.exploring import Explored, explore
from kernbench.ranks.schedules import Schedule
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.scripts.calls import spec_of_arguments
from kernbench.scripts.torchrun import Torchrun, torchrun_spawn
from kernbench.testing.leaks import LeftoverError, leftovers, open_spans
from kernbench.testing.measures import SIMULATED, WALL, WORLDS


class UnexploredWarning(UserWarning):
    """A program has more schedules than `explore` was allowed to try."""


class Kernbench:
    """Value of the fixture `kernbench`."""

    def __init__(self) -> None:
        self._contexts: Final[list[RuntimeContext]] = []
        self._spans: Final[list[str]] = []
        self._began: Final = time.perf_counter()

    def context(self, machine: str | Path | None = None, **fields: Any) -> RuntimeContext:
        """Returns a context on a fresh machine.

        Args:
            machine: A topology file, or the name of a shipped machine; by default `sip8`. The field
                of `RunSpec` is called `topology`, which is taken, too.
            fields: Further fields of `RunSpec`, such as `data=False`, `seed=3` or
                `overrides=["system.sips.count=4"]`.

        Raises:
            UsageError: If there is no such machine, or a field cannot be used.
        """
        __tracebackhide__ = True
        given = fields if machine is None else {"machine": machine, **fields}
        return self.context_of(spec_of_arguments("kernbench.context", given))

    def context_of(
        self, spec: RunSpec, schedule: Schedule | None = None, splits: Splits | None = None
    ) -> RuntimeContext:
        """Returns a context of a run specification, on a fresh machine.

        Args:
            schedule: Schedule with the picks of `spec`; notes the matches of receives from any
                source. None: the context makes one if it needs one.
            splits: See `RuntimeContext`.

        Raises:
            UsageError: If the machine cannot be made.
        """
        __tracebackhide__ = True
        try:
            ctx = RuntimeContext(spec, schedule=schedule, splits=splits)
        except UsageError as error:
            # The mistake is in the test, so the frames below the test would not help.
            raise error.with_traceback(None) from None
        self._contexts.append(ctx)
        return ctx

    def spawn(
        self,
        worker: Callable[..., object],
        *,
        nprocs: int = 8,
        args: tuple[Any, ...] = (),
        **fields: Any,
    ) -> RuntimeContext:
        """Calls `worker(rank, *args)` once for each rank of a fresh machine.

        With `collapse="exact"`, it calls the worker of one rank of each class, anew on a fresh
        machine whenever classes are split.

        Args:
            worker: Function that runs as each rank.
            args: Arguments of the worker after the rank.
            fields: Fields of `RunSpec`, such as `data=False`, and `machine="h200x8"` as in
                `context`.

        Returns:
            The context, for a look at its state after the run.

        Raises:
            UsageError: If there is no such machine, or a field cannot be used.
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        spec = spec_of_arguments("kernbench.spawn", fields, ("args", "nprocs"))

        def attempt(splits: Splits) -> RuntimeContext:
            __tracebackhide__ = True
            with self.context_of(spec, splits=splits) as ctx:
                ctx.multiprocessing.spawn(worker, args=args, nprocs=nprocs)
            return ctx

        ctx = until_stable(attempt)
        self._spans.extend(open_spans(ctx))
        return ctx

    def torchrun_spawn(self, worker: Callable[..., Any], **arguments: Any) -> Torchrun:
        """Calls a worker of the real PyTorch in each rank, as `kernbench.torchrun_spawn` does.

        Args:
            worker: Function that runs as each rank.
            arguments: Those of `kernbench.torchrun_spawn`, such as `nprocs=4` and `args=(3,)`.

        Returns:
            The context, what each rank has returned, and the summary of the run.

        Raises:
            UsageError: As of `kernbench.torchrun_spawn`.
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        outcome = torchrun_spawn(worker, **arguments)
        self._contexts.append(outcome.context)
        return outcome

    def explore(
        self,
        worker: Callable[..., object],
        *,
        nprocs: int = 8,
        args: tuple[Any, ...] = (),
        schedules: int = 10,
        **fields: Any,
    ) -> Explored:
        """Runs a worker as `spawn` does, again and again, with other matches of messages.

        Args:
            worker: Function that runs as each rank.
            args: Arguments of the worker after the rank; the same objects in each run.
            schedules: Most schedules to try, at least 2, see `kernbench run --explore`. If the
                program has more, an `UnexploredWarning` says so.
            fields: Fields of `RunSpec` as in `spawn`, without `schedule`.

        Returns:
            The number of schedules that were tried, and whether these are all.

        Raises:
            UsageError: If there is no such machine, or a field or `schedules` cannot be used.
            ScheduleError: If the values that hosts read, or the ways in which ranks end, depend on
                which message a receive from any source takes (P8).
            SpawnException: If a rank failed in the first run, which takes messages as they come.
        """
        __tracebackhide__ = True

        beside = ("args", "nprocs", "schedules")
        spec = spec_of_arguments("kernbench.explore", fields, beside)
        if spec.schedule is not None:
            raise UsageError(
                f"explore(schedule={spec.schedule}): expected none, as it tries many",
                hint="spawn(..., schedule=...) runs a single one",
            )

        def attempt(schedule: Schedule) -> None:
            __tracebackhide__ = True
            with self.context_of(replace(spec, schedule=schedule.picks), schedule) as ctx:
                ctx.multiprocessing.spawn(worker, args=args, nprocs=nprocs)

        tried = explore(attempt, schedules, _again, "explore(schedules=)")
        if not tried.complete:
            warnings.warn(
                f"{tried.number} schedules were tried, which agree; more are left: raise "
                f"explore(..., schedules={schedules})",
                UnexploredWarning,
                stacklevel=2,
            )
        return tried

    @property
    def contexts(self) -> tuple[RuntimeContext, ...]:
        """The contexts that the test has made, in their order."""
        return tuple(self._contexts)

    def measures(self) -> dict[str, float]:
        """Returns what was simulated up to now, as the properties of a test have it."""
        sim_ps = sum(ctx.main.host.clock for ctx in self._contexts)
        return {
            SIMULATED: sim_ps / 10**12,
            WALL: time.perf_counter() - self._began,
            WORLDS: len(self._contexts),
        }

    def check_nothing_left(self) -> None:
        """Checks that no task, wait, collective, queued event or open range outlives the runs.

        Raises:
            LeftoverError: If something does; the error lists it.
        """
        contexts = list(self._contexts)
        self._contexts.clear()
        left = [line for ctx in contexts for line in leftovers(ctx)] + self._spans
        self._spans.clear()
        if left:
            # Runs of one worker leave the same.
            raise LeftoverError("left behind after the test: " + "; ".join(dict.fromkeys(left)))


def _again(name: str) -> str:
    """Returns a hint how a test runs the schedule of a given name again."""
    picks = ", ".join(name.split("."))
    return f"kernbench.spawn(..., schedule=[{picks}])"
