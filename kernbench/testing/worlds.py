"""The fixture `world_batch`: runs cases, in the mode of the session."""

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from kernbench.testing.environments import Raw, changed_variables, raw_environment
from kernbench.testing.junit import add_standard_error
from kernbench.testing.knobs import Knobs
from kernbench.testing.measures import note
from kernbench.testing.modes import Inline, Plan, Runner, check_processes, folder_of, runner_of
from kernbench.testing.options import EXTENDED

if TYPE_CHECKING:
    from kernbench.testing.cases import CaseRequest
    from kernbench.testing.results import CaseResult


_FOLDER: Final = "kernbench_folder"
"""Name of the shared folder in what xdist tells its processes."""


class WorldBatch:
    """Value of the fixture `world_batch`.

    Args:
        knobs: Settings of the session.
        baseline: The environment at the start of the session.
        runner: Where cases run.
    """

    def __init__(self, knobs: Knobs, baseline: Raw, runner: Runner) -> None:
        self._knobs = knobs
        self._baseline = baseline
        self._runner = runner
        self._asked: dict[str, int] = {}

    def run(
        self, request: pytest.FixtureRequest, *, case: str, world_size: int, **kwargs: Any
    ) -> "CaseResult":
        """Runs a case on every rank of a fresh simulated machine.

        Args:
            request: The fixture `request` of the test.
            case: Name of a function with `@dist_case`.
            world_size: Number of ranks.
            kwargs: Arguments of the case: JSON values, paths and scalars of numpy.

        Returns:
            What came of the case.

        Raises:
            AssertionError: If a rank failed, with the report of the first one; a `LeakError` if the
                case left something behind.
            UsageError: If the case, its arguments or its machine cannot be used. Nothing has run.
            KeyboardInterrupt: If the user has interrupted the tests.
        """
        __tracebackhide__ = True
        asked = self.request_of(request, case, world_size, kwargs)
        try:
            result = self._runner.run(asked)
        except KeyboardInterrupt as stopped:
            # So that pytest names the line of the test, and not ours.
            raise KeyboardInterrupt(*stopped.args) from None
        _report(request, result)
        return settle(result)

    def request_of(
        self, request: pytest.FixtureRequest, case: str, world_size: int, kwargs: dict[str, Any]
    ) -> "CaseRequest":
        """Returns a checked request; skips the test if the machine has too few devices.

        Args:
            request: The fixture `request` of the test.
            case: Name of the case.
            world_size: Number of ranks.
            kwargs: Arguments of the case.

        Raises:
            UsageError: If the case, its arguments or its machine cannot be used.
        """
        __tracebackhide__ = True
        from kernbench.errors import UsageError, call_site, site_fact
        from kernbench.testing.arguments import check_world_size, plain_arguments
        from kernbench.testing.assertions import settings_of
        from kernbench.testing.cases import WATCHDOG_S, CaseRequest, find_case, spec_of_case
        from kernbench.testing.isolation import current_folder
        from kernbench.testing.machines import devices_of
        from kernbench.testing.warned import encoded_filters

        if not hasattr(request, "node"):
            raise UsageError(
                f"world_batch.run(request, ...): expected the fixture `request` of the test, got "
                f"{type(request).__name__}",
                [site_fact(call_site())],
            )
        found = find_case(case)
        plain = plain_arguments(found, kwargs)
        knobs = self._knobs
        # Well before a worker process is given up, so that a loop fails alike in every mode.
        watchdog_s = min(WATCHDOG_S, knobs.pool_timeout_s / 2)
        spec = spec_of_case(found, knobs.machine, knobs.seed, knobs.max_time_ps, watchdog_s)
        devices = devices_of(spec)
        world_size = check_world_size(world_size)
        if world_size > devices:
            pytest.skip(f"world_size={world_size}, and the machine has {devices} devices")
        nodeid = request.node.nodeid
        asked = self._asked[nodeid] = self._asked.get(nodeid, -1) + 1
        return CaseRequest(
            nodeid=f"{nodeid}#{asked}" if asked else nodeid,
            case=found.name,
            module=found.module,
            file=found.file,
            world_size=world_size,
            kwargs=plain,
            env=changed_variables(self._baseline, raw_environment()),
            folder=current_folder() or "",
            seed=knobs.seed,
            machine=knobs.machine,
            max_time_ps=knobs.max_time_ps,
            leaks=knobs.leaks,
            watchdog_s=watchdog_s,
            as_torch=_as_torch(),
            asserts=settings_of(found.module, request.config),
            filters=encoded_filters(),
        )


