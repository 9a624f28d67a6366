"""`kernbench run`: files in, a bench run, results out, an exit code."""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernbench.ccl.config import check_default, local_file_notice
from kernbench.cli import leaving, loading, ownership
from kernbench.cli.failures import end_at_terminate, end_process, failed
from kernbench.cli.hash_seeds import Listener, try_seeds
from kernbench.cli.output import SILENT, TRACE_LIMIT, Output
from kernbench.cli.page import write_page, write_page_of_failure
from kernbench.cli.prints import Prints, kept
from kernbench.cli.status_line import StatusLine, shown
from kernbench.cli.steps_ahead import steps_ahead
from kernbench.cli.verdicts import idle_line
from kernbench.errors import KernbenchError, UsageError, libraries_passed_over
from kernbench.ranks import watchdog
from kernbench.ranks.exploring import Explored, ScheduleError
from kernbench.ranks.exploring import explore as explore_schedules
from kernbench.ranks.hash_seeds import HashSeedError
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.spawn_errors import SpawnInterrupted
from kernbench.report import (
    breakdown,
    check_apart,
    check_writable,
    explanation,
    explanation_lines,
    load_rows,
    make_folder,
    print_breakdown,
    print_loads,
    replacing,
    write_kineto_files,
    write_trace,
)
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.engines import load_machine
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scripts import program
from kernbench.scripts.failures import failure_of, repeated
from kernbench.scripts.pytorch import made_up_lines, race_lines, run_lines, timed_by_bytes
from kernbench.scripts.running import Outcome, head_of, run_once
from kernbench.sim_engine.op_log import OpLog
from kernbench.units import format_time


def run_bench(
    spec: RunSpec,
    output: Output,
    explore: int = 0,
    hash_seeds: int = 0,
    listener: Listener | None = None,
) -> int:
    """Runs a bench and returns the exit code of the process.

    Args:
        output: What to show and write.
        explore: Most schedules to try, at least 2; 0 to run only the schedule of `spec`.
        hash_seeds: Number of hash seeds of Python to try, at least 2, each in a process of its own;
            0 to run with that of this process.
        listener: Notes what the run does, in the process of one hash seed; None elsewhere.
    """
    tries = Tries(explore, hash_seeds, listener)
    try:
        spec.command()
    except UsageError as error:
        return failed(error)
    if ownership.owned():
        watchdog.last_resort = end_process
        program.keep_main = leaving.keep
        end_at_terminate()
    try:
        with libraries_passed_over(spec.bench) if spec.pytorch is not None else nullcontext():
            try:
                return _run(spec, output, tries)
            except BaseException as error:
                spec = repeated(spec, error)
                return failed(error, spec.command(*_more(spec, tries)))
    finally:
        watchdog.last_resort = program.keep_main = None


class Tries(NamedTuple):
    """How often a bench runs, and for whom; see `run_bench`."""

    explore: int = 0
    hash_seeds: int = 0
    listener: Listener | None = None


def _run(spec: RunSpec, output: Output, tries: Tries) -> int:
    explore, hash_seeds, listener = tries
    if output.quiet and output.verbose:
        raise UsageError("--quiet and --verbose: expected one of them")
    if explore and spec.schedule is not None:
        raise UsageError("--explore and --schedule: expected one of them")
    if hash_seeds == 1:
        raise UsageError("--hash-seeds takes 2 seeds or more")
    if hash_seeds and explore:
        raise UsageError("--hash-seeds and --explore: expected one of them")
    if not output.quiet and listener is None and (notice := local_file_notice([spec.ccl])):
        print(f"kernbench: {notice}", file=sys.stderr)
    file = None if spec.ccl is None else Path(spec.ccl)
    check_default(file, spec.ccl_overrides, load_machine(spec).machine.system)
    if output.trace_kineto is not None and spec.fidelity == "functional":
        raise UsageError(
            "--trace-kineto needs simulated time, which --fidelity functional does not have",
            hint="run with --fidelity kernel",
        )
    if output.trace_ranks is not None and output.trace is None:
        raise UsageError("--trace-ranks without --trace", hint="add --trace FILE")
    if output.trace_limit != TRACE_LIMIT and not output.needs_records:
        raise UsageError(
            "--trace-limit without what it limits",
            hint="add --trace FILE, --trace-kineto FOLDER, --report FILE, --breakdown or "
            "--explain-time",
        )
    check_apart(output.written)
    for path in (output.trace, output.report, output.json):
        if path is not None:
            check_writable(path)
    if output.flight_recorder is not None:
        _check_flight_recorder(output.flight_recorder, spec)
    if output.trace_kineto is not None:
        make_folder(output.trace_kineto)
    if output.needs_records:
        spec = replace(spec, record="full")
    if explore:
        return _explore(spec, output, tries)
    if hash_seeds and listener is None:
        with _failure_in(spec, output, tries, HashSeedError):
            return try_seeds(spec, output, hash_seeds, spec.command())
    return _attempt(spec, output, tries)


