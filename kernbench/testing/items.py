"""Tests that use the fixture `kernbench`, run as wholes in worker processes.

The workers of such a test are closures, so it cannot be sent as a case can: a worker process hosts
a pytest session of its own over the same files and runs the test there, and its reports are told
here, as those of pytest-xdist are. If the process dies or hangs, its test fails, and is named.
"""

import contextlib
import os
import socket
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from kernbench.testing import internals
from kernbench.testing.knobs import Knobs
from kernbench.testing.measures import LEAKS, RETRIES, WORLDS
from kernbench.workers.failing import CaseFailed, Message, PoolTimeout, WorkerError
from kernbench.workers.worker import Worker

MODULE: Final = "kernbench.testing.item_worker"

TAIL: Final = "Captured stderr of the worker process"
"""Name of the section of a report with what a process that has gone wrote to standard error."""

_NO_START: Final = "no worker process has come up for this test"
_DIES: Final = "the worker process has ended while it ran this test"
_HANGS: Final = "this test has not ended, so its worker process was killed"

_STARTS: Final = 2
"""How many processes are started for a test; one that dies of the test is not replaced for it."""

_FINISH_S: Final = 30.0
"""Seconds of wall time that the fixtures which are left at the end may take."""

_NEED_THE_TERMINAL: Final = ("setupshow", "setuponly", "setupplan")
"""Options of pytest that print while a test runs, so that it runs here."""


def of_session(config: pytest.Config, knobs: Knobs) -> "ItemsInWorkers | None":
    """Returns the plugin that runs tests in workers; None if this session has no use for it.

    Args:
        config: The configuration of the session.
        knobs: Settings of the session.

    Raises:
        pytest.UsageError: If the session is to debug, which a worker process cannot.
    """
    if knobs.mode == "inline" or "items" in internals.LOST:
        return None
    for option in ("usepdb", "trace"):
        if config.getoption(option, False):
            name = {"usepdb": "--pdb"}.get(option, f"--{option}")
            raise pytest.UsageError(
                f"{name} needs --kb-mode=inline: with {knobs.mode}, tests run in worker processes, "
                "which have no terminal"
            )
    if any(config.getoption(name, False) for name in _NEED_THE_TERMINAL):
        return None
    return ItemsInWorkers(config, knobs)


