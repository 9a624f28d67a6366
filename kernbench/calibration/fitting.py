"""Fits numbers of a machine on half of the cells that tell them, and judges them on the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any, Final

from kernbench.calibration.cells import Cell, Machine
from kernbench.calibration.fits import BOUNDS, Fit
from kernbench.calibration.values import amount, get, has_field, path_of, put
from kernbench.errors import UsageError
from kernbench.topology.spec import SystemSpec

CELLS_A_NUMBER: Final = 5
"""A law has fewer numbers than a fifth of its cells; those that are too many stay the base's."""

_GOOD: Final = 1e-4
_WIDEST: Final = 2.0
"""Logarithm of the most by which a number leaves the base's."""

_HELD: Final = 0.1
"""What leaving the base's number by a factor of e costs, in errors of one cell: few cells that the
number hardly moves leave it as it is."""


_GAIN: Final = 0.002
"""By how much the mean error on cells kept aside has to be less than the base's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fit.

    Attributes:
        fit: The fit.
        numbers: The numbers of the base and the new ones; equal where nothing was fitted.
        cells: How many cells told them, and how many are kept aside.
        errors: Mean absolute error on the cells of the fit, and on those kept aside.
        before: Mean absolute error of the base on those kept aside.
        missing: Why nothing was fitted; empty if something was.
    """

    fit: Fit
    numbers: Sequence[tuple[int, int]] = ()
    cells: tuple[int, int] = (0, 0)
    errors: tuple[float, float] = (0.0, 0.0)
    before: float = 0.0
    missing: str = ""


def minimizer() -> Callable[..., Any]:
    """Returns what minimises, of SciPy.

    Raises:
        UsageError: If SciPy is not installed.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        hint = "pip install scipy"
        raise UsageError("calibrate needs SciPy, which is not installed", hint=hint) from error
    found: Callable[..., Any] = minimize
    return found


def mean_error(cells: Sequence[Cell], system: SystemSpec, event_us: float) -> float:
    """Returns the mean of `|predicted / measured - 1|` of cells; 0 of none.

    Args:
        cells: What was measured.
        system: The machine.
        event_us: What an event pair reads with nothing between.
    """
    machine = Machine(system)
    return fmean([abs(cell.error(machine, event_us)) for cell in cells] or [0.0])


def fitted(
    fit: Fit, system: SystemSpec, cells: Sequence[Cell], event_us: float
) -> tuple[SystemSpec, Outcome]:
    """Returns a machine with the numbers of a fit, and how well they do.

    Numbers that are hardly better than the machine's on cells kept aside are not taken.

    Powell's method on the logarithms of the numbers, from those of the machine: it needs no
    derivatives, and times are steps of their numbers (tiles, waves, whole percents).

    Args:
        fit: The numbers and their lines.
        system: The machine.
        cells: Of all tables.
        event_us: What an event pair reads with nothing between.
    """
    minimize = minimizer()
    told = [cell for cell in cells if fit.holds(cell)]
    ours, aside = ([c for c in told if c.aside is kept] for kept in (False, True))
    places = [
        [path for text in number.split("+") if has_field(system, path := path_of(text))]
        for number in fit.numbers
    ]
    if not (ours and aside) or not all(places):
        missing = "no such number in the machine" if told else f"too few lines in {fit.table}.csv"
        return system, Outcome(fit, missing=missing)
    places = places[: (len(told) - 1) // CELLS_A_NUMBER]
    if not places:
        return system, Outcome(fit, missing=f"{len(told)} cells are too few")
    old = [amount(get(system, paths[0])) for paths in places]

    limits = [tuple(map(log, BOUNDS[str(paths[0][-1])])) for paths in places]
    begin = [
        min(max(log(max(one, 1)), least), most)
        for one, (least, most) in zip(old, limits, strict=True)
    ]
    near = [
        (max(least, at - _WIDEST), min(most, at + _WIDEST))
        for at, (least, most) in zip(begin, limits, strict=True)
    ]

    def machine(logs: Sequence[float]) -> SystemSpec:
        found = system
        for paths, each, first in zip(places, logs, begin, strict=True):
            for path in paths:
                least, most = BOUNDS[str(path[-1])]
                number = exp(each - first) * max(1, amount(get(system, path)))
                found = put(found, path, min(max(number, least), most))
        return found

    def loss(logs: Sequence[float]) -> float:
        left = sum(abs(a - b) for a, b in zip(logs, begin, strict=True))
        return mean_error(ours, machine(logs), event_us) + _HELD * left / len(ours)

    result = minimize(
        loss, begin, method="Powell", bounds=near, options={"xtol": 0.01, "ftol": _GOOD}
    )
    best = machine(result.x) if result.fun < loss(begin) else system
    before = mean_error(aside, system, event_us)
    if mean_error(aside, best, event_us) > before - _GAIN:
        best = system
    new = [amount(get(best, paths[0])) for paths in places]
    errors = mean_error(ours, best, event_us), mean_error(aside, best, event_us)
    return best, Outcome(
        fit,
        list(zip(old, new, strict=True)),
        (len(ours), len(aside)),
        errors,
        before,
    )
