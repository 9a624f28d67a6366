"""A sweep: its runs, who runs them, and the files that it leaves."""

import json as json_format
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from kernbench.errors import UsageError
from kernbench.report.files import check_apart, check_writable
from kernbench.run_spec import RunSpec
from kernbench.scripts.plain import check_plain
from kernbench.sweeps import grid
from kernbench.sweeps.documents import read_document, write_document
from kernbench.sweeps.drawing import Plot, plot_of
from kernbench.sweeps.executors import Executor, Where, executor_of
from kernbench.sweeps.journal import SUFFIX, Journal
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.tables import write_csv


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files that a sweep leaves.

    Attributes:
        json: File for the records; None for no file.
        csv: File for their rows; None for no file.
        plot: The picture; None for no file.
        report: File for a page that shows them; None for no file.
    """

    json: Path | None = None
    csv: Path | None = None
    plot: Plot | None = None
    report: Path | None = None

    @property
    def given(self) -> list[Path]:
        """The files that there are, but for the journal."""
        picture = None if self.plot is None else self.plot.path
        return [path for path in (self.json, self.csv, picture, self.report) if path is not None]

    @property
    def journal(self) -> Path | None:
        """The file in which records are kept until the end; None if there is no file."""
        output = next(iter(self.given), None)
        return None if output is None else output.with_name(output.name + SUFFIX)

    def check(self) -> None:
        """Finds out whether all files can be written.

        Raises:
            UsageError: If one cannot be written (F15), two are the same, or nothing can draw the
                picture.
        """
        given = self.given
        check_apart(given)
        for path in given:
            check_writable(path)
        if self.journal is not None:  # its name is made of one that can be written
            check_writable(self.journal)
        if self.plot is not None:
            self.plot.check()


class Sweep:
    """The runs of a sweep, of which some may have taken place.

    Args:
        runs: All runs, in the order of the files.
        files: The files that the sweep leaves.
        resume: Whether records that are there already count.

    Raises:
        UsageError: If a run cannot take place, a file cannot be written, or records are there that
            this sweep does not continue.

    Attributes:
        runs: The same.
        done: How many runs have a record.
        failed: How many of them have failed.
    """

    def __init__(
        self, runs: Sequence[Run], files: Files | None = None, *, resume: bool = False
    ) -> None:
        self.runs = runs
        self._files = files or Files()
        grid.check(runs)
        self._files.check()
        self._journal = self._opened(resume)
        self.done = len(self._journal)
        self.failed = sum(not self._journal.values(key)["ok"] for key in self._journal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._journal.close()

    def run(self, executor: Executor) -> Generator[Record, None, None]:
        """Runs what has no record yet, and yields each record once it is kept.

        Args:
            executor: Runs the runs.

        Raises:
            UsageError: If a record cannot be written (F15).
            WorkerError: If no process can be started.
        """
        left = (run for run in self.runs if run.key not in self._journal)
        with closing(executor(left)) as records:
            for record in records:
                self._journal.add(record)
                self.done += 1
                self.failed += not record.ok
                yield record

    def records(self) -> Iterator[Record]:
        """Yields the records of all runs, in the order of the runs."""
        for run in self.runs:
            # What varies is named by this sweep, not by the one that has left the record.
            yield Record.from_json(self._journal.values(run.key), run)

    def finish(self) -> None:
        """Writes the files and removes the journal; all runs must have a record.

        Raises:
            UsageError: If a file cannot be written (F15), or the picture cannot be drawn; the
                journal then stays.
        """
        self._journal.sync()
        if self._files.csv is not None:
            write_csv(self._files.csv, self.records)
        if self._files.report is not None:
            self._write_page(self._files.report)
        if self._files.json is not None:
            write_document(self._files.json, self.records(), len(self.runs))
        if self._files.plot is not None:
            self._files.plot.write(self.records)
        self._journal.remove()

    def _write_page(self, path: Path) -> None:
        from kernbench.pages import write_sweep_page

        names = dict.fromkeys(run.spec.name for run in self.runs)
        plain = [record.to_json() for record in self.records()]
        write_sweep_page(path, plain, f"kernbench sweep {', '.join(names)}")

    def _opened(self, resume: bool) -> Journal:
        path = self._files.journal
        if path is None:
            if resume:
                raise UsageError("--resume goes on from a file", hint="name it with --json FILE")
            return Journal(None)
        journal = Journal(path, self._finished if resume else tuple)
        try:
            if len(journal) and not resume:
                raise UsageError(
                    f"{path} holds {len(journal)} records of a sweep that was interrupted",
                    hint="go on with it with --resume, or remove the file",
                )
            self._check_own(path, [journal.values(key) for key in journal])
        except BaseException:
            journal.close()
            raise
        return journal

    def _finished(self) -> list[dict[str, Any]]:
        """Returns the records of the finished sweep that this one continues, as plain values."""
        json, table = self._files.json, next(iter(self._files.given), None)
        if json is not None and json.exists():
            found = [record.to_json() for record in read_document(json)]
            self._check_own(json, found)
            return found
        if json is None and table is not None and table.exists():
            raise UsageError(
                f"{table} is finished, and holds no records to go on from",
                hint="leave --resume out to run all anew; --json keeps records",
            )
        return []

    def _check_own(self, path: Path, records: Sequence[Mapping[str, Any]]) -> None:
        """Checks that records belong to runs of this sweep, so that none is lost at its end."""
        keys = {run.key for run in self.runs}
        others = [values for values in records if values["key"] not in keys]
        if not others:
            return
        spec = RunSpec.from_json(others[0]["spec"])
        if any(run.spec == spec for run in self.runs):
            why = "the bench, a file that it names, or kernbench has changed since"
        elif any(replace(run.spec, record=spec.record) == spec for run in self.runs):
            why = "one of the two sweeps has --report, and so keeps more of each run"
        else:
            why = f"such as that of {spec.command()}"
        raise UsageError(
            f"{path} holds {len(others)} records of runs that this sweep does not have",
            [why],
            hint="resume with the same options, or choose another output file",
        )


def sweep(
    bench: str | PathLike[str] | None = None,
    *,
    set: Mapping[str, Iterable[object]] | None = None,
    arg: Mapping[str, Iterable[object]] | None = None,
    machine: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    ccl: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    specs: Iterable[RunSpec] | None = None,
    jobs: int | None = None,
    timeout_s: float | None = None,
    on: Where = "local",
    address: str | None = None,
    json: str | PathLike[str] | None = None,
    csv: str | PathLike[str] | None = None,
    plot: str | PathLike[str] | None = None,
    x: str | None = None,
    y: str | None = None,
    hue: str | None = None,
    report: str | PathLike[str] | None = None,
    resume: bool = False,
    executor: Executor | None = None,
    **fields: Any,
) -> list[Record]:
    """Runs a bench over a grid of machines, settings and flags, in processes of their own.

    The grid varies machines, then algorithms' files, then `set`, then `arg`, each in its order; the
    last one varies fastest. A run that fails, ends its process, or takes too long is a record.

    Args:
        bench: A Python file, or the name of a shipped bench; None with `specs`.
        set: Values by key of the YAML files, such as `{"system.sips.count": [2, 4, 8]}`.
        arg: Values by flag of the bench, such as `{"--dtype": ["float32", "bfloat16"]}`.
        machine: A topology file, or the name of a shipped machine; several are varied.
        ccl: A file of algorithms; several are varied.
        specs: Specifications of all runs, in place of a bench and its grid.
        jobs: Number of processes; None for one, or on Ray for as many as it has CPUs.
        timeout_s: Seconds of wall time that a run may take; None for any.
        on: Where runs take place: `local` or `ray`.
        address: Of a cluster of Ray, see `on_ray.OnRay`; None to start Ray on this machine.
        json: File for the records; None for no file.
        csv: File for their rows; None for no file.
        plot: File for a picture, see `drawing.Plot`; None for no file.
        x: Column of its horizontal axis; None for the usual one.
        y: Column of its vertical axis; None for the usual one.
        hue: Column whose values each have a line in it; None for the usual ones.
        report: File for a page that shows them (.html); None for no file.
        resume: Whether records in the files, or in the journal beside them, count as done.
        executor: What runs the runs, in place of `jobs` processes of this machine.
        fields: Further fields of `RunSpec` for all runs, such as `data=False`.

    Returns:
        The records, in the order of the grid.

    Raises:
        UsageError: If an argument cannot be used, the grid is empty or has more than 10^6 runs, or
            a file cannot be written, or Ray cannot be reached.
        WorkerError: If no process can be started.
    """
    __tracebackhide__ = True
    if callable(bench):
        raise UsageError(
            "kernbench.sweep takes the file of a bench: runs take place in processes of their own",
            hint="write the function into a file, as `def run(ctx)`, and give the file",
        )
    executor = executor or executor_of(on, address, jobs, timeout_s)
    if specs is not None:
        if bench is not None or set or arg or machine is not None or ccl is not None or fields:
            raise UsageError("kernbench.sweep(specs=) says what runs, so nothing else may say it")
        runs = grid.runs_of(specs)
    elif bench is None:
        raise UsageError("kernbench.sweep takes a bench, or specs=")
    else:
        if "topology" in fields:
            raise UsageError("kernbench.sweep takes machines as machine=, not as topology=")
        base = RunSpec.from_fields({"bench": bench, **fields})
        runs = grid.grid(base, _axes(machine, ccl, set or {}, arg or {}))
    files = Files(
        json=_path(json),
        csv=_path(csv),
        plot=plot_of(_path(plot), x, y, hue),
        report=_path(report),
    )
    if report is not None:
        runs = grid.with_breakdowns(runs)
    with Sweep(runs, files, resume=resume) as whole:
        for _ in whole.run(executor):
            pass
        whole.finish()
        return list(whole.records())


def _path(file: str | PathLike[str] | None) -> Path | None:
    try:
        return None if file is None else Path(file)
    except TypeError:
        raise UsageError(f"expected the path of a file, got {file!r}") from None


def _axes(
    machine: Any,
    ccl: Any,
    set_: Mapping[str, Iterable[object]],
    arg: Mapping[str, Iterable[object]],
) -> list[grid.Axis]:
    """Returns what keyword arguments vary."""
    given: list[tuple[grid.Kind, str, str, Any]] = []
    if machine is not None:
        given.append(("topology", "topology", f"machine={machine!r}", machine))
    if ccl is not None:
        given.append(("ccl", "ccl", f"ccl={ccl!r}", ccl))
    of_keys: list[tuple[grid.Kind, Any]] = [("set", set_), ("arg", arg)]
    for kind, values in of_keys:
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise UsageError(f"{kind}: expected a mapping of texts to values, got {values!r}")
        given += [(kind, key, f"{kind}={{{key!r}: ...}}", each) for key, each in values.items()]
    return [grid.axis(kind, name, _texts(each, said), said) for kind, name, said, each in given]


def _texts(values: Any, said: str) -> list[str]:
    """Returns one or several values as the texts that an option would have."""
    alone = isinstance(values, str | PathLike) or not isinstance(values, Iterable)
    return [_text(value, said) for value in ([values] if alone else values)]


def _text(value: object, said: str) -> str:
    if isinstance(value, PathLike):
        return str(value)
    check_plain(value, said)
    return value if isinstance(value, str) else json_format.dumps(value)
