"""Calls the bodies of tests without running their cases, to know which cases they will ask for."""

import contextlib
import inspect
import io
import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol, cast

import numpy as np
import pytest

from kernbench.testing import internals
from kernbench.testing.cases import CaseRequest
from kernbench.testing.configs import Kept
from kernbench.testing.environments import (
    change_environment,
    changed_variables,
    raw_environment,
)
from kernbench.testing.isolation import current_folder

FIXTURE: Final = "world_batch"
_KNOWN: Final = frozenset({FIXTURE, "request"})
"""Fixtures that a test may have in a dry run, beside parameters."""


class DryRunUnsupported(Exception):  # noqa: N818 - not an error: the test is run singly
    """A test asks for what is only known when it is executed."""


class DryRunWarning(pytest.PytestWarning):
    """The body of a test changes its process before it asks for its case."""


class Stub:
    """Stands for an object of which a dry run knows a few attributes.

    Args:
        name: What it stands for.
        known: The attributes.
    """

    def __init__(self, name: str, /, **known: object) -> None:
        self.__dict__.update(known, _name=name)

    def __getattr__(self, attribute: str) -> NoReturn:
        raise DryRunUnsupported(f"{self._name}.{attribute}")

    def __bool__(self) -> NoReturn:
        raise DryRunUnsupported(f"whether {self._name} is true")


def dry_run(
    items: Iterable[pytest.Item], recorder: "Recorder", filters: Sequence[Any]
) -> list[CaseRequest]:
    """Returns the cases that tests will ask for, as far as a dry run can tell.

    A body is called with a stub in place of `request`, and its skips apply. A test that needs more
    (another fixture, a result) is left out: its cases are run when it is executed, and a mistake
    in its body shows there. Neither output nor warnings of the bodies are shown, since both come
    again.

    Args:
        items: The selected tests, in their order; those without the fixture are passed over.
        recorder: Stands for the value of the fixture.
        filters: Filters of warnings of tests that have none of their own.
    """
    found: list[CaseRequest] = []
    if "marks" in internals.LOST:
        return found
    state, numbers = random.getstate(), np.random.get_state()
    try:
        for item in items:
            if isinstance(item, pytest.Function) and FIXTURE in item.fixturenames:
                with _silent(filters):
                    found += _requests_of(item, recorder)
    finally:
        random.setstate(state)
        np.random.set_state(numbers)
    return found


class Recorder(Protocol):
    """Value of the fixture that notes what tests ask for, and runs nothing."""

    def take(self) -> list[CaseRequest]:
        """Returns what was noted since the last call."""
        ...


def _requests_of(item: pytest.Function, recorder: Recorder) -> list[CaseRequest]:
    """Returns what one test asks for; nothing if it is skipped, or to be run singly."""
    recorder.take()
    with _undone(item):
        try:
            if not _is_skipped(item):
                _body(item)(**_arguments(item, recorder))
                return recorder.take()
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
            raise
        except (Exception, pytest.skip.Exception, pytest.fail.Exception):
            pass  # a skip applies again; a mistake shows when the test is executed
    return []


def _is_skipped(item: pytest.Function) -> bool:
    """Returns whether marks keep pytest from calling a test, by pytest's own evaluation."""
    if internals.evaluate_skip_marks(item):
        return True
    expected = internals.evaluate_xfail_marks(item)
    return expected is not None and not expected.run and not item.config.option.runxfail


def _arguments(item: pytest.Function, recorder: Recorder) -> dict[str, Any]:
    """Returns the arguments of a body, by name.

    Raises:
        DryRunUnsupported: If the test needs another fixture, which only pytest can make.
    """
    if item.get_closest_marker("filterwarnings") is not None:
        raise DryRunUnsupported("filters of warnings, which pytest puts")
    node = Stub("request.node", nodeid=item.nodeid, name=item.name)
    request = Stub("request", node=node, config=item.config, getfixturevalue=_no_fixture)
    values: dict[str, Any] = {"request": request, FIXTURE: recorder}
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    definitions = item._fixtureinfo.name2fixturedefs
    for name in item.fixturenames:
        made = definitions.get(name, ())
        if name in _KNOWN and len(made) <= 1:  # not overridden
            continue
        # A parameter that goes to the body as it is has a definition of pytest's own.
        if name not in parameters or any(d.func.__module__ != "_pytest.python" for d in made):
            _no_fixture(name)
        values[name] = parameters[name]
    return {name: values[name] for name in item._fixtureinfo.argnames}


def _no_fixture(name: str) -> NoReturn:
    raise DryRunUnsupported(f"fixture {name}")


def _body(item: pytest.Function) -> Callable[..., object]:
    """Returns the function to call; a method is bound to an instance that nobody else has."""
    body: Callable[..., object] = item.function
    if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
        raise DryRunUnsupported("a body that a plugin runs")
    return body if item.cls is None else getattr(item.cls(), item.originalname)


@contextlib.contextmanager
def _silent(filters: Sequence[Any]) -> Iterator[None]:
    nowhere = io.StringIO()
    with (
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(record=True),
    ):
        cast(list[Any], warnings.filters)[:] = filters  # the present ones may be of one test
        yield


@contextlib.contextmanager
def _undone(item: pytest.Function) -> Iterator[None]:
    """Undoes what a body does to its process, and says so."""
    environment, folder, configs = raw_environment(), current_folder(), Kept()
    try:
        yield
    finally:
        now = raw_environment()
        names = sorted(changed_variables(environment, now))
        changed = [f"the environment variable {name}" for name in names]
        change_environment(now, environment)
        if folder is not None and current_folder() != folder:
            os.chdir(folder)
            changed.append("the current folder")
        changed += [f"the configuration {name}" for name in configs.restore()]
        if changed:
            _warn(item, changed)


def _warn(item: pytest.Function, changed: Sequence[str]) -> None:
    """Puts a warning into pytest's summary; not raised, as the same test runs in other modes."""
    path, line, _ = item.reportinfo()
    text = (
        f"{item.nodeid}: its body changes {', '.join(changed)} before its case is run; the dry "
        "run has undone it: change it in the fixture monkeypatch, or in the case"
    )
    told = warnings.WarningMessage(DryRunWarning(text), DryRunWarning, str(path), (line or 0) + 1)
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": told,
            "when": "collect",
            "nodeid": item.nodeid,
            "location": None,
        }
    )
