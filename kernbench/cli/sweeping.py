"""`kernbench sweep`: a grid in, files and a table out, an exit code."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Final

from kernbench.ccl.config import local_file_notice
from kernbench.cli import loading, ownership
from kernbench.cli.failures import Exit, end_at_terminate, failed
from kernbench.cli.program_command import Varied
from kernbench.cli.status_line import shown
from kernbench.config.problems import short
from kernbench.report.nccl_table import LINK_BOUND
from kernbench.run_spec import RunSpec
from kernbench.sweeps import grid
from kernbench.sweeps.executors import Executor
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import Files, Sweep
from kernbench.sweeps.tables import FIRST, LAST, rows_of
from kernbench.units import format_time


def run_sweep(
    what: RunSpec | Path,
    varied: Sequence[Varied],
    words: Sequence[str],
    *,
    executor: Executor,
    files: Files,
    resume: bool = False,
    quiet: bool = False,
) -> int:
    """Runs a sweep and returns the exit code of the process.

    Args:
        what: What all runs have in common, or the file of their specifications.
        varied: What a grid varies, in its order.
        words: The words behind `kernbench sweep`, for the command that goes on.
        executor: Runs the runs.
        files: The files that the sweep leaves.
        resume: Whether records that are there count as done.
        quiet: Whether to print errors only.
    """
    loading.settle()
    if ownership.owned():
        end_at_terminate()
    sweep: Sweep | None = None
    finished = False
    try:
        runs = grid.runs_of_file(what) if isinstance(what, Path) else _grid(what, varied)
        if not quiet and (notice := local_file_notice(run.spec.ccl for run in runs)):
            print(f"kernbench: {notice}", file=sys.stderr)
        if files.report is not None:
            runs = grid.with_breakdowns(runs)
        with Sweep(runs, files, resume=resume) as sweep:
            _run(sweep, executor, quiet)
            sweep.finish()
            finished = True
            if not quiet:
                print_table(sweep.records)
            return Exit.FAILED if sweep.failed else Exit.OK
    except BaseException as error:
        # Where the interrupt came is of no interest: each run is a process of its own.
        code = failed(error.with_traceback(None) if isinstance(error, KeyboardInterrupt) else error)
        if sweep is not None and sweep.done and not finished:
            print(_how_to_go_on(sweep, files, words), file=sys.stderr)
        return code


def _grid(base: RunSpec, varied: Sequence[Varied]) -> list[Run]:
    return grid.grid(base, [grid.axis_of(option, text) for option, text in varied])


def _run(sweep: Sweep, executor: Executor, quiet: bool) -> None:
    """Runs what is left, with a line on a terminal."""
    line = Line(sweep)
    on_terminal = sys.stderr.isatty() and not quiet
    with (
        shown(line.text) if on_terminal else nullcontext(),
        closing(sweep.run(executor)) as records,
    ):
        for _ in records:
            pass
    if not quiet:
        print(f"kernbench: {line.counts()}", file=sys.stderr)


def _how_to_go_on(sweep: Sweep, files: Files, words: Sequence[str]) -> str:
    done = f"kernbench: {sweep.done} of {len(sweep.runs)} runs are done"
    if files.journal is None:
        return f"{done}, and nothing keeps them; --json FILE does"
    again = [word for word in words if word != "--resume"]
    command = shlex.join(["kernbench", "sweep", "--resume", *again])
    return f"{done} and kept in {files.journal}; to go on: {command}"


class Line:
    """The line on a terminal that says how far a sweep is.

    Args:
        clock: Returns seconds of wall time.
    """

    def __init__(self, sweep: Sweep, clock: Callable[[], float] = time.monotonic) -> None:
        self._sweep: Final = sweep
        self._clock: Final = clock
        self._began: Final = clock()
        self._before: Final = sweep.done

    def counts(self) -> str:
        """Returns how many runs are done, and how many of them have failed."""
        sweep = self._sweep
        failed = f", {sweep.failed} failed" if sweep.failed else ""
        return f"{sweep.done} of {len(sweep.runs)} runs{failed}"

    def text(self) -> str:
        """Returns the line for this moment."""
        took = self._clock() - self._began
        text = f"{self.counts()}, {took:.0f} s"
        done, left = self._sweep.done - self._before, len(self._sweep.runs) - self._sweep.done
        return f"{text}, about {took / done * left:.0f} s left" if done else text


_ROWS: Final = 40
_METRICS: Final = 6
_WIDTH: Final = 72


def print_table(records: Callable[[], Iterable[Record]]) -> None:
    """Prints the first rows of a sweep: what varies, simulated time, and numbers that differ.

    Args:
        records: Returns the records, in the order of the runs.
    """
    rows: list[dict[str, Any]] = []
    varied: dict[str, None] = {}
    more = 0
    for record in records():
        varied |= dict.fromkeys(record.run.varied)
        for row in rows_of(record):
            if len(rows) < _ROWS:
                rows.append(row)
            else:
                more += 1
    columns = [*varied, "sim_ps", *_metrics(rows, {*varied, *FIRST, LINK_BOUND})]  # it is no result
    if any(LAST in row for row in rows):
        columns.append(LAST)
    titles = ["simulated" if name == "sim_ps" else name for name in columns]
    cells = [titles, *([_cell(name, row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
    if more:
        print(f"and {more} more rows; --csv FILE has all rows and columns")


def _metrics(rows: Sequence[dict[str, Any]], known: set[str]) -> list[str]:
    """Returns the first columns of numbers that are not the same in all rows."""
    found = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = {row[name] for row in rows if isinstance(row.get(name), int | float)}
        if name not in known and len(values) > 1:
            found.append(name)
    return found[:_METRICS]


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "sim_ps" and isinstance(value, int):
        return format_time(value)
    return f"{value:.6g}" if isinstance(value, float) else short(str(value), _WIDTH)
