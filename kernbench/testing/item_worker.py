"""The worker process in which whole pytest items run; `items` is the parent's side.

It hosts a pytest session of its own with the parent's arguments, and collects the files that it is
asked for. As in the processes of pytest-xdist, `config.workerinput` is there, by which plugins know
that they are not in the main process.
"""

import contextlib
import faulthandler
import json
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from kernbench.testing import internals
from kernbench.testing.running import stacks_of
from kernbench.workers.failing import Message

NOT_HERE: Final[Mapping[str, Any]] = {
    "usepdb": False,
    "dist": "no",
    "numprocesses": None,
    "maxprocesses": None,
    "tx": [],
    "cacheclear": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "log_file": os.devnull,
    "kb_mode": "inline",
    "kb_summary": False,
}
"""Options that concern the main process alone, with their values here, if pytest has them."""


class _Recorder:
    """Plugin that notes what the session reports while an item runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.reports: list[Message] = []
        self.warnings: list[Message] = []
        self.refused: list[str] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a report."""
        hook = self._config.hook.pytest_report_to_serializable
        self.reports.append(_plain(hook(config=self._config, report=report)))

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes why something cannot be collected."""
        if report.failed:
            self.refused.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl
    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Notes a warning of a test; the parent has those of collection itself."""
        if when == "runtest":
            kind = warning_message.category
            self.warnings.append(
                {
                    "text": str(warning_message.message),
                    "module": kind.__module__,
                    "name": kind.__qualname__,
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                    "nodeid": nodeid,
                    "location": location,
                }
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        """Runs nothing: items run on request. What is around it, such as coverage, ends."""
        return True

    def take(self) -> Message:
        """Returns what was noted, and forgets it."""
        taken: Message = {"reports": self.reports, "warnings": self.warnings}
        self.reports, self.warnings = [], []
        return taken


class _Host:
    """A pytest session whose items run on request."""

    def __init__(self, request: Message) -> None:
        import_module("kernbench.testing.harness")  # before the first test, whose time is limited
        # Tests are captured, descriptor 2 included; a hang is reported on the stream of the worker.
        faulthandler.register(signal.SIGUSR1, file=os.dup(2), all_threads=True, chain=True)
        os.chdir(request["folder"])
        config: Any = internals.prepare_config(request["arguments"], None)
        self._config: pytest.Config = config
        for name, value in NOT_HERE.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.basetemp = request["basetemp"]
        config.workerinput = request["workerinput"]
        config.workeroutput = {}
        self._session = pytest.Session.from_config(config)
        self._session.exitstatus = pytest.ExitCode.OK
        with _no_terminal():
            config._do_configure()
        self._recorder = _Recorder(config)
        config.pluginmanager.register(self._recorder)
        config.hook.pytest_sessionstart(session=self._session)
        self._items: dict[str, pytest.Item] = {}
        self.last: pytest.Item | None = None  # that began
        self._collected: set[str] = set()

    def collect(self, paths: Sequence[str]) -> None:
        """Collects those files that are not yet.

        Args:
            paths: The files.
        """
        new = [path for path in paths if path not in self._collected]
        if new:
            self._collected.update(new)
            self._config.args = new
            self._config.hook.pytest_collection(session=self._session)
            for item in self._session.items:
                self._items.setdefault(item.nodeid, item)

    def captures(self) -> dict[str, int]:
        """Returns the descriptors of the files into which pytest captures, if it does.

        The parent opens them, too: what a test has written before it killed the process is there.
        """
        manager: Any = self._config.pluginmanager.getplugin("capturemanager")
        streams: Any = getattr(manager, "_global_capturing", None)
        found = {}
        for name, attribute in (("stdout", "out"), ("stderr", "err")):
            file: Any = getattr(getattr(streams, attribute, None), "tmpfile", None)
            with contextlib.suppress(AttributeError, OSError):  # captured in memory, or not at all
                found[name] = file.fileno()
        return found

    def run(self, nodeid: str, following: str | None, failed: int) -> Message:
        """Runs an item; returns its reports, and whether the session is to end.

        Args:
            nodeid: The item.
            following: The item that runs next, here or elsewhere; None if none does here.
            failed: How many tests have failed in the whole session.
        """
        item = self._items.get(nodeid)
        if item is None:
            why = "".join(f"\n{line}" for line in self._recorder.refused)
            return {"missing": f"the worker process cannot collect this test{why}"}
        self._session.testsfailed = failed
        ended: Message = {}
        self._tear_down_for(item, item)
        self.last = item
        try:
            after = None if following is None else self._items.get(following)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        except pytest.exit.Exception as exit_:
            ended = {"exit": exit_.msg, "returncode": exit_.returncode}
        except KeyboardInterrupt:
            ended = {"interrupted": True}
        if self._session.shouldstop:
            ended["shouldstop"] = str(self._session.shouldstop)
        return {**self._recorder.take(), **ended}

    def _tear_down_for(self, item: pytest.Item | None, blamed: pytest.Item) -> None:
        """Tears down what is left of earlier tests, and a test does not need.

        Args:
            item: The test; None if there is none.
            blamed: The test whose report tells a failure.
        """
        call = pytest.CallInfo.from_call(
            lambda: self._session._setupstate.teardown_exact(item), "teardown"
        )
        if call.excinfo is not None:
            report = pytest.TestReport.from_item_and_call(blamed, call)
            blamed.ihook.pytest_runtest_logreport(report=report)

    def finish(self) -> Message:
        """Ends the session; returns the report of its fixtures' end, if that fails."""
        self._recorder.take()
        if self.last is not None:
            self._tear_down_for(None, self.last)
        told = self._recorder.take()
        hook = self._config.hook
        hook.pytest_runtestloop(session=self._session)
        hook.pytest_sessionfinish(session=self._session, exitstatus=self._session.exitstatus)
        self._config._ensure_unconfigure()
        return {"reports": told["reports"]}


@contextlib.contextmanager
def _no_terminal() -> Iterator[None]:
    """Drops the output of this pytest session: the parent reports the tests."""
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the session
    with contextlib.redirect_stdout(nowhere):
        yield


def _plain(report: Mapping[str, Any] | None) -> Message:
    """Returns a report with JSON values alone; values of users' properties may be anything."""
    plain: Message = json.loads(json.dumps(report, default=str))
    return plain


_HOSTS: Final[list[_Host]] = []


def _collect(request: Message) -> Message:
    if not _HOSTS:
        _HOSTS.append(_Host(request))
    _HOSTS[0].collect(request["paths"])
    return {"captures": _HOSTS[0].captures()}


def _item(request: Message) -> Message:
    return _HOSTS[0].run(request["nodeid"], request["following"], request["failed"])


def _finish(_request: Message) -> Message:
    return _HOSTS.pop().finish()


HANDLERS: Final = {"collect": _collect, "item": _item, "finish": _finish}


def stacks() -> str:
    """Returns where each rank of the test that runs now waits, see `serving.serve`."""
    running = _HOSTS[0].last if _HOSTS else None
    harness = getattr(running, "funcargs", {}).get("kernbench")
    return "" if harness is None else stacks_of(harness.contexts)
