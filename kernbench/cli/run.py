"""`kernbench run`: files in, a bench run, results out, an exit code."""

import importlib.util
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.progress import Progress

from kernbench import cli
from kernbench.ccl.config import select
from kernbench.cli.failures import Exit, as_json, end_process, failed
from kernbench.cli.options import Options, command
from kernbench.config.near import did_you_mean
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.ranks import watchdog
from kernbench.ranks.exploring import Explored, ScheduleError, explore
from kernbench.ranks.schedules import Schedule
from kernbench.report import breakdown, check_writable, print_breakdown, replacing, write_trace
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyHandle, load_topology

T = TypeVar("T")

_ROOTS: Final = {"system": "topology", "defaults": "ccl", "algorithms": "ccl", "queues": "ccl"}


def run_bench(options: Options) -> int:
    """Runs a bench and returns the exit code of the process."""
    if cli.owns_process:
        watchdog.last_resort = end_process
    try:
        return _run(options)
    except BaseException as error:
        return failed(error, command(options, _schedule(options, error)))
    finally:
        watchdog.last_resort = None


def _run(options: Options) -> int:
    if options.quiet and options.verbose:
        raise UsageError("--quiet and --verbose: expected one of them")
    if options.explore == 1 or (options.explore and options.schedule is not None):
        raise UsageError("--explore takes 2 schedules or more, and not with --schedule")
    overrides = _split(options.overrides)
    handle = load_topology(options.topology, overrides["topology"])
    select(options.ccl, overrides["ccl"], handle.topology_obj.machine.system)
    for output in (options.trace, options.flight_recorder, options.json):
        if output is not None:
            check_writable(output)
    if options.explore:
        return _explore(options, handle, overrides["ccl"])
    schedule = None if options.schedule is None else Schedule(options.schedule)
    return _attempt(options, handle, overrides["ccl"], schedule)


def _explore(options: Options, handle: TopologyHandle, ccl: tuple[str, ...]) -> int:
    """Runs a bench under several schedules, of which only the first one leaves anything."""
    status: list[int] = []

    def attempt(schedule: Schedule) -> int:
        if schedule.late:
            silent = replace(options, **_NO_OUTPUT)
            with redirect_stdout(io.StringIO()):
                return _attempt(silent, handle, ccl, schedule)
        status.append(_attempt(options, handle, ccl, schedule))
        return status[0]

    try:
        tried = explore(attempt, options.explore, "--schedule {}".format)
    except ScheduleError as error:
        if options.json is not None:
            failure = _failure(options, error)
            document = {"kernbench": 1, "run": _name(options), "failure": failure}
            _write_of_failure(options.json, document, "the failure")
        raise
    if not options.quiet:
        print(f"kernbench: schedules: {_tried(tried)}", file=sys.stderr)
    return status[0]


def _tried(tried: Explored) -> str:
    if not tried.complete:
        return f"{tried.number} tried, which agree; more are left: raise --explore {tried.number}"
    if tried.number == 1:
        return "one schedule, as no receive is from any source"
    return f"all {tried.number} agree"


_NO_OUTPUT: Final[dict[str, Any]] = {
    "trace": None,
    "flight_recorder": None,
    "json": None,
    "breakdown": False,
    "quiet": True,
    "verbose": False,
}
"""Of a run that is only compared with the first one."""


def _name(options: Options) -> str:
    return Path(options.bench).stem


def _attempt(
    options: Options, handle: TopologyHandle, ccl: tuple[str, ...], schedule: Schedule | None
) -> int:
    """Runs a bench once, on a fresh machine."""
    module = load_bench(options.bench)
    engine = GraphEngine(
        handle.topology_obj,
        enable_data=options.data,
        fidelity=options.fidelity,
        record="full" if options.trace or options.breakdown else "summary",
    )
    with RuntimeContext(
        engine=engine,
        correlation_id=_name(options),
        seed=options.seed,
        argv=options.arguments,
        ccl_file=options.ccl,
        ccl_overrides=ccl,
        quiet=options.quiet,
        eager_limit=options.eager_limit,
        watchdog_s=options.watchdog,
        schedule=schedule,
        # A bar would be drawn over the lines of --verbose.
        progress=_progress
        if sys.stderr.isatty() and not options.quiet and not options.verbose
        else None,
    ) as ctx:
        if options.verbose:
            ctx.on_choice = _print_choice
        try:
            status = module.run(ctx)
        except Exception as error:
            if options.flight_recorder is not None and isinstance(error, SpawnException):
                record = ctx.flight_record()
                _write_of_failure(options.flight_recorder, record, "what every rank did last")
            if options.json is not None:
                document = {**_document(ctx), "failure": _failure(options, error)}
                _write_of_failure(options.json, document, "the failure")
            raise
        finally:
            # Also of a run that failed: that is when a timeline is wanted most.
            if options.trace is not None:
                dispatch_ps = engine.dispatch_ps
                write_trace(engine.op_log, engine.topology, options.trace, dispatch_ps=dispatch_ps)
    if options.json is not None:
        _write_json(options.json, _document(ctx))
    if options.breakdown and not engine.timed:
        print("simulated time per rank: N/A (fidelity functional)")
    elif options.breakdown:
        rows = breakdown(engine.op_log, engine.dispatch_ps)
        print_breakdown(rows, Console(width=None if sys.stdout.isatty() else 110))
    return status if type(status) is int else Exit.OK


