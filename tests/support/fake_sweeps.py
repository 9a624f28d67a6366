"""Runs of sweeps without processes."""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from kernbench.run_spec import RunSpec
from kernbench.sweeps import grid
from kernbench.sweeps.records import Record, Run


def grid_of(folder: Path, values: Iterable[object] = range(4), **fields: Any) -> list[Run]:
    """Returns the runs of a bench in a folder, one for each value of the flag `-n`."""
    bench = folder / "bench.py"
    if not bench.exists():
        bench.write_text("def run(ctx): ctx.results.append({'n': ctx.argv[-1]})\n")
    axis = grid.axis("arg", "-n", map(str, values), "-n")
    return grid.grid(RunSpec(bench=str(bench), **fields), [axis])


def record_of(run: Run) -> Record:
    """Returns a record that follows from the run alone, but for the wall time."""
    number = run.varied["-n"]
    if number == "3":
        failure = {"class": "ValueError", "code": "", "summary": "it is three", "at": None}
        return Record(run=run, ok=False, failure=failure, report="ValueError: it is three")
    rows = [{"size": size, "time": {"us": size / 3}} for size in (1, 2)]
    return Record(run=run, ok=True, results=({"n": number, "rows": rows},), sim_ps=len(number))


class Executor:
    """Makes records at once, and notes which runs it was given.

    Args:
        backwards: Whether the last run ends first.
        most: After how many records it is interrupted.
    """

    def __init__(self, backwards: bool = False, most: int | None = None) -> None:
        self.given: list[str] = []
        self._backwards = backwards
        self._most = most

    def __call__(self, runs: Iterable[Run]) -> Generator[Record, None, None]:
        """See `Local`."""
        ordered = list(runs)[::-1] if self._backwards else runs
        for run in ordered:
            if self._most is not None and len(self.given) == self._most:
                raise KeyboardInterrupt
            self.given.append(run.varied["-n"])
            yield record_of(run)
