"""What an annotation of a schema may say beyond its type.

A schema is a tree of frozen dataclasses. Quantities are limited by default, so that a file with an
absurd size is refused before the first allocation.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from kernbench.units import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    FLOP_RATE_UNITS,
    FREQUENCY_UNITS,
    PS_PER_S,
    TIME_UNITS,
    Bandwidth,
    Bytes,
    FlopRate,
    Frequency,
    Ps,
    Rate,
    Units,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_frequency,
    parse_time,
)

T = TypeVar("T")
Names = tuple[str, ...]
"""Names of fields and keys of mappings that lead from a dataclass to a value inside."""

MAX_TIME: Final = 1000 * PS_PER_S
MAX_BYTES: Final = 10**18
MAX_BANDWIDTH: Final = 10**15
MAX_FLOP_RATE: Final = 10**21
MAX_FREQUENCY: Final = 10**12


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive limits of a number or a quantity, in its base unit; for use in `Annotated`.

    Attributes:
        lo: Smallest allowed value.
        hi: Largest allowed value.
    """

    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Bare:
    """A quantity may also be a whole number without a unit, in its base unit; in `Annotated`."""


@dataclass(frozen=True, slots=True)
class Formerly:
    """The old name of a key, which files may still use (F16); for use in `Annotated`."""

    name: str


@dataclass(frozen=True, slots=True)
class Changes(Generic[T]):
    """Values that replace some values of a dataclass instance.

    In an annotation `Changes[X]` reads a mapping with any of the fields of `X`. Mappings inside are
    changed key by key, at any depth; lists are changed as a whole.

    Attributes:
        values: New values, by the names that lead to them.
    """

    values: Mapping[Names, Any]

    def applied(self, base: T) -> T:
        """Returns the base with these values in place of its own.

        Args:
            base: An instance in which every changed value has a place, see `unknown`.
        """
        changed: T = _changed(base, self.values)
        return changed

    def unknown(self, base: T) -> Iterator[Names]:
        """Yields the names of changed values for which the base has no place.

        Names are cut after the first one that the base lacks. A base lacks an optional part that is
        None, and a key that its mapping does not have.

        Args:
            base: The instance to change.
        """
        for names in self.values:
            part: Any = base
            for depth, name in enumerate(names):
                if part is None or (isinstance(part, Mapping) and name not in part):
                    yield names[: depth + 1]
                    break
                part = value_at(part, (name,))

    def but_for(self, base: T) -> "Changes[T]":
        """Returns only the values that differ from the values of the base."""
        return Changes(
            {names: value for names, value in self.values.items() if value_at(base, names) != value}
        )


def value_at(base: Any, names: Names) -> Any:
    """Returns the value to which names lead from a dataclass or a mapping."""
    for name in names:
        base = base[name] if isinstance(base, Mapping) else getattr(base, name)
    return base


def _changed(base: Any, values: Mapping[Names, Any]) -> Any:
    if () in values:
        return values[()]
    inside: dict[str, dict[Names, Any]] = {}
    for (name, *rest), value in values.items():
        inside.setdefault(name, {})[tuple(rest)] = value
    new = {name: _changed(value_at(base, (name,)), found) for name, found in inside.items()}
    if isinstance(base, Mapping):
        return {**base, **new}
    return replace(base, **new) if new else base


@dataclass(frozen=True, slots=True)
class Quantity:
    """How a type with a unit is written.

    Attributes:
        what: Name of the quantity in a sentence, such as `a time`.
        example: A text of the quantity, such as `1.2 us`.
        parse: Turns a text into a value in the base unit.
        units: Units that a text may use.
        limits: Limits of a field whose annotation has no `Range`.
    """

    what: str
    example: str
    parse: Callable[[str], int | Rate]
    units: Units
    limits: Range


# Keys are classes and NewTypes, as annotations of schemas name them.
QUANTITIES: Final[Mapping[object, Quantity]] = {
    Ps: Quantity("a time", "1.2 us", parse_time, TIME_UNITS, Range(0, MAX_TIME)),
    Bytes: Quantity("a size", "32 MiB", parse_bytes, BYTE_UNITS, Range(1, MAX_BYTES)),
    Bandwidth: Quantity(
        "a bandwidth", "900 GB/s", parse_bandwidth, BANDWIDTH_UNITS, Range(1, MAX_BANDWIDTH)
    ),
    FlopRate: Quantity(
        "a rate", "6.2 TFLOP/s", parse_flop_rate, FLOP_RATE_UNITS, Range(1, MAX_FLOP_RATE)
    ),
    Frequency: Quantity(
        "a frequency", "1.98 GHz", parse_frequency, FREQUENCY_UNITS, Range(1, MAX_FREQUENCY)
    ),
}