def settle(result: "CaseResult") -> "CaseResult":
    """Ends a test as its case has ended, whichever process it ran in.

    Args:
        result: What came of the case.

    Returns:
        The result, if the case has passed.

    Raises:
        AssertionError: If it has failed; a `LeakError` if it has only left something behind.
        KeyboardInterrupt: If it was interrupted.
    """
    __tracebackhide__ = True
    for warning in result.warnings:
        warning.again()
    if result.ok and result.leaks:
        from kernbench.testing.leaks import LeakWarning, report_of_leaks

        warnings.warn(LeakWarning(report_of_leaks(result.leaks)), stacklevel=3)
    if result.ending == "skip":
        pytest.skip(result.reason)
    if result.ending == "xfail":
        pytest.xfail(result.reason)
    if result.ending == "exit":
        pytest.exit(result.reason)
    if result.ending == "interrupt":
        raise KeyboardInterrupt(result.error)
    if not result.ok:
        if result.leaks and not result.ranks_failed:
            from kernbench.testing.leaks import LeakError

            raise LeakError(result.error)
        raise AssertionError(result.error)
    return result


def _report(request: pytest.FixtureRequest, result: "CaseResult") -> None:
    """Adds what came of a case to the report of its test."""
    item = request.node
    note(
        item,
        kb_sim_s=result.sim_s,
        kb_wall_s=result.wall_s,
        kb_worlds=1,
        kb_retries=result.retries,
    )
    for leak in result.leaks:
        note(item, kb_leaks=leak)
    if result.output:
        item.add_report_section("call", "world stdout", result.output)
        if request.config.getoption("capture") == "no":
            sys.stdout.write(result.output)


def _as_torch() -> bool:
    """Returns whether `import torch` means `kernbench.torch` now."""
    ours = sys.modules.get("kernbench.torch")
    return ours is not None and sys.modules.get("torch") is ours


class Recorder(WorldBatch):
    """Value of the fixture in a dry run: notes what tests ask for, and runs nothing."""

    def __init__(self, knobs: Knobs, baseline: Raw) -> None:
        self._noted: list[CaseRequest] = []
        super().__init__(knobs, baseline, Inline())

    def run(
        self, request: pytest.FixtureRequest, *, case: str, world_size: int, **kwargs: Any
    ) -> Any:
        """Notes a case; returns a stub of its result, of which nothing is known.

        Args:
            request: Stands for the fixture `request` of the test.
            case: Name of the case.
            world_size: Number of ranks.
            kwargs: Arguments of the case.

        Raises:
            UsageError: If the case, its arguments or its machine cannot be used.
        """
        from kernbench.testing.dry_run import Stub

        self._noted.append(self.request_of(request, case, world_size, kwargs))
        return Stub("the result of a case")

    def take(self) -> "list[CaseRequest]":
        """Returns what was noted since the last call; the next test counts from the beginning."""
        noted, self._noted = self._noted, []
        self._asked.clear()
        return noted


class Worlds:
    """The plugin of `world_batch`.

    Args:
        knobs: Settings of the session.
        config: The configuration of pytest.
    """

    def __init__(self, knobs: Knobs, config: pytest.Config) -> None:
        self._knobs: Final = knobs
        self._config: Final = config
        self._environment: Final = dict(os.environ)
        self._baseline: Final = raw_environment()
        told = getattr(config, "workerinput", {})
        self._owns_folder: Final = not told
        self._folder: Final = Path(told.get(_FOLDER) or folder_of(uuid4().hex))
        self._testers: Final = told.get("workercount", 1)
        self._runner: Runner | None = None  # from the first test on that needs it
        self._filters: list[Any] = []

    @pytest.fixture
    def world_batch(self, request: pytest.FixtureRequest) -> WorldBatch:
        """Runs functions with `@dist_case` on every rank of fresh simulated machines."""
        if self._runner is None:
            with warnings.catch_warnings():  # numpy, if it is imported now, puts filters
                self._runner = self._start(request.session)
        return WorldBatch(self._knobs, self._baseline, self._runner)

    def _start(self, session: pytest.Session) -> Runner:
        def foreseen() -> "list[CaseRequest]":
            from kernbench.testing.dry_run import dry_run

            recorder = Recorder(self._knobs, self._baseline)
            return dry_run(session.items, recorder, self._filters)

        return runner_of(
            Plan(
                knobs=self._knobs,
                environment=self._environment,
                foreseen=foreseen,
                folder=self._folder,
                testers=self._testers,
            )
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Notes the filters of warnings of tests that have none of their own."""
        # Before anything is collected, since imports put filters that pytest takes away again.
        self._filters = list(warnings.filters)

    def pytest_sessionfinish(self) -> None:
        """Ends the processes in which cases ran."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a process that xdist starts what all of them share."""
        check_processes(self._knobs, node.workerinput["workercount"])
        node.workerinput[_FOLDER] = str(self._folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Puts retries, and last words of processes, into the JUnit file."""
        if report.when == "call":
            add_standard_error(self._config, report)

    def pytest_unconfigure(self) -> None:
        """Removes what the processes shared."""
        if self._owns_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselects tests marked `kb_extended` unless `KERNBENCH_TEST_ESSENTIAL=0`."""
        if not self._knobs.essential:
            return
        extended = [item for item in items if item.get_closest_marker(EXTENDED) is not None]
        if extended:
            items[:] = [item for item in items if item.get_closest_marker(EXTENDED) is None]
            config.hook.pytest_deselected(items=extended)
