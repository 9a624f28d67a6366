"""The pytest plugin: a fixture `kernbench`, and `import torch` as ours on demand."""

import os
import re
import sys
import warnings
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pytest

from kernbench.testing import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernbench.testing.harness import Kernbench

_FAILED: Final = pytest.StashKey[bool]()
"""Whether a test that uses the fixture has failed before its fixtures end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options and settings."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Lets `import torch` mean `kernbench.torch`, before the first conftest is imported."""
    given = getattr(early_config.known_args_namespace, options.AS_TORCH)
    if given or early_config.getini(options.AS_TORCH):
        from kernbench.scripts.as_torch import as_torch

        stack = ExitStack()
        # Unlike `pytest_unconfigure` this also comes after a conftest that fails.
        early_config.add_cleanup(stack.close)
        stack.enter_context(as_torch())


def pytest_configure(config: pytest.Config) -> None:
    """Reads the knobs, and registers the parts of the plugin."""
    from kernbench.testing import internals, summary
    from kernbench.testing.knobs import Knobs
    from kernbench.testing.worlds import Worlds

    config.addinivalue_line(
        "markers",
        f"{options.EXTENDED}: more than the essential; KERNBENCH_TEST_ESSENTIAL=0 runs it, too",
    )
    knobs = Knobs.of(os.environ, config)
    internals.warn_of_losses(config, knobs.mode)
    config.pluginmanager.register(Worlds(knobs, config), "kernbench-worlds")
    if knobs.mode != "inline":
        from kernbench.testing.items import of_session

        items = of_session(config, knobs)
        if items is not None:
            config.pluginmanager.register(items, "kernbench-items")
    if config.getoption(options.SUMMARY_OPTION) or config.getini(options.SUMMARY_SETTING):
        config.pluginmanager.register(summary.Summary(), "kernbench-summary")


def pytest_report_header() -> str | None:
    """Returns a line about a `ccl.yaml` that tests use since it lies in the working directory."""
    if not os.path.exists("ccl.yaml"):  # most projects do not use the package: nothing is imported
        return None
    from kernbench.ccl.config import local_file_notice

    notice = local_file_notice(way_out="kernbench.spawn(..., ccl=FILE)")
    return None if notice is None else f"kernbench: {notice}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tells at the end what `-q` leaves out of the header."""
    notice = pytest_report_header() if config.get_verbosity() < 0 else None
    if notice is not None:
        terminalreporter.write_line(notice)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> None:
    """Notes what the error of a test says of its runs."""
    if call.excinfo is None or "kernbench.testing.harness" not in sys.modules:
        return
    from kernbench.ranks.exploring import ScheduleError
    from kernbench.ranks.world import GroupLeakWarning
    from kernbench.testing import measures

    error = call.excinfo.value
    if call.when != "teardown" and _FAILED in item.stash:
        item.stash[_FAILED] = not isinstance(error, pytest.skip.Exception)
    if isinstance(error, ScheduleError):
        measures.note(item, kb_schedule=error.summary)
    elif isinstance(error, GroupLeakWarning):
        measures.note(item, kb_leaks=str(error))


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt(excinfo: "pytest.ExceptionInfo[BaseException]") -> None:
    """Leaves out frames without a line, at which pytest fails: a signal may come between lines."""
    error: BaseException | None = excinfo.value
    while error is not None:
        error.__traceback__ = _with_lines(error.__traceback__)
        error = error.__cause__ or error.__context__
    excinfo.traceback = type(excinfo.traceback)(excinfo.value.__traceback__ or ())


def _with_lines(entry: TracebackType | None) -> TracebackType | None:
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for each in reversed(entries):
        line: int | None = each.tb_lineno  # None where CPython knows none
        # A traced frame has the line of the last event there, and none at its instruction.
        positions = each.tb_frame.f_code.co_positions()
        here = next(islice(positions, max(each.tb_lasti, 0) // 2, None), None)
        if line is not None and here is not None:
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, line)
    return kept


@pytest.fixture
def kernbench(request: pytest.FixtureRequest) -> "Iterator[Kernbench]":
    """Runs workers on fresh simulated machines; fails the test if anything is left behind."""
    # Imported here, so that tests that do not simulate do not pay for it.

    from kernbench.ranks.world import GroupLeakWarning
    from kernbench.testing import measures
    from kernbench.testing.harness import Kernbench
    from kernbench.testing.leaks import LeftoverError

    item = request.node
    item.stash[_FAILED] = False  # a test may be run again
    harness = Kernbench()
    with warnings.catch_warnings():
        # Behind the project's own filters, which may still ignore it.
        left = re.escape("[C17] process groups were made and not destroyed")
        warnings.filterwarnings("error", left, GroupLeakWarning, append=True)
        yield harness
    measures.note(item, **harness.measures())
    try:
        harness.check_nothing_left()
    except LeftoverError as left:
        measures.note(item, kb_leaks=str(left))
        if not item.stash[_FAILED]:
            raise
        # An error beside the failure would be a second verdict on one test.
        item.add_report_section("teardown", "leaks", str(left))
