"""What an annotation of a schema may say beyond its type.

A schema is a tree of frozen dataclasses. Quantities are limited by default, so that no file can ask
for more than anything could hold before the first allocation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kernbench.units import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    FLOP_RATE_UNITS,
    PS_PER_S,
    TIME_UNITS,
    Bandwidth,
    Bytes,
    FlopRate,
    Ps,
    Rate,
    Units,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_time,
)

MAX_TIME: Final = 1000 * PS_PER_S
MAX_BYTES: Final = 10**18
MAX_BANDWIDTH: Final = 10**15
MAX_FLOP_RATE: Final = 10**21


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive limits of a number or a quantity, in its base unit; for use in `Annotated`."""

    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Formerly:
    """The old name of a key, which files may still use (F16); for use in `Annotated`."""

    name: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """How a type with a unit is written.

    Attributes:
        what: Its name in a sentence.
        example: A text of it.
        parse: Text to value.
        units: The units a text may use.
        limits: Limits where the schema gives none.
    """

    what: str
    example: str
    parse: Callable[[str], int | Rate]
    units: Units
    limits: Range


# The keys are what stands in annotations: classes and NewTypes.
QUANTITIES: Final[Mapping[object, Quantity]] = {
    Ps: Quantity("a time", "1.2 us", parse_time, TIME_UNITS, Range(0, MAX_TIME)),
    Bytes: Quantity("a size", "32 MiB", parse_bytes, BYTE_UNITS, Range(1, MAX_BYTES)),
    Bandwidth: Quantity(
        "a bandwidth", "900 GB/s", parse_bandwidth, BANDWIDTH_UNITS, Range(1, MAX_BANDWIDTH)
    ),
    FlopRate: Quantity(
        "a rate", "6.2 TFLOP/s", parse_flop_rate, FLOP_RATE_UNITS, Range(1, MAX_FLOP_RATE)
    ),
}
