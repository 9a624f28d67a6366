"""What the command line of `kernbench run` says, and how to say it again."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernbench.cli import defaults
from kernbench.sim_engine.engine import Fidelity


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; see `kernbench run --help`."""

    bench: str
    arguments: tuple[str, ...]
    topology: str
    ccl: Path | None
    overrides: tuple[str, ...]
    trace: Path | None
    flight_recorder: Path | None
    json: Path | None
    breakdown: bool
    data: bool
    fidelity: Fidelity
    seed: int
    eager_limit: int
    watchdog: float
    quiet: bool
    verbose: bool
    explore: int = 0
    schedule: tuple[int, ...] | None = None


def command(options: Options, schedule: str) -> str:
    """Returns a command that repeats a run, without what only writes files or prints more.

    Args:
        options: What the command line said.
        schedule: What receives from any source took; 0 for the first to come.
    """
    return shlex.join(["kernbench", "run", options.bench, *_said(options, schedule)])


def _said(options: Options, schedule: str) -> Iterator[str]:
    given = {
        "topology": "" if options.topology == defaults.MACHINE else options.topology,
        "ccl": options.ccl,
        "data": "" if options.data else "off",
        "fidelity": "" if options.fidelity == "kernel" else options.fidelity,
        "eager_limit": options.eager_limit,
        "watchdog": "" if options.watchdog == defaults.WATCHDOG_S else options.watchdog or "0",
        "explore": options.explore if schedule == "0" else 0,
    }
    for name, value in given.items():
        if value:
            yield from (f"--{name.replace('_', '-')}", str(value))
    for text in options.overrides:
        yield from ("--set", text)
    # Also where it is the usual one: a report is to be repeatable by what it says.
    yield from ("--seed", str(options.seed))
    if schedule != "0":
        yield from ("--schedule", schedule)
    if options.arguments:
        yield from ("--", *options.arguments)