def _check_flight_recorder(path: Path, spec: RunSpec) -> None:
    """Checks that what ranks did last can be written; a program of PyTorch has a folder for it."""
    if spec.pytorch is None:
        check_writable(path)
        return
    if spec.pytorch.same_ranks:
        raise UsageError(
            "--flight-recorder and --same-ranks: ranks that repeat another one call nothing of "
            "PyTorch, so that its analyser would miss them",
            hint="run without --same-ranks",
        )
    if path.suffix and not path.is_dir():
        raise UsageError(
            f"--flight-recorder {path}: expected a folder, which takes a file for each rank",
            hint=f"--flight-recorder {path.with_suffix('')}; JSON is what `kernbench run` writes",
        )
    make_folder(path)


@contextmanager
def _failure_in(
    spec: RunSpec, output: Output, tries: Tries, kind: type[KernbenchError]
) -> Iterator[None]:
    """Writes the JSON file of a failure that several runs have shown together."""
    try:
        yield
    except kind as error:
        if output.json is not None:
            document = {**head_of(spec), "failure": _failure(spec, tries, error)}
            _write_of_failure(output.json, document, "the failure")
        if output.report is not None:
            document = {**head_of(spec), "failure": _failure(spec, tries, error)}
            write_page_of_failure(output.report, document, error)
        raise


def _explore(spec: RunSpec, output: Output, tries: Tries) -> int:
    """Runs a bench under several schedules; only the first run prints and writes files."""
    status: list[int] = []

    def attempt(schedule: Schedule) -> int:
        tried = replace(spec, schedule=schedule.picks)
        if schedule.late:
            program.keep_main = None  # what the first run has is enough to keep
            with redirect_stdout(io.StringIO()):
                return _attempt(tried, SILENT, tries, schedule)
        status.append(_attempt(tried, output, tries, schedule))
        return status[0]

    with _failure_in(spec, output, tries, ScheduleError):
        explored = explore_schedules(attempt, tries.explore, "--schedule {}".format, "--explore")
    if not output.quiet:
        print(f"kernbench: schedules: {_tried(explored)}", file=sys.stderr)
    return status[0]


def _tried(tried: Explored) -> str:
    if not tried.complete:
        return f"{tried.number} tried, which agree; more are left: raise --explore {tried.number}"
    if tried.number == 1:
        return "one schedule, as no receive is from any source"
    return f"all {tried.number} agree"


def _attempt(spec: RunSpec, output: Output, tries: Tries, schedule: Schedule | None = None) -> int:
    """Runs a bench once, on a fresh machine.

    Args:
        output: What to show and write.
        tries: Of which tries this run is one.
        schedule: Notes the matches and reads of this run; None if no other schedule is tried.
    """
    listener = tries.listener
    if spec.pytorch is None:  # nothing is left to load but the file, which may be a user's module
        loading.settle()
    line = None
    if sys.stderr.isatty() and not output.quiet:
        line = StatusLine(steps=steps_ahead(spec.bench or "", spec.arguments))

    def ready(ctx: RuntimeContext) -> None:
        if line is not None:
            line.context = ctx
        ctx.engine.op_log.limit = output.trace_limit or None
        if spec.pytorch is not None:
            ctx.flight_folder = output.flight_recorder
        if output.verbose:
            ctx.on_choice = _print_choice
        loading.settle()

    with (
        nullcontext() if line is None else shown(line.text),
        nullcontext() if output.report is None else kept() as prints,
    ):
        outcome = run_once(
            spec,
            quiet=output.quiet,
            progress=None if line is None else line.track,
            schedule=schedule if listener is None else listener.schedule,
            calls=None if listener is None else listener.calls,
            ready=ready,
        )
    try:
        if outcome.error is not None:
            _tell_failure(outcome, output, tries, prints)
            raise outcome.error
    finally:
        # Also after a failure, which is when users want a timeline most.
        if outcome.context is not None:
            _write_traces(outcome.context, output)
            _tell_dropped(outcome.context.engine.op_log)
    if listener is not None:
        listener.returned(outcome.status)
    assert outcome.context is not None
    _write_results(outcome, outcome.context, output, prints)
    if not output.quiet:
        _tell_of_run(outcome.context, output)
    _print_times(outcome.context, output)
    return outcome.exit_code


