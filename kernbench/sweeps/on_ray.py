"""Runs on Ray, on this machine or a cluster; Ray is an extra: `kernbench[ray]`.

The process of the sweep never speaks to Ray itself: a driver of Ray ends its process when the
cluster goes. A child does, see `ray_driver`, and its end is an error like any other.
"""

import os
import socket
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from kernbench.errors import UsageError
from kernbench.scripts.failures import failure_of, report
from kernbench.sweeps.local import RunDiedError
from kernbench.sweeps.records import Record, Run
from kernbench.workers.failing import CaseFailed, WorkerError
from kernbench.workers.worker import Worker

DRIVER: Final = "kernbench.sweeps.ray_driver"

_START_S: Final = 180.0
"""Seconds of wall time in which Ray must be there; a first start reads hundreds of megabytes."""

_CONNECT_S: Final = 10.0
"""Seconds in which an address must answer; Ray itself would try for more than a minute."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """Gives runs to Ray, one task a run; an executor of sweeps.

    Every task runs what `local.Local` runs, in processes of the node that it is on, so that records
    are the same. A task whose worker or node goes is given to another, once.

    Attributes:
        address: Of a cluster, as `ray.init` takes it, such as `10.0.0.1:6379` or `auto`; None to
            start Ray on this machine.
        jobs: Most tasks at a time; None for as many as Ray has CPUs. On this machine it is also the
            number of CPUs that Ray is given.
        timeout_s: Seconds of wall time that a run may take; None for any.
        driver: Module of the process that speaks to Ray.
    """

    address: str | None = None
    jobs: int | None = None
    timeout_s: float | None = None
    driver: str = DRIVER

    def check(self) -> None:
        """Finds out, before anything runs, whether Ray is installed.

        Raises:
            UsageError: If it is not.
        """
        if find_spec("ray") is None:
            raise UsageError("--on ray needs Ray, which is not installed", hint="pip install ray")

    def __call__(self, runs: Iterable[Run]) -> Generator[Record, None, None]:
        """Yields the records of runs as they come.

        Args:
            runs: The runs, in the order in which they begin.

        Raises:
            UsageError: If Ray is not installed, cannot be reached, has other files or another
                kernbench than this process, or goes before the end.
        """
        if self.driver == DRIVER:
            self.check()
        if self.address is not None:
            _check_answers(self.address)
        with Worker(self.driver, environment=_environment(self.address), echo=False) as driver:
            cluster = {"address": self.address, "jobs": self.jobs, "folder": os.getcwd()}
            slots = _asked(driver, "start", cluster, _START_S)["slots"]
            under_way: dict[str, Run] = {}
            left = iter(runs)
            while True:
                while len(under_way) < slots and (run := next(left, None)) is not None:
                    under_way[run.key] = run
                    asked = {"key": run.key, "spec": run.spec.to_json(), "limit_s": self.timeout_s}
                    _asked(driver, "submit", asked)
                if not under_way:
                    break
                response = _asked(driver, "next")
                slots = response["slots"]
                yield _record(under_way.pop(response["key"]), response)
            _asked(driver, "stop")


def _check_answers(address: str) -> None:
    """Raises a UsageError if nobody listens at `HOST:PORT`; other forms are left to Ray."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"Ray at {address} cannot be reached: {error}",
            hint="`ray status` says where a cluster is; without an address, Ray starts here",
        ) from None


def _environment(address: str | None) -> dict[str, str]:
    """Returns the variables of the driver, and of Ray if it starts on this machine."""
    more = {"RAY_USAGE_STATS_ENABLED": "0"}
    if address is None:
        # So that its workers import what this process does.
        more["PYTHONPATH"] = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, **more}


def _asked(
    driver: Worker,
    op: str,
    fields: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Returns the response of the driver.

    Raises:
        UsageError: If Ray refuses, or is gone.
    """
    try:
        response = driver.call(op, timeout_s, **(fields or {}))
    except CaseFailed as failed:
        lines = str(failed.response.get("error", "")).strip().splitlines()
        raise _gone(lines[-1:]) from None
    except WorkerError as error:
        lines = error.tail.strip().splitlines()[-3:]
        raise _gone([error.summary, *error.facts, *lines]) from None
    refused = response.get("refused")
    if refused is not None:
        raise UsageError(refused["summary"], refused["facts"], hint=refused["hint"])
    return response


def _gone(facts: list[str]) -> UsageError:
    return UsageError(
        "Ray has gone before the end of the sweep",
        facts,
        hint="what was done is kept; --resume goes on from there",
    )


def _record(run: Run, response: dict[str, Any]) -> Record:
    """Returns the record of a run from the response of the driver."""
    if "record" in response:
        return replace(Record.from_json(response["record"]), run=run)
    error = RunDiedError(
        "the worker of Ray has ended twice while the run took place", response["died"]
    )
    failure = {**failure_of(error, run.spec), "output": ""}
    return Record(run=run, ok=False, failure=failure, report=report(error))
