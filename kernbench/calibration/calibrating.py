"""Refits the numbers of a machine from the tables of a folder, stage after stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernbench.calibration.cells import SOURCES, Cell, read_cells
from kernbench.calibration.fits import FITS
from kernbench.calibration.fitting import Outcome, fitted, mean_error, minimizer
from kernbench.calibration.readings import PROPORTIONAL, Reading, event_us, readings
from kernbench.calibration.values import amount, get, has_field, path_of, put
from kernbench.errors import UsageError
from kernbench.topology.spec import SystemSpec

STAGES: Final = (
    *("memory", "elementwise", "rows", "products", "convolutions", "attention"),
    *("collectives", "overlap", "clock", "host"),
)
"""In this order, after the time of an event pair, which all others need."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a number of the new machine is from.

    Attributes:
        table: The table.
        said: What of it, or how near the law that has the number comes to cells kept aside.
        measured: Whether the number follows from the table alone, and not from another machine's.
    """

    table: str
    said: str
    measured: bool = True

    def __str__(self) -> str:
        return f"{self.table}.csv: {self.said}"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A machine and what it is from.

    Attributes:
        system: The machine.
        told: What each measured number is from, by where it stands under `system`.
        outcomes: What came of each fit.
        event_us: What an event pair reads with nothing between, in microseconds.
        unbelieved: Why a number that a table tells was left as the base has it, by where it stands.
        tables: For each table its cells, and the mean errors of the base and of the machine on
            all of them, and of the machine on those kept aside.
    """

    system: SystemSpec
    told: Mapping[str, Told]
    outcomes: Sequence[Outcome]
    event_us: float
    unbelieved: Mapping[str, str]
    tables: Mapping[str, tuple[int, float, float, float]]


def _silent(text: str) -> None:
    del text


def calibrate(folder: Path, base: SystemSpec, say: Callable[[str], None] = _silent) -> Calibrated:
    """Returns a machine whose numbers are refitted wherever the folder has a table for them.

    Args:
        folder: Tables as `measure/` writes them.
        base: Has the numbers that no table tells.
        say: Called with a line for each stage that begins.

    Raises:
        UsageError: If SciPy is not installed, the folder is not there (F11), has no table for any
            number (F11), or something is wrong with a line (F2).
    """
    minimizer()
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", code="F11")
    cells = list(read_cells(folder))
    if not cells:
        expected = ", ".join(f"{name}.csv" for name in SOURCES)
        hint = f"it expects some of {expected}: measure/README.md says how to get them"
        raise UsageError(
            f"{folder}: no table that a number could be fitted on", hint=hint, code="F11"
        )
    found = event_us(folder)
    pair = base.sip.event / 1e6 if found is None else found
    system, told, outcomes, unbelieved = base, {}, [], {}
    if found is not None:
        system = put(system, path_of("sip.event"), 1e6 * found)
        told["sip.event"] = Told("host", "an event pair around a kernel, less the kernel")
    for stage in STAGES:
        say(stage)
        for reading, number in readings(folder, stage, pair).items():
            if not reading.least <= number <= reading.most:
                unbelieved[reading.number] = _unbelieved(reading, number)
            elif has_field(system, path_of(reading.number)):
                system = put(system, path_of(reading.number), number)
                told[reading.number] = Told(reading.table, reading.said)
        for fit in FITS:
            if fit.stage == stage:
                system, outcome = fitted(fit, system, cells, pair)
                outcomes.append(outcome)
                told |= _of(outcome)
    if "host.loop" in told:
        system, of_host = _as_fast(system, base, told)
        told |= of_host
    return Calibrated(system, told, outcomes, pair, unbelieved, _tables(cells, base, system, pair))


def _unbelieved(reading: Reading, number: float) -> str:
    return (
        f"{reading.table}.csv tells {number:.3g} ({reading.said}), "
        f"outside of {reading.least:g} to {reading.most:g}"
    )


def _as_fast(
    system: SystemSpec, base: SystemSpec, told: Mapping[str, Told]
) -> tuple[SystemSpec, dict[str, Told]]:
    """Returns the machine with host times that no line tells, in proportion to `loop`."""
    found: dict[str, Told] = {}
    if base.host.loop is None or system.host.loop is None:
        return system, found
    ratio = system.host.loop / base.host.loop
    for place in PROPORTIONAL:
        path = path_of(place)
        if place not in told and has_field(base, path):
            system = put(system, path, ratio * amount(get(base, path)))
            found[place] = Told("host", f"the base's, x {ratio:.2f} as `loop`", measured=False)
    return system, found


def _of(outcome: Outcome) -> dict[str, Told]:
    if outcome.missing:
        return {}
    _, aside = outcome.cells
    told = Told(outcome.fit.table, f"{100 * outcome.errors[1]:.0f} % of {aside}")
    numbers = outcome.fit.numbers[: len(outcome.numbers)]
    return {place: told for number in numbers for place in number.split("+")}


def _tables(
    cells: Sequence[Cell], base: SystemSpec, system: SystemSpec, pair: float
) -> dict[str, tuple[int, float, float, float]]:
    found = {}
    for name in SOURCES:
        of_it = [cell for cell in cells if cell.table == name]
        aside = [cell for cell in of_it if cell.aside]
        if of_it:
            errors = (mean_error(of_it, each, pair) for each in (base, system))
            found[name] = (len(of_it), *errors, mean_error(aside, system, pair))
    return found  # type: ignore[return-value]