def _schedule(options: Options, error: BaseException) -> str:
    """Returns the schedule that a run failed under."""
    if isinstance(error, SpawnException):
        return error.schedule
    return ".".join(map(str, options.schedule or (0,)))


def _failure(options: Options, error: BaseException) -> dict[str, Any]:
    schedule = _schedule(options, error)
    replay = {
        "command": command(options, schedule),
        "seed": options.seed,
        "schedule": schedule,
    }
    return {**as_json(error), "replay": replay}


def _print_choice(line: str) -> None:
    # Not to standard output, where tables are read by programs.
    print(line, file=sys.stderr)


def _document(ctx: RuntimeContext) -> dict[str, Any]:
    return {"kernbench": 1, "run": ctx.correlation_id, "results": ctx.results}


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with replacing(path) as file:
        json.dump(document, file, indent=2)
        file.write("\n")


def _write_of_failure(path: Path, document: dict[str, Any], what: str) -> None:
    """Writes something about a failure, and says where; a file that fails hides no other."""
    try:
        _write_json(path, document)
    except UsageError as error:
        print(f"kernbench: {error}", file=sys.stderr)
    else:
        print(f"kernbench: {what} is in {path}", file=sys.stderr)


def _progress(items: Sequence[T], description: str) -> Iterable[T]:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, description=description)


def _split(overrides: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Deals `--set` texts out to the file that has their first key."""
    dealt: dict[str, list[str]] = {"topology": [], "ccl": []}
    for text in overrides:
        key, equals, _ = text.partition("=")
        root = key.split(".")[0]
        if not equals or root not in _ROOTS:
            raise UsageError(
                f"--set {text}: expected dotted.field=value",
                [f"the field begins with one of {', '.join(_ROOTS)}"],
                hint=did_you_mean(root, list(_ROOTS)),
            )
        dealt[_ROOTS[root]].append(text)
    return {name: tuple(texts) for name, texts in dealt.items()}


def find_bench(name: str) -> Path:
    """Returns the file of a bench.

    Raises:
        UsageError: If there is none.
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
        [f"expected a Python file with run(ctx), or one of {', '.join(known)}"],
        hint=did_you_mean(stem, known),
        code="F11",
    )


def _outside_packages(folder: Path) -> Path:
    """Returns the folder that the outermost package around `folder` is in, or `folder` itself."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def load_bench(name: str) -> ModuleType:
    """Imports the file of a bench.

    Raises:
        UsageError: If it has no `run`.
    """
    path = find_bench(name).resolve()
    # What lies beside a bench can be imported by it, and the package that it is in; both before
    # anything else of the same name.
    for folder in (_outside_packages(path.parent), path.parent):
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"bench {name} is no Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        raise UsageError(
            f"{path} exits (with {stop.code!r}) while it is imported",
            hint="call sys.exit only in run(ctx), or under `if __name__ == '__main__':`",
        ) from stop
    entry: Callable[[Any], Any] | None = getattr(module, "run", None)
    if not callable(entry):
        raise UsageError(
            f"{path} has no run(ctx)",
            hint="write `def run(ctx): ctx.multiprocessing.spawn(worker, nprocs=...)`",
        )
    try:
        inspect.signature(entry).bind(None)
    except TypeError as error:
        raise UsageError(
            f"{path}: run{inspect.signature(entry)} cannot be called with a context: {error}",
            hint="write `def run(ctx)`; further arguments are in ctx.argv",
        ) from None
    return module
