"""One run of a case in this process."""

import os
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kernbench.config import DeprecatedKeyWarning
from kernbench.errors import KernbenchError, is_ours
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.ranks.world import GroupLeakWarning
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing.cases import Case, CaseRequest, find_case, spec_of_case
from kernbench.testing.isolation import Isolation
from kernbench.testing.leaks import Memory, Watch, forget_ranks, open_spans, report_of_leaks
from kernbench.testing.reports import report_of
from kernbench.testing.results import CaseResult, Ending
from kernbench.testing.warned import put_filters, warned


def run_case(request: CaseRequest, baseline: Mapping[str, str] | None = None) -> CaseResult:
    """Runs a case on a fresh machine, and returns what came of it; raises nothing of the case's.

    A child process that the case forks, and that comes back here, ends: its parent answers.

    Args:
        baseline: The environment before the variables of the request; None for the present one.
    """
    began = time.perf_counter()
    here = os.getpid()
    try:
        case = find_case(request.case)
        spec = spec_of_case(
            case, request.machine, request.seed, request.max_time_ps, request.watchdog_s
        )
        result = _isolated(case, spec, request, baseline)
    except KernbenchError as error:
        if os.getpid() == here:
            result = CaseResult(nodeid=request.nodeid, ok=False, error=str(error))
    finally:
        if os.getpid() != here:
            os._exit(0)
    return replace(result, wall_s=time.perf_counter() - began, worker_pid=here)


def _isolated(
    case: Case, spec: RunSpec, request: CaseRequest, baseline: Mapping[str, str] | None
) -> CaseResult:
    """Runs a case, and looks what it has left behind."""
    looks = request.leaks != "off"
    watch = Watch() if looks else None
    with (
        Isolation(request, baseline) as isolation,
        warnings.catch_warnings(record=True) as messages,
    ):
        if request.filters is not None:
            put_filters(request.filters)
        # The watch tells of groups, with what else is left; whoever asks for the case has read
        # the file of its machine already.
        for told in (GroupLeakWarning, DeprecatedKeyWarning):
            warnings.simplefilter("ignore", told)
        result, memory, leaks = _run(case, spec, request, watch)
        if memory is not None:
            leaks += memory.held()
        if watch is not None:
            leaks += watch.of_process()
    if looks:
        leaks += isolation.changes
    result = replace(result, warnings=warned(messages), leaks=tuple(leaks))
    if leaks and result.ok and request.leaks == "fail":
        result = replace(result, ok=False, ending="", error=report_of_leaks(leaks))
    return result


def _run(
    case: Case, spec: RunSpec, request: CaseRequest, watch: Watch | None
) -> tuple[CaseResult, Memory | None, list[str]]:
    """Runs a case on a fresh context, which is gone afterwards.

    Returns:
        The result; the memory to look at, if the case has passed; and what is left in the context.
    """
    body, kwargs, result = case.body, request.kwargs, CaseResult(nodeid=request.nodeid, ok=True)
    ctx = RuntimeContext(spec)

    def of_rank(rank: int) -> object:
        __tracebackhide__ = True
        try:
            returned = body(ctx, rank, **kwargs)
        except SystemExit as stop:
            if watch is not None and not stop.code:  # a way to return
                watch.returned(rank)
            raise
        if watch is not None:
            watch.returned(rank)
        return returned

    passed = False
    _under_way.append(ctx)
    try:
        with ctx:
            ctx.multiprocessing.spawn(of_rank, nprocs=request.world_size)
            passed = True
    except SpawnException as error:
        result = _of_ranks(error, request)
    except KeyboardInterrupt as error:
        result = CaseResult(nodeid=request.nodeid, ok=False, error=str(error), ending="interrupt")
    finally:
        _under_way.remove(ctx)
    leaks = [] if watch is None else watch.of_simulation(ctx)
    if passed and watch is not None:
        leaks += open_spans(ctx)
    memory = Memory(ctx) if passed and watch is not None else None
    forget_ranks(ctx)
    return replace(result, sim_ps=ctx.main.host.clock), memory, leaks


_under_way: Final[list[RuntimeContext]] = []
"""Contexts whose ranks run now."""


def stacks() -> str:
    """Returns where each rank of the cases under way waits, for the report of one that hangs."""
    return stacks_of(_under_way)


def stacks_of(contexts: Iterable[RuntimeContext]) -> str:
    """Returns where each rank waits; the stack of a rank that runs is that of the thread.

    Args:
        contexts: Contexts of worlds that may be under way.
    """
    lines = []
    for ctx in contexts:
        for process in ctx.processes:
            task = process.task
            if task is None:
                continue
            lines.append(f"{process.name}: {task.waiting_for if task.parked else 'not waiting'}\n")
            frames = [] if task.frame is None else traceback.walk_stack(task.frame)
            users = [(frame, line) for frame, line in frames if not is_ours(frame)]
            lines += traceback.StackSummary.extract(reversed(users)).format()
    return "".join(lines)


def _of_ranks(error: SpawnException, request: CaseRequest) -> CaseResult:
    endings = {rank: _ending(raised) for rank, raised in error.errors.items()}
    ranks = tuple(sorted(rank for rank, (ending, _) in endings.items() if not ending))
    if not ranks:
        ending, reason = endings[min(endings)]
        return CaseResult(nodeid=request.nodeid, ok=True, ending=ending, reason=reason)
    return CaseResult(
        nodeid=request.nodeid, ok=False, error=report_of(error, ranks), ranks_failed=ranks
    )


_ENDINGS: Final[tuple[Ending, ...]] = ("skip", "xfail", "exit")


def _ending(error: BaseException) -> tuple[Ending, str]:
    """Returns what an exception asks pytest for, and why; empty if it is a failure."""
    if isinstance(error, unittest.SkipTest):
        return "skip", str(error)
    pytest = sys.modules.get("pytest")  # a case that has not imported it cannot raise its own
    if pytest is not None:
        for ending in _ENDINGS:
            if isinstance(error, getattr(pytest, ending).Exception):
                return ending, str(error)
    return "", ""
