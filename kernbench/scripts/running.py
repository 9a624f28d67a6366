"""One run, from its specification to what came of it."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernbench.classes.splits import Splits
from kernbench.config.near import did_you_mean
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.ranks import watchdog
from kernbench.ranks.hash_seeds import Calls
from kernbench.ranks.schedules import Schedule
from kernbench.report import load_rows
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import Progress, RuntimeContext
from kernbench.scripts.explaining import explain_names
from kernbench.scripts.plain import check_plain, is_plain
from kernbench.scripts.program import Program, program_of
from kernbench.scripts.pytorch import file_of_module


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        spec: Specification of the run.
        status: The exit code that the program has returned, or 0 if it ended with `sys.exit(0)`;
            None if it returned none, or failed.
        error: What it failed with, which may be a `SystemExit` or an interrupt; None if it did not.
        context: Its machine, with the log; None if the run failed before there was one.
    """

    spec: RunSpec
    status: int | None
    error: BaseException | None
    context: RuntimeContext | None

    @property
    def document(self) -> dict[str, Any]:
        """The run as `kernbench run --json` writes it; without results if there is no context."""
        head = head_of(self.spec)
        if self.context is None:
            return head
        loads = [asdict(row) for row in load_rows(self.context.engine.op_log)]
        told = {"sim_ps": self.sim_ps, "results": self.context.results}
        return {**head, **told, **({"moe": loads} if loads else {})}

    @property
    def exit_code(self) -> int:
        """The exit code that the program asks for; of a run that has not failed."""
        return self.status or 0

    @property
    def sim_ps(self) -> int:
        """Simulated time in picoseconds at the end, of the device or host that is foremost."""
        context = self.context
        if context is None:
            return 0
        clocks = [process.host.clock for process in (context.main, *context.processes)]
        return max([context.engine.loop.now, *clocks])


def run_once(
    spec: RunSpec,
    *,
    quiet: bool = False,
    progress: Progress | None = None,
    schedule: Schedule | None = None,
    calls: Calls | None = None,
    ready: Callable[[RuntimeContext], None] | None = None,
) -> Outcome:
    """Runs a program to its end on a fresh machine; what it raises is part of what is returned.

    A program that leaves results that JSON cannot hold has failed, with a `UsageError`. With
    `collapse`, it begins again when classes of its ranks are split; it prints what its last attempt
    does.

    Args:
        spec: Specification of the run, with a bench.
        quiet: Whether benches should print nothing.
        progress: See `RuntimeContext`.
        schedule: See `RuntimeContext`.
        calls: See `RuntimeContext`.
        ready: Called with the context before the program runs.
    """
    splits = Splits()

    def attempt() -> Outcome:
        return _attempt(spec, quiet, progress, schedule, calls, ready, splits)

    if spec.collapse == "off":
        return attempt()
    while True:
        with redirect_stdout(io.StringIO()) as printed:
            outcome = attempt()
        if outcome.error is None or not splits.grown():
            sys.stdout.write(printed.getvalue())
            return outcome


def _attempt(
    spec: RunSpec,
    quiet: bool,
    progress: Progress | None,
    schedule: Schedule | None,
    calls: Calls | None,
    ready: Callable[[RuntimeContext], None] | None,
    splits: Splits,
) -> Outcome:
    assert spec.bench is not None
    context = None
    status: int | None = None
    try:
        with (
            watchdog.over_main(spec.watchdog_s) as watch,
            program_of(spec, find_program(spec)) as program,
            RuntimeContext(
                spec,
                quiet=quiet,
                progress=progress,
                schedule=schedule,
                calls=calls,
                splits=splits,
            ) as context,
        ):
            watch.loop = context.engine.loop
            if ready is not None:
                ready(context)
            status = _to_its_end(program, context)
            check_plain(context.results, "ctx.results")
    except BaseException as error:
        if context is not None:
            # What was left before stays, as far as a document can hold it.
            context.results[:] = filter(is_plain, context.results)
        return Outcome(spec, None, error, context)
    return Outcome(spec, status, None, context)


def _to_its_end(program: Program, ctx: RuntimeContext) -> int | None:
    """Returns the status of a program, which may also end with `sys.exit(0)`."""
    try:
        return program(ctx)
    except SystemExit as stop:
        if stop.code:
            raise
        return 0
    except Exception as error:
        explain_names(error)
        raise


def head_of(spec: RunSpec) -> dict[str, Any]:
    """Returns the first values of every document of a run."""
    return {"kernbench": 1, "run": spec.name, "spec": spec.to_json()}


def find_program(spec: RunSpec) -> Path:
    """Returns the file of a specification's program.

    Args:
        spec: The specification, with a bench.

    Raises:
        UsageError: If there is no such file, shipped bench or module (F11).
    """
    assert spec.bench is not None
    if spec.pytorch is not None and spec.pytorch.as_module:
        return file_of_module(spec.bench)
    if spec.pytorch is not None and not Path(spec.bench).is_file():
        raise UsageError(
            f"there is no file {spec.bench}",
            hint="name the program's file as `python` takes it; -m for a module",
            code="F11",
        )
    return find_bench(spec.bench)


def find_bench(name: str) -> Path:
    """Returns the file of a bench.

    Args:
        name: A Python file, or the name of a shipped bench.

    Raises:
        UsageError: If there is no such file or shipped bench (F11).
    """
    path = Path(name)
    if path.is_file():
        return path
    folder = shipped("benches")
    stem = name.removesuffix(".py").removeprefix("benches/")
    candidate = folder / f"{stem}.py"
    if candidate.is_file():
        return candidate
    known = sorted(entry.stem for entry in folder.glob("*.py") if entry.stem != "__init__")
    what = "is a folder" if path.is_dir() else "does not exist"
    raise UsageError(
        f"bench {name} {what}",
        [f"expected a Python file, or one of {', '.join(known)}"],
        hint=did_you_mean(stem, known),
        code="F11",
    )
