"""The summary of a session: what its tests have simulated, and what was found."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest

from kernbench.testing import measures
from kernbench.units import format_time

SLOWEST: Final = 10
"""How many of the slowest tests are listed."""

_PS: Final = 10**12


class Measured(NamedTuple):
    """What a test has simulated.

    Attributes:
        nodeid: The test.
        worlds: How many worlds.
        wall_s: Seconds of wall time in which they ran.
        sim_s: Their simulated seconds.
        leaks: What they have left behind; empty if nothing.
        schedule: How the test depends on its schedule; empty if that was not found.
        retries: How many further processes were asked.
    """

    nodeid: str
    worlds: int
    wall_s: float
    sim_s: float
    leaks: str
    schedule: str
    retries: int


class Summary:
    """Plugin that gathers the properties of reports, and tells them at the end."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gathers the properties of a test; its last report has them all."""
        own = {name: value for name, value in report.user_properties if name.startswith("kb_")}
        if own:
            self._told[report.nodeid] = own

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the summary."""
        terminalreporter.section("kernbench")
        for line in lines_of([_measured(*each) for each in self._told.items()]):
            terminalreporter.write_line(line)


def lines_of(tests: Sequence[Measured]) -> list[str]:
    """Returns the lines of the summary.

    Args:
        tests: What tests have simulated, in any order.
    """
    simulated = [test for test in tests if test.worlds]
    wall_s, sim_s = sum(t.wall_s for t in tests), sum(t.sim_s for t in tests)
    lines = [
        f"{_many(len(simulated), 'case')}, {_many(sum(t.worlds for t in tests), 'world')}: "
        f"{_wall(wall_s)} of wall time, {_simulated(sim_s)} simulated"
    ]
    lines += _slowest("wall time", simulated, lambda test: test.wall_s)
    lines += _slowest("simulated time", simulated, lambda test: test.sim_s)
    lines += _found("leaks", [(t.nodeid, t.leaks) for t in tests if t.leaks])
    lines += _found("flaky schedules", [(t.nodeid, t.schedule) for t in tests if t.schedule])
    lines += _found("retries", [(t.nodeid, str(t.retries)) for t in tests if t.retries])
    return lines


def _measured(nodeid: str, told: dict[str, Any]) -> Measured:
    return Measured(
        nodeid,
        told.get(measures.WORLDS, 0),
        told.get(measures.WALL, 0.0),
        told.get(measures.SIMULATED, 0.0),
        told.get(measures.LEAKS, ""),
        told.get(measures.SCHEDULE, ""),
        told.get(measures.RETRIES, 0),
    )


def _slowest(what: str, tests: Sequence[Measured], key: Callable[[Measured], float]) -> list[str]:
    slowest = sorted(tests, key=lambda test: (-key(test), test.nodeid))[:SLOWEST]
    if not slowest:
        return []
    lines = [f"slowest by {what}", f"  {'wall':>10} {'simulated':>10}  test"]
    return lines + [
        f"  {_wall(test.wall_s):>10} {_simulated(test.sim_s):>10}  {test.nodeid}"
        for test in slowest
    ]


def _found(what: str, found: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"{what}: {len(found) or 'none'}"]
    for nodeid, text in sorted(found):
        first, *more = text.splitlines()
        lines += [f"  {nodeid}: {first}", *(f"    {line}" for line in more)]
    return lines


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wall(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _simulated(seconds: float) -> str:
    return format_time(round(seconds * _PS))