def _write_results(
    outcome: Outcome, ctx: RuntimeContext, output: Output, prints: Prints | None
) -> None:
    """Writes the files about a run that has not failed."""
    if output.json is not None:
        _write_json(output.json, outcome.document)
    if output.report is not None:
        write_page(output.report, outcome.document, ctx, prints=prints)


def _tell_of_run(ctx: RuntimeContext, output: Output) -> None:
    """Says what a run has been, for which nobody has asked."""
    if ctx.spec.pytorch is not None:
        print("\n".join(run_lines(ctx)))
        if sys.stderr.isatty() and not output.explain_time and (said := _idle(ctx)):
            print(f"kernbench: {said}", file=sys.stderr)
    _tell_classes(ctx, output)
    if ctx.leaves_routing:
        said = f"--routing {ctx.spec.routing}: no layer of experts has asked for it"
        print(f"kernbench: {said}", file=sys.stderr)


def _print_times(ctx: RuntimeContext, output: Output) -> None:
    """Prints the tables of times that are asked for."""
    engine = ctx.engine
    if output.breakdown and not engine.timed:
        print("simulated time per rank: N/A (fidelity functional)")
    elif output.breakdown:
        rows = breakdown(engine.op_log, engine.dispatch_ps)
        from rich.console import Console  # rich takes longer to import than most of the package

        console = Console(width=None if sys.stdout.isatty() else 130)
        print_breakdown(rows, console)
        if loads := load_rows(engine.op_log):
            print_loads(loads, console)
        _tell_partial(engine.op_log)
    if output.explain_time and not engine.timed:
        print("what bounds the run: N/A (fidelity functional)")
    elif output.explain_time:
        told = explanation(
            engine.op_log, engine.topology, engine.dispatch_ps, by_bytes=timed_by_bytes(ctx)
        )
        print("\n".join(explanation_lines(told)))
        _tell_partial(engine.op_log)


def _tell_classes(ctx: RuntimeContext, output: Output) -> None:
    """Says how many classes ranks were simulated in; with `--verbose` which."""
    for reason in ctx.splits.reasons if output.verbose else ():
        print(f"kernbench: split from {reason}", file=sys.stderr)
    for partition in ctx.collapsed:
        print(f"kernbench: {partition}", file=sys.stderr)
        for one in partition.classes if output.verbose else ():
            ranks = f"{one.size:,} rank{'s' if one.size > 1 else ''}"
            print(f"kernbench:   {one.name}: {ranks}, run by rank {one.member}", file=sys.stderr)


def _idle(ctx: RuntimeContext) -> str:
    if not ctx.engine.timed:
        return ""
    clocks = [process.host.clock for process in ctx.processes]
    return idle_line(ctx.engine.op_log.totals, max([ctx.engine.loop.now, *clocks]))


