"""Test cases of PyTorch, which start ranks themselves, on simulated devices."""

import tempfile
import types
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from unittest import SkipTest

from kernbench.ranks.spawn_errors import SpawnException
from kernbench.scripts.torchrun import torchrun_spawn

C = TypeVar("C", bound=type)


def on_kernbench(nprocs: int = 4, **fields: Any) -> Callable[[C], C]:
    """Returns a decorator that runs a test case of PyTorch on simulated devices.

    The case is a `MultiProcessTestCase`, `MultiThreadedTestCase` or `MultiProcContinuousTest` of
    `torch.testing._internal.common_distributed`, or one that is made of these, such as `FSDPTest`;
    each of its tests runs in every rank of a fresh machine. A test is skipped if a rank skips it.

    Args:
        fields: Further arguments of `kernbench.torchrun_spawn`, such as `topology="h200x8"`.
    """

    def decorate(case: C) -> C:
        changed: Any = case
        for start in ("_spawn_processes", "_spawn_threads", "_fork_processes"):
            if hasattr(case, start):
                setattr(changed, start, lambda _: None)
        changed.world_size = nprocs
        joins = _join_or_run(nprocs, fields)
        if hasattr(case, "_worker_run_main_wait"):  # processes that run test after test
            changed._ensure_processes_spawned = classmethod(lambda _: None)
            changed._worker_run_main_wait = joins
            changed.task_queues = ()
        else:
            changed.join_or_run = joins
        if hasattr(case, "run_test"):
            changed.run_test = _run_alone
        return case

    return decorate


def _run_alone(case: Any, name: str, _: object) -> None:
    """`MultiProcessTestCase.run_test` without the thread that listens to the parent's process."""
    getattr(case, name)()


def _join_or_run(nprocs: int, fields: dict[str, Any]) -> Callable[..., Any]:
    def join_or_run(case: Any, test: Callable[[], None]) -> Any:
        @wraps(test)
        def run(case: Any) -> None:
            if getattr(case, "rank", -1) != -1:
                test()
                return
            from kernbench.bridge.programs.cases import run_test, with_devices

            try:
                with with_devices(nprocs), tempfile.TemporaryDirectory() as folder:
                    case.rdvz_file = str(Path(folder) / "store")
                    torchrun_spawn(run_test, nprocs=nprocs, args=(case, nprocs), **fields)
            except SpawnException as error:
                _raise_as_test(error)

        return types.MethodType(run, case)

    return join_or_run


def _raise_as_test(error: SpawnException) -> None:
    """Raises what a test raises for a failure of its ranks.

    Raises:
        SkipTest: If the ranks that failed have skipped the test.
        AssertionError: If ranks have failed otherwise.
    """
    __tracebackhide__ = True
    from kernbench.bridge.programs.cases import reasons_of_exit_codes

    errors = list(error.errors.values())
    codes = reasons_of_exit_codes()
    for one in errors:
        if isinstance(one, SkipTest):
            raise one from None
        if isinstance(one, SystemExit) and one.code in codes:
            raise SkipTest(codes[one.code]) from None
    raise AssertionError(str(error)) from None
