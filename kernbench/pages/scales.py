"""Ticks of axes: which values are labelled, and how."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from kernbench.units import format_bytes, format_time

_STEPS: Final = (1, 2, 5)
_MOST_TICKS: Final = 8
_DECADE: Final = 10


def time_ticks(start: int, end: int, most: int = 6) -> list[tuple[float, str]]:
    """Returns ticks of a linear axis of time: places from 0 to 1, and labels.

    Args:
        start: Begin of the axis in picoseconds.
        end: End of the axis; after its begin.
        most: Most ticks.
    """
    span = end - start
    step = next(
        factor * 10**power
        for power in range(20)
        for factor in _STEPS
        if span // (factor * 10**power) < most
    )
    first = -(-start // step) * step
    return [
        ((time - start) / span, format_time(time) if time else "0")
        for time in range(first, end + 1, step)
    ]


def size_axis(sizes: Sequence[float]) -> tuple[float, float, list[tuple[float, str]]]:
    """Returns a logarithmic axis of bytes: both ends, and ticks at powers of two.

    Args:
        sizes: Sizes that the axis shows; above 0.
    """
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    if low == high:
        low, high = low - 1, high + 1
    step = -(-(high - low) // _MOST_TICKS)
    ticks = [(2.0**power, format_bytes(2**power)) for power in range(max(low, 0), high + 1, step)]
    return 2.0**low, 2.0**high, ticks


def rate_axis(rates: Sequence[float]) -> tuple[float, float, list[tuple[float, str]]]:
    """Returns a logarithmic axis of numbers: both ends, and ticks at 1, 2 and 5 of each decade.

    Args:
        rates: Numbers that the axis shows; above 0.
    """
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    series = [factor * 10.0**power for power in range(low, high + 1) for factor in _STEPS]
    begin = max(value for value in series if value <= min(rates) * (1 + 1e-9))
    end = min(value for value in series if value >= max(rates) * (1 - 1e-9))
    if begin == end:
        begin, end = begin / 2, end * 2
    inside = [value for value in series if begin <= value <= end]
    if len(inside) > _MOST_TICKS:
        inside = [10.0**power for power in range(low, high + 1) if begin <= 10.0**power <= end]
    step = -(-len(inside) // _MOST_TICKS) or 1
    return begin, end, [(value, f"{value:g}") for value in inside[::step]]


def number_axis(
    values: Sequence[float],
) -> tuple[float, float, list[tuple[float, str]], Callable[[float, float, float], float]]:
    """Returns an axis of numbers: both ends, ticks, and what says the place of a value.

    It is logarithmic if the values span a decade, and else linear, from 0.

    Args:
        values: Numbers that the axis shows; above 0.
    """
    if max(values) >= _DECADE * min(values):
        return *rate_axis(values), log_place
    most = max(values) * (1 + 1e-9)
    power = 10.0 ** math.floor(math.log10(most))
    step = next(
        factor * power / 10 for factor in (2, 5, 10, 20, 50) if most <= 0.6 * factor * power
    )
    count = math.ceil(most / step - 1e-6)
    ticks = [(step * number, f"{step * number:.6g}") for number in range(count + 1)]
    return 0.0, step * count, ticks, _linear_place


def _linear_place(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def log_place(value: float, low: float, high: float) -> float:
    """Returns the place of a value on a logarithmic axis, from 0 to 1.

    Args:
        value: The value; above 0.
        low: Begin of the axis; above 0.
        high: End of the axis; above its begin.
    """
    return math.log(value / low) / math.log(high / low)