def _tell_failure(outcome: Outcome, output: Output, tries: Tries, prints: Prints | None) -> None:
    """Writes the files about a failure of a program, and tells who listens."""
    error, context = outcome.error, outcome.context
    if context is None or not isinstance(error, Exception | KeyboardInterrupt):
        return
    for line in made_up_lines(context) + race_lines(context):
        print(f"kernbench: {line}", file=sys.stderr)
    if tries.listener is not None and isinstance(error, Exception):
        tries.listener.failed(error)
    if output.flight_recorder is not None and isinstance(error, _OF_RANKS):
        what, path = "what every rank did last", output.flight_recorder
        if outcome.spec.pytorch is not None:  # the bridge has written it
            reader = "python -m torch.distributed.flight_recorder.fr_trace"
            print(f"kernbench: {what} is in {path}; {reader} {path}", file=sys.stderr)
        else:
            _write_of_failure(path, context.flight_record(), what)
    if output.json is not None:
        document = {**outcome.document, "failure": _failure(outcome.spec, tries, error)}
        _write_of_failure(output.json, document, "the failure")
    if output.report is not None:
        document = {**outcome.document, "failure": _failure(outcome.spec, tries, error)}
        write_page_of_failure(output.report, document, error, context, prints)


def _write_traces(ctx: RuntimeContext, output: Output) -> None:
    log, topology, dispatch_ps = ctx.engine.op_log, ctx.engine.topology, ctx.engine.dispatch_ps
    sips = dict(enumerate(ctx.devices))
    if output.trace is not None:
        ranks = output.trace_ranks
        write_trace(log, topology, output.trace, dispatch_ps=dispatch_ps, sips=sips, ranks=ranks)
        _tell_missing(ctx, ranks or ())
    if output.trace_kineto is not None:
        folder = output.trace_kineto
        written = write_kineto_files(log, topology, folder, dispatch_ps=dispatch_ps, sips=sips)
        names = {path.name for path in written}
        others = [path.name for path in folder.iterdir() if path.suffix in {".json", ".gz"}]
        if strange := sorted(set(others) - names):
            print(
                f"kernbench: tools that read {folder} will also read {', '.join(strange)}, which "
                "this run did not write",
                file=sys.stderr,
            )


def _tell_missing(ctx: RuntimeContext, ranks: Sequence[int]) -> None:
    """Says which ranks a trace was to show that have done nothing, or did not run."""
    for rank in sorted(set(ranks) - {record.rank for record in ctx.engine.op_log.records}):
        there = rank < len(ctx.processes)
        why = "it issued nothing" if there else f"the run has {len(ctx.processes)} ranks"
        for partition in ctx.collapsed:
            if rank < partition.ranks:
                member = partition.class_of(rank).member
                why = f"rank {member} ran for it; with --witnesses {rank} it runs, too"
        print(f"kernbench: the trace does not show rank {rank}: {why}", file=sys.stderr)


def _tell_dropped(log: OpLog) -> None:
    if log.dropped:
        end = max(record.end for record in log.records)
        print(
            f"kernbench: the first {len(log.records)} records, up to {format_time(end)}, were "
            f"kept, and {log.dropped} later ones were not; --trace-limit sets the limit",
            file=sys.stderr,
        )


def _tell_partial(log: OpLog) -> None:
    """Says, where the table is read, that it does not count every record."""
    if log.dropped:
        kept = len(log.records)
        print(
            f"partial: the table counts the first {kept} records of {kept + log.dropped}; "
            "--trace-limit 0 counts all"
        )


_OF_RANKS: Final = (SpawnException, SpawnInterrupted)


def _more(spec: RunSpec, tries: Tries) -> list[str]:
    """Returns the further options of the command that repeats a run."""
    more = []
    if tries.explore and spec.schedule is None:
        more += ["--explore", str(tries.explore)]
    if tries.hash_seeds:
        more += ["--hash-seeds", str(tries.hash_seeds)]
    return more


def _failure(spec: RunSpec, tries: Tries, error: BaseException) -> dict[str, Any]:
    return failure_of(error, spec, *_more(repeated(spec, error), tries))


def _print_choice(line: str) -> None:
    # Not to standard output, where tables are read by programs.
    print(line, file=sys.stderr)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with replacing(path) as file:
        json.dump(document, file, indent=2)
        file.write("\n")


def _write_of_failure(path: Path, document: dict[str, Any], what: str) -> None:
    """Writes a file about a failure and prints its path; an unwritable file hides no failure."""
    try:
        _write_json(path, document)
    except UsageError as error:
        print(f"kernbench: {error}", file=sys.stderr)
    else:
        print(f"kernbench: {what} is in {path}", file=sys.stderr)
