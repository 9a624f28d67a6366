"""What a worker process does for `world_batch`: it runs cases."""

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kernbench.errors import UsageError
from kernbench.testing.cases import CaseRequest, find_case
from kernbench.testing.result_files import ResultsFile
from kernbench.testing.results import CaseResult

_BASELINE: Final = dict(os.environ)
"""The environment with which the process has started."""

_as_torch: Final = ExitStack()
_imported: Final[set[tuple[str, str]]] = set()


def prepare() -> None:
    """Imports what every case needs, while the other process finds out what to ask."""
    on = gc.isenabled()
    gc.disable()  # nothing of it becomes garbage, and to look for that takes a tenth of the time
    try:
        from kernbench.testing import running  # noqa: F401
    finally:
        if on:
            gc.enable()


def run(message: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the case of a request; see `CaseRequest` and `CaseResult` for the values.

    A case whose module cannot be imported here has failed.

    Args:
        message: The values of the request.
    """
    from kernbench.testing.reports import report_of_import
    from kernbench.testing.running import run_case

    request = CaseRequest.from_json(message)
    printed = StringIO()
    with redirect_stdout(printed):
        try:
            if request.folder:
                os.chdir(request.folder)
            _import(request)
        except BaseException as error:  # a module may also skip, or exit
            told = report_of_import(request, error)
            result = CaseResult(nodeid=request.nodeid, ok=False, error=told)
        else:
            result = run_case(request, _BASELINE)
    return replace(result, output=printed.getvalue(), worker_pid=os.getpid()).to_json()


def record(message: Mapping[str, Any]) -> dict[str, Any]:
    """Does `run`, then writes the result to a file of results.

    Args:
        message: The values of the request, and `path`, the file.

    Raises:
        ResultsError: If the file is there, and cannot be read.
        OSError: If the file cannot be written.
    """
    answer = run(message)
    path = Path(message["path"])
    if path not in _files:
        _files.clear()
        _files[path] = ResultsFile(path)
    _files[path].add(CaseResult.from_json(answer))
    return answer


_files: Final[dict[Path, ResultsFile]] = {}
"""The file of the batch that is under way."""

HANDLERS: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "run": run,
    "record": record,
}


def stacks() -> str:
    """Returns where each rank of the case that runs now is."""
    from kernbench.testing import running

    return running.stacks()


def _import(request: CaseRequest) -> None:
    """Imports the module that registers a case, unless it has been imported."""
    if (request.module, request.file) in _imported:
        return
    if request.as_torch:
        from kernbench.scripts.as_torch import as_torch

        _as_torch.enter_context(as_torch())
    module = _import_as_pytest(request)
    case = find_case(request.case)
    if not _same(case.file, request.file):
        raise UsageError(
            f"case {request.case!r} is registered by another file in the worker process",
            [f"expected {request.file}, which is {module.__name__}", f"got {case.file}"],
        )
    _imported.add((request.module, request.file))


def _import_as_pytest(request: CaseRequest) -> ModuleType:
    """Imports the module of a case: by its name if that leads to its file, else by its file."""
    there = sys.modules.get(request.module)
    if there is not None and _same(getattr(there, "__file__", None) or "", request.file):
        return there
    spec: ModuleSpec | None = None
    if request.asserts is not None:
        from kernbench.testing.assertions import rewritten

        spec = rewritten(request.module, request.file, request.asserts)
    if spec is not None:
        return _execute(request, spec)
    named = None
    with suppress(ImportError, ValueError):
        named = importlib.util.find_spec(request.module)
    if named is not None and named.origin is not None and _same(named.origin, request.file):
        return importlib.import_module(request.module)
    spec = importlib.util.spec_from_file_location(request.module, request.file)
    if spec is None or spec.loader is None:
        raise UsageError(f"case {request.case!r}: {request.file} cannot be imported as a module")
    return _execute(request, spec)


def _execute(request: CaseRequest, spec: ModuleSpec) -> ModuleType:
    """Imports a file that may not be on the search path under its name, as pytest does."""
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[request.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[request.module]
        raise
    return module


def _same(path: str, other: str) -> bool:
    return Path(path).resolve() == Path(other).resolve()