class ItemsInWorkers:
    """Plugin that runs the tests which use the fixture `kernbench` in worker processes.

    One process serves the session, until it dies or a test leaks. In mode `batch` it also ends with
    a batch of which a test has failed, which is as many tests as a batch may have, and the rest of
    the last one's file; the next process then starts ahead.

    Args:
        config: The configuration of the session.
        knobs: Settings of the session.
    """

    def __init__(self, config: pytest.Config, knobs: Knobs) -> None:
        self._config = config
        self._knobs = knobs
        self._size = knobs.batch_size if knobs.mode == "batch" else sys.maxsize
        # Later changes of tests, such as `monkeypatch.setenv`, are not for those in workers.
        self._environment = {**os.environ}
        self._worker: _Host | None = None
        self._next: _Host | None = None
        self._started = 0
        self._last: pytest.Item | None = None
        self._places: dict[pytest.Item, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Runs a test in a worker, and tells its reports."""
        self._last = item
        if not uses_kernbench(item):
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        told = self._run(item, nextitem)
        for report in told.pop("reports"):
            hook.pytest_runtest_logreport(report=report)
        left = _report_of_step(item, lambda: _leave(item, nextitem))
        if left.failed:
            hook.pytest_runtest_logreport(report=left)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        _pass_on(item.session, told)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Ends the workers when no test is left, before plugins gather what workers have left."""
        try:
            done = yield
            if self._last is not None:
                for report in self._end(self._last):
                    self._last.ihook.pytest_runtest_logreport(report=report)
            return done
        finally:
            self._forget()
            self._worker, self._next = self._next, None
            self._forget()

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> Message:
        """Runs a test in a worker; returns its reports, and how the session is to go on."""
        retries: list[str] = []
        try:
            worker = self._ready(item, nextitem, retries)
        except WorkerError as error:
            return {"reports": _of_a_death(item, _NO_START, error, retries)}
        worker.given += 1
        try:
            told = worker.call(
                "item",
                self._knobs.pool_timeout_s,
                nodeid=_plain_nodeid(item),
                following=None if nextitem is None else _plain_nodeid(nextitem),
                failed=item.session.testsfailed,
            )
        except WorkerError as error:
            captured = worker.captured()
            self._forget()
            what = _HANGS if isinstance(error, PoolTimeout) else _DIES
            return {"reports": _of_a_death(item, what, error, retries, captured)}
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{item.nodeid} ran in a worker process") from None
        except CaseFailed as error:
            return {"reports": [_failure(item, str(error))]}
        if "missing" in told:
            return {"reports": [_failure(item, told["missing"], "setup")]}
        reports = [_report(self._config, item, each) for each in told["reports"]]
        for line in retries:
            reports[-1].sections.append((TAIL, line))
        if retries:
            reports[-1].user_properties.append((RETRIES, len(retries)))
        for each in told["warnings"]:
            _tell_warning(self._config, each)
        worker.spoilt |= any(report.failed for report in reports)
        leaked = any(name == LEAKS for name, _ in reports[-1].user_properties)
        # A file is not divided, so that what its module has set up is set up once.
        last = worker.given >= self._size and (nextitem is None or nextitem.path != item.path)
        if leaked or (last and worker.spoilt):
            reports += self._end(item)
        elif worker.spoilt:
            self._start_ahead(item)
        elif last:
            worker.given = 0
        return {**told, "reports": reports}

    # Processes

    def _ready(
        self, item: pytest.Item, nextitem: pytest.Item | None, retries: list[str]
    ) -> "_Host":
        """Returns a worker that has collected a test and the next one; waits for it.

        Args:
            item: The test.
            nextitem: The next one, by which fixtures are torn down that it does not need.
            retries: Takes a line for each process that does not come up.

        Raises:
            WorkerError: If the last process that may be tried does not come up.
        """
        wanted = [item] if nextitem is None else [item, nextitem]
        while True:
            try:
                if self._worker is None:
                    self._worker = self._next or self._start(item)
                    self._next = None
                for each in wanted:
                    if each.path not in self._worker.collected:
                        self._worker.collect([each.path, *self._paths(each)])
                self._worker.wait()
            except WorkerError as error:
                self._forget()
                line = f"[POOL-RETRY] items attempt={len(retries) + 1} reason={error.reason}"
                if len(retries) + 1 == _STARTS:
                    raise
                retries.append(f"{line}\n{error.tail}")
                print(line, file=sys.stderr)
            else:
                return self._worker

    def _start(self, item: pytest.Item) -> "_Host":
        """Starts a process for a test and those behind it; does not wait."""
        self._started += 1
        return _Host(self._config, self._environment, self._started, self._paths(item))

    def _paths(self, item: pytest.Item) -> list[Path]:
        """Returns the files of a batch that begins with a test, and of what runs between."""
        items = item.session.items
        if not self._places:
            self._places = {each: place for place, each in enumerate(items)}
        paths: dict[Path, None] = {}
        left = self._size
        for each in items[self._places[item] :]:
            paths[each.path] = None
            left -= uses_kernbench(each)
            if not left:
                break
        return list(paths)

    def _start_ahead(self, item: pytest.Item) -> None:
        """Starts the process of the next batch, if there is one and it may run beside this one."""
        if self._next is None and self._knobs.mode == "batch" and (self._knobs.max_procs or 2) > 1:
            assert self._worker is not None
            left = self._size - self._worker.given
            begun, before = False, item
            for each in item.session.items[self._places[item] + 1 :]:
                begun |= left <= 0 and each.path != before.path
                if uses_kernbench(each):
                    if begun:
                        with contextlib.suppress(WorkerError):  # told when it is needed
                            self._next = self._start(each)
                        return
                    left -= 1
                before = each

    def _end(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Ends the worker; returns the report of fixtures that could not be torn down, if any.

        Args:
            item: The test that ran last, here or there.
        """
        if self._worker is None:
            return []
        try:
            told = self._worker.call("finish", _FINISH_S)
            self._worker.close()
        except (WorkerError, CaseFailed) as error:
            return [_failure(item, f"the worker process failed as its session ended: {error}")]
        finally:
            self._forget()
        return [_report(self._config, item, each) for each in told["reports"]]

    def _forget(self) -> None:
        """Kills the worker, if there is one and it lives."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave()


class _Host(Worker):
    """A worker, and what it has been given."""

    def __init__(
        self,
        config: pytest.Config,
        environment: Mapping[str, str],
        number: int,
        paths: Sequence[Path],
    ) -> None:
        echo = config.getoption("capture", None) == "no"
        super().__init__(MODULE, environment=environment, echo=echo)
        self.given = 0
        self.spoilt = False
        self.collected: set[Path] = set()
        self._captures: dict[str, FileIO] = {}
        self._ask_to_collect(paths, **_description(config, number))

    def collect(self, paths: Sequence[Path]) -> None:
        """Collects files that are not yet."""
        self.wait()
        self._ask_to_collect([path for path in paths if path not in self.collected])

    def wait(self) -> None:
        """Waits until files are collected."""
        if self.busy:
            # A file that cannot be collected here, and can in the parent, is told with its test.
            with contextlib.suppress(CaseFailed):
                self._open(self.answer()["captures"])

    def captured(self) -> list[tuple[str, str]]:
        """Returns what the test has written that runs now, or has when the process died."""
        sections = []
        for name, file in self._captures.items():
            file.seek(0)
            text = file.read().decode(errors="replace")
            if text:
                sections.append((f"Captured {name}", text))
        return sections

    def leave(self) -> None:
        """Kills the process, if it lives, and forgets it."""
        self.kill()
        for file in self._captures.values():
            file.close()

    def _open(self, captures: Mapping[str, int]) -> None:
        """Opens the files into which pytest captures; they have no name, and outlive it."""
        with contextlib.suppress(OSError):  # there is no such folder on every system
            for name in captures.keys() - self._captures.keys():
                path = Path(f"/proc/{self.pid}/fd/{captures[name]}")
                self._captures[name] = path.open("rb", buffering=0)

    def _ask_to_collect(self, paths: Sequence[Path], **fields: Any) -> None:
        self.collected.update(paths)
        self.ask("collect", paths=[str(path) for path in paths], **fields)


def uses_kernbench(item: pytest.Item) -> bool:
    """Returns whether a test runs in a worker: its fixtures have `kernbench`, not `world_batch`."""
    names = getattr(item, "fixturenames", ())
    return "kernbench" in names and "world_batch" not in names


def _description(config: pytest.Config, number: int) -> Message:
    """Returns what a worker needs to host a session like this one."""
    mine: Any = config
    workerinput = getattr(mine, "workerinput", None)
    if workerinput is None:
        here = {
            "workerid": "master",
            "workercount": 1,
            "testrunuid": str(os.getpid()),
            "mainargv": sys.argv,
            "cov_master_host": socket.gethostname(),
            "cov_master_topdir": str(Path.cwd()),
            "cov_master_rsync_roots": [],
            "randomly_seed": config.getoption("randomly_seed", None),
        }
    else:
        plain = (str, int, float, list, type(None))
        here = {name: value for name, value in workerinput.items() if isinstance(value, plain)}
    folders = getattr(mine, "_tmp_path_factory", None)
    return {
        "arguments": [str(each) for each in config.invocation_params.args],
        "folder": str(config.invocation_params.dir),
        "basetemp": None if folders is None else str(folders.getbasetemp() / f"worker-{number}"),
        "workerinput": here,
    }


def _plain_nodeid(item: pytest.Item) -> str:
    """Returns a nodeid without the group that pytest-xdist appends in its own processes."""
    grouped = item.config.getoption("loadgroup", False) and item.get_closest_marker("xdist_group")
    return item.nodeid.rpartition("@")[0] if grouped else item.nodeid


def _leave(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tears down what other tests have set up in this process and the next one does not need."""
    item.session._setupstate.teardown_exact(nextitem)


def _pass_on(session: pytest.Session, told: Message) -> None:
    """Ends the session here as the test has ended it in the worker."""
    if "shouldstop" in told:
        session.shouldstop = told["shouldstop"]
    if "interrupted" in told:
        raise KeyboardInterrupt
    if "exit" in told:
        pytest.exit(told["exit"], told["returncode"])


# Reports


def _report(config: pytest.Config, item: pytest.Item, data: Message) -> pytest.TestReport:
    """Returns a report of a worker; JSON has turned its tuples into lists."""
    report: Any = config.hook.pytest_report_from_serializable(config=config, data=data)
    report.nodeid, report.location = item.nodeid, item.location
    report.sections = [(name, text) for name, text in report.sections]
    report.user_properties = [(name, value) for name, value in report.user_properties]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    told: pytest.TestReport = report
    return told


def _report_of_step(
    item: pytest.Item, call: Callable[[], None], when: Literal["setup", "teardown"] = "teardown"
) -> pytest.TestReport:
    """Returns the report of a step before or after a test."""
    return pytest.TestReport.from_item_and_call(
        item, pytest.CallInfo.from_call(call, when, reraise=(KeyboardInterrupt,))
    )


def _failure(
    item: pytest.Item, text: str, when: Literal["setup", "teardown"] = "teardown"
) -> pytest.TestReport:
    """Returns the report of a test of which a step failed elsewhere."""

    def fail() -> None:
        pytest.fail(text, pytrace=False)

    return _report_of_step(item, fail, when)


def _of_a_death(
    item: pytest.Item,
    what: str,
    error: WorkerError,
    retries: Sequence[str],
    captured: Sequence[tuple[str, str]] = (),
) -> list[pytest.TestReport]:
    """Returns the reports of a test without a process that could report."""
    message = f"{', '.join(error.facts) or error.summary}: {what}"
    path, line, _ = item.location
    crash = internals.ReprFileLocation(path, (line or 0) + 1, message)
    lines = internals.ReprEntryNative([f"{item.nodeid}: {message}\n"])
    sections = [*captured, *((TAIL, text) for text in (*retries, error.tail) if text)]
    failed = pytest.TestReport(
        item.nodeid,
        item.location,
        dict.fromkeys(item.keywords, 1),
        "failed",
        internals.ExceptionChainRepr(
            [(internals.ReprTraceback([lines], None, "native"), crash, None)]
        ),
        "call",
        sections=sections,
        user_properties=[(WORLDS, 0)],
    )
    ended = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "teardown")
    if retries:
        ended.user_properties.append((RETRIES, len(retries)))
    return [failed, ended]


def _tell_warning(config: pytest.Config, told: Message) -> None:
    """Tells a warning of a worker."""
    category: type[Warning] = Warning
    message = Warning(told["text"])
    with contextlib.suppress(Exception):  # a category of a file that is no module, or of its own
        category = getattr(import_module(told["module"]), told["name"])
        message = category(told["text"])
    warning = warnings.WarningMessage(message, category, told["filename"], told["lineno"])
    where = told["location"]
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": warning,
            "when": "runtest",
            "nodeid": told["nodeid"],
            "location": None if where is None else tuple(where),
        }
    )
