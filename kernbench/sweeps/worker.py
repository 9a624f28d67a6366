"""The process of a worker: runs what it is asked to, one run at a time."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kernbench.config.shipped import shipped
from kernbench.errors import KernbenchError, UsageError
from kernbench.ranks import watchdog
from kernbench.report import breakdown
from kernbench.run_spec import RunSpec
from kernbench.scripts.failures import ended_with, failure_of, replay, report, with_pointer
from kernbench.scripts.running import Outcome, find_bench, run_once
from kernbench.sweeps import printed


def run(message: Mapping[str, Any]) -> dict[str, Any]:
    """Runs what a request asks for; answers with the values of a `Record`.

    Args:
        message: The request: `spec`, a specification as plain values; and `printed`, the folder of
            the file for what the run prints.
    """
    spec = RunSpec.from_json(message["spec"])
    watchdog.last_resort = _end_process
    file = Path(message["printed"], str(os.getpid()))
    with printed.kept(file), _undone(spec):
        values = values_of(run_once(spec))
    if values["failure"] is not None:
        values["failure"]["output"] = printed.tail(file)
    return {"record": values}


HANDLERS: Final = {"run": run}


def values_of(outcome: Outcome) -> dict[str, Any]:
    """Returns what came of a run as values of a `Record`, without the run itself.

    Args:
        outcome: What came of it.
    """
    spec, context, error = outcome.spec, outcome.context, outcome.error
    rows = None
    if context is not None and spec.record == "full" and context.engine.timed:
        rows = [asdict(row) for row in breakdown(context.engine.op_log, context.engine.dispatch_ps)]
    failure, told = None, ""
    if error is not None:
        failure, told = failure_of(error, spec), report(error)
    elif outcome.exit_code:
        told = ended_with(outcome.exit_code)
        failure = {"class": "SystemExit", "code": "", "summary": told, "at": None}
        failure["replay"] = replay(spec)
    return {
        "ok": failure is None,
        "results": outcome.document.get("results", []),
        "sim_ps": outcome.sim_ps,
        "failure": failure,
        "report": told,
        "breakdown": rows,
    }


def _end_process(error: KernbenchError, interrupt: BaseException | None) -> None:
    """Ends the process, since code of the run goes on that nothing else can stop."""
    os.write(2, with_pointer(f"kernbench: {error}\n", error).encode(errors="replace"))
    os._exit(1)


@contextmanager
def _undone(spec: RunSpec) -> Iterator[None]:
    """Undoes at the end what a run has changed of its process, so that no run sees another."""
    folder, variables, path, argv = os.getcwd(), dict(os.environ), list(sys.path), list(sys.argv)
    modules = set(sys.modules)
    try:
        yield
    finally:
        os.chdir(folder)
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)
        sys.path[:], sys.argv[:] = path, argv
        for name in _of_the_bench(spec, modules):
            del sys.modules[name]


def _of_the_bench(spec: RunSpec, before: set[str]) -> list[str]:
    """Returns the modules that a run has imported from the folder of its bench, or from below."""
    try:
        folder = find_bench(spec.bench or "").resolve().parent
    except UsageError:
        return []
    found: list[str] = []
    if folder == shipped("benches").resolve():
        return found  # they keep nothing
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        ours = name.partition(".")[0] in {"kernbench", "benches"} or "site-packages" in file
        if file.endswith(".py") and not ours and folder in Path(file).resolve().parents:
            found.append(name)
    return found
