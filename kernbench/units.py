"""Quantities with units: integer picoseconds, bytes, and rates kept as exact integers.

Time is an integer number of picoseconds everywhere inside kernbench. Text is converted where it
enters, and always rounded up, so that sums do not depend on their grouping (ADR 0001).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NewType

Ps = NewType("Ps", int)
"""A time or duration in picoseconds."""

Bytes = NewType("Bytes", int)
"""A size in bytes."""

PS_PER_S: Final = 10**12
PS_PER_US: Final = 10**6
PS_PER_NS: Final = 10**3

Units = Mapping[str, int] | Mapping[str, Fraction]
"""Scale of each unit that a text may use."""

TIME_UNITS: Final = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
BYTE_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
BANDWIDTH_UNITS: Final = {
    **{f"{unit}/s": Fraction(scale) for unit, scale in BYTE_UNITS.items()},
    **{f"{p}b/s": Fraction(s, 8) for p, s in (("K", 10**3), ("M", 10**6), ("G", 10**9))},
}
FLOP_RATE_UNITS: Final = {
    f"{p}FLOP/s": s for p, s in (("", 1), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15))
}

FREQUENCY_UNITS: Final = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}

# ASCII and at most 40 digits: int() refuses very long texts, and no quantity needs more digits.
_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z][A-Za-z/]*)"
)


class UnitError(ValueError):
    """A text is no quantity of the expected unit; the message gives an example of one."""


@dataclass(frozen=True, slots=True, order=True)
class Rate:
    """An exact integer rate.

    Attributes:
        per_second: Units of work a second.
    """

    per_second: int

    def duration_ps(self, amount: int) -> int:
        """Returns the picoseconds that `amount` units of work take, rounded up."""
        return -(-amount * PS_PER_S // self.per_second)


class Bandwidth(Rate):
    """A `Rate` in bytes a second."""

    __slots__ = ()


class FlopRate(Rate):
    """A `Rate` in floating-point (or elementwise) operations a second."""

    __slots__ = ()


class Frequency(Rate):
    """A `Rate` in cycles a second."""

    __slots__ = ()


def _parse(text: str, units: Units, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UnitError(f"expected a number and a unit, such as {example!r}; got {text!r}")
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(units)
        raise UnitError(f"unknown unit {unit!r} in {text!r}; known here: {known}")
    exact = Fraction(number) * units[unit]
    return -(-exact.numerator // exact.denominator)


def parse_time(text: str) -> Ps:
    """Returns the picoseconds of a text such as `1.2 us`, rounded up.

    Raises:
        UnitError: If the text is no number with a unit of time.
    """
    return Ps(_parse(text, TIME_UNITS, "1.2 us"))


def parse_bytes(text: str) -> Bytes:
    """Returns the bytes of a text such as `32 MiB`, rounded up.

    Raises:
        UnitError: If the text is no number with a unit of size.
    """
    return Bytes(_parse(text, BYTE_UNITS, "32 MiB"))


def parse_bandwidth(text: str) -> Bandwidth:
    """Returns the rate of a text such as `900 GB/s` or `400 Gb/s` (bits), rounded up.

    Raises:
        UnitError: If the text is no number with a unit of bandwidth.
    """
    return Bandwidth(_parse(text, BANDWIDTH_UNITS, "900 GB/s"))


def parse_flop_rate(text: str) -> FlopRate:
    """Returns the rate of a text such as `6.2 TFLOP/s`, rounded up.

    Raises:
        UnitError: If the text is no number with a unit of operations a second.
    """
    return FlopRate(_parse(text, FLOP_RATE_UNITS, "6.2 TFLOP/s"))


def parse_frequency(text: str) -> Frequency:
    """Returns the rate of a text such as `1.98 GHz`, rounded up.

    Raises:
        UnitError: If the text is no number with a unit of frequency.
    """
    return Frequency(_parse(text, FREQUENCY_UNITS, "1.98 GHz"))


def format_time(ps: int) -> str:
    """Returns picoseconds as text for people: at most four digits and the largest fitting unit."""
    for unit, scale in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if abs(ps) >= scale:
            return f"{ps / scale:.4g} {unit}"
    return f"{ps} ps"


def format_span(times: Iterable[int]) -> str:
    """Returns the earliest and the latest of some times as text; a single one if they are equal.

    Args:
        times: Times in picoseconds.
    """
    known = sorted(set(times))
    return " to ".join(format_time(ps) for ps in (known[:1] + known[1:][-1:]))


def format_exact(amount: int, units: Units) -> str:
    """Returns an amount in the largest unit that divides it, such as `64 B` or `1 GiB`."""
    unit = max((u for u in units if amount % units[u] == 0), key=lambda u: units[u])
    return f"{amount // units[unit]} {unit}"


def format_bytes(n: int) -> str:
    """Returns a number of bytes as text for people, in binary units."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = BYTE_UNITS[unit]
        if abs(n) >= scale:
            return f"{n / scale:.4g} {unit}"
    return f"{n} B"
