"""Where cases run: in this process, in processes one by one, or there in batches."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pytest

from kernbench.testing.knobs import Knobs
from kernbench.testing.options import Mode

if TYPE_CHECKING:
    from kernbench.testing.cases import CaseRequest
    from kernbench.testing.results import CaseResult


class Runner(Protocol):
    """Runs cases."""

    def run(self, request: "CaseRequest") -> "CaseResult":
        """Returns what came of a case; waits for it."""
        ...

    def close(self) -> None:
        """Ends what the runner has started."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a runner may need to know of the session.

    Attributes:
        knobs: Settings of the session.
        environment: The environment at the start of the session.
        foreseen: Returns the cases that tests will ask for, as far as it is known, in their order.
        folder: Folder that all processes of the test run share; made when it is needed.
        testers: How many processes run tests.
    """

    knobs: Knobs
    environment: Mapping[str, str]
    foreseen: Callable[[], "Iterable[CaseRequest]"]
    folder: Path
    testers: int = 1

    @property
    def most(self) -> int | None:
        """Most worker processes of this process of tests; None for no limit."""
        most = self.knobs.max_procs
        return None if most is None else most // self.testers


def runner_of(plan: Plan) -> Runner:
    """Returns the runner of the mode of the session."""
    return _MODES[plan.knobs.mode].runner(plan)


def check_processes(knobs: Knobs, testers: int) -> None:
    """Checks that each process that runs tests may have a worker process.

    Args:
        knobs: Settings of the session.
        testers: How many processes run tests.

    Raises:
        pytest.UsageError: If there are too few.
    """
    most = knobs.max_procs
    if _MODES[knobs.mode].starts_processes and most is not None and most < testers:
        raise pytest.UsageError(
            f"kernbench: KERNBENCH_MAX_PROCS={most} is too few for -n {testers}: in mode "
            f"{knobs.mode} each process that runs tests needs a worker process of its own; "
            f"use -n {most}, or raise KERNBENCH_MAX_PROCS"
        )


class Inline:
    """The mode `inline`: cases run in this process."""

    def run(self, request: "CaseRequest") -> "CaseResult":
        """Returns what came of a case."""
        from kernbench.testing.running import run_case

        printed = StringIO()
        with redirect_stdout(printed):
            result = run_case(request)
        return replace(result, output=printed.getvalue())

    def close(self) -> None:
        """Does nothing."""


def _inline(plan: Plan) -> Runner:
    return Inline()


def _pool(plan: Plan) -> Runner:
    from kernbench.testing.pools import Pools

    knobs = plan.knobs
    return Pools(
        plan.environment,
        timeout_s=knobs.pool_timeout_s,
        most=plan.most,
        timing=knobs.pool_timing,
    )


def _batch(plan: Plan) -> Runner:
    from kernbench.testing.batches import Batched

    knobs = plan.knobs
    return Batched(
        plan.foreseen,
        plan.environment,
        plan.folder,
        size=knobs.batch_size,
        timeout_s=knobs.pool_timeout_s,
        retry=knobs.batch_retry,
        most=plan.most,
    )


class _Way(NamedTuple):
    runner: Callable[[Plan], Runner]
    starts_processes: bool


_MODES: Final[Mapping[Mode, _Way]] = {
    "inline": _Way(_inline, starts_processes=False),
    "pool": _Way(_pool, starts_processes=True),
    "batch": _Way(_batch, starts_processes=True),
}

_IN_MEMORY: Final = Path("/dev/shm")
_ENOUGH: Final = 256 << 20
"""Free bytes in memory from which on batches are kept there."""


def folder_of(run_id: str) -> Path:
    """Returns a folder for what the processes of a test run share, and nobody after it.

    In memory if there is room: a disk takes 5 ms for each result that is written through to it,
    which matters only if the machine fails, and then the tests have failed, too.

    Args:
        run_id: Name of the run.
    """
    parent = Path(tempfile.gettempdir())
    if "TMPDIR" not in os.environ and os.access(_IN_MEMORY, os.W_OK | os.X_OK):
        parent = _IN_MEMORY if shutil.disk_usage(_IN_MEMORY).free >= _ENOUGH else parent
    return parent / f"kernbench-{run_id}-{os.getpid()}"
