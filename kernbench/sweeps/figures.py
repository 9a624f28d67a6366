"""Documents of results as figures, each with what tells it from the others.

Nothing here knows the bench. What a number is, its key says: `time_us`, `us`, `busbw_gb_per_s` and
`sent_bytes` end in units. Elements of lists are known by their texts (`type`, `redop`, `name`), by
what stands first in them (`size_bytes`, `rank`) and, where these do not tell them apart, by as many
more of their numbers, in order, as do.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Final, Literal

from kernbench.report import RankBreakdown
from kernbench.units import TIME_UNITS

Kind = Literal["time", "rate", "bytes", "other"]
"""What a number is: a time, units a second, bytes, or a number of any other kind."""

Place = tuple[tuple[str, ...], tuple[str, ...]]
"""The row, as labels of elements of lists; and keys within its innermost element."""

_PARTS: Final = frozenset(
    each.name.removesuffix("_ps")
    for each in fields(RankBreakdown)
    if each.name.endswith("_ps") and each.name != "span_ps"
)
"""What a breakdown splits a time into: compute, exposed, copy, idle, and so on."""

_OUTCOMES: Final = frozenset({"algorithm", "clock", "limit", "machine"})
"""Texts that do not say what a row is about, but how it came out, or where."""

_VERSION: Final = "schema_version"

_PLAIN: Final = ((), ("results",), ("rows",))
"""Last keys of lists that tell nothing of their elements."""


@dataclass(slots=True)
class Found:
    """What a document holds, by place.

    Attributes:
        figures: Every finite number.
        settings: Everything else, and numbers of which a key does not say that they are a result.
    """

    figures: dict[Place, int | float] = field(default_factory=dict)
    settings: dict[Place, Any] = field(default_factory=dict)


def kind_of(keys: Sequence[str]) -> Kind:
    """Returns what a number is, by the innermost of its keys that ends in a unit."""
    for key in reversed(keys):
        unit = key.partition("[")[0].rpartition("_")[2]
        if key.endswith("_per_s"):
            return "rate"
        if unit in TIME_UNITS:
            return "time"
        if unit == "bytes":
            return "bytes"
    return "other"


def is_whole_time(keys: Sequence[str]) -> bool:
    """Returns whether a number is a simulated time, and no part of a breakdown of one."""
    stem, _, unit = keys[-1].partition("[")[0].rpartition("_")
    name = stem if unit in TIME_UNITS else unit
    return kind_of(keys) == "time" and name not in _PARTS and name != "wall"


def row_text(row: Sequence[str]) -> str:
    """Returns the text of a row, such as `all_reduce / size_bytes=1024 float sum`."""
    return " / ".join(row)


def once(label: str, taken: Container[str]) -> str:
    """Returns a label that is not taken: itself, or with a number from 2."""
    unique, number = label, 2
    while unique in taken:
        unique, number = f"{label} #{number}".lstrip(), number + 1
    return unique


def find(one: Any, other: Any, row: tuple[str, ...] = ()) -> tuple[Found, Found]:
    """Returns what two documents of one run hold; elements of lists have the same labels in both.

    Args:
        one: Plain values.
        other: Plain values.
        row: Labels of what the documents are about.
    """
    found = Found(), Found()
    _walk(one, other, (row, ()), found)
    return found


def _walk(one: Any, other: Any, place: Place, found: tuple[Found, Found]) -> None:
    """Notes what two values at one place hold; None for a value that is not there."""
    row, keys = place
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        sides = [each if isinstance(each, Mapping) else {} for each in (one, other)]
        for key in dict.fromkeys([*sides[0], *sides[1]]):
            _walk(sides[0].get(key), sides[1].get(key), (row, (*keys, str(key))), found)
    elif _has_mappings(one) or _has_mappings(other):
        labelled = _labelled(_mappings(one), _mappings(other))
        around = [".".join(keys)] if keys[-1:] not in _PLAIN else []
        for label in dict.fromkeys([*labelled[0], *labelled[1]]):
            inner = (*row, *around, *([label] if label else []))
            _walk(labelled[0].get(label), labelled[1].get(label), (inner, ()), found)
    else:
        for value, side in zip((one, other), found, strict=True):
            _note(value, place, side)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _has_mappings(value: Any) -> bool:
    return bool(_mappings(value))


def _note(value: Any, place: Place, found: Found) -> None:
    """Notes a value that holds no mapping."""
    row, keys = place
    if value is None or not keys:
        return
    kind = kind_of(keys)
    if _is_number(value):
        found.figures[place] = value
    elif isinstance(value, list) and kind == "time":
        for number, each in enumerate(value):
            _note(each, (row, (*keys[:-1], f"{keys[-1]}[{number}]")), found)
    if kind in {"bytes", "other"}:
        found.settings[place] = value


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _labelled(*lists: list[Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """Returns the elements of lists by what tells them apart, which is the same in all lists."""
    every = [element for one in lists for element in one]
    known = dict.fromkeys(
        key for each in every for key, value in each.items() if _names(key, value)
    )
    texts = {key for key in known if any(isinstance(each.get(key), str) for each in every)}
    first = {next(iter(each), "") for each in every} - {_VERSION}
    chosen = [key for key in known if key in texts | first]
    for key in known:
        if key not in chosen and key != _VERSION and any(_repeats(one, chosen) for one in lists):
            chosen.append(key)
    labelled = []
    for one in lists:
        by_label: dict[str, Mapping[str, Any]] = {}
        for each in one:
            by_label[once(_label(each, chosen), by_label)] = each
        labelled.append(by_label)
    return labelled


def _names(key: str, value: Any) -> bool:
    """Returns whether a value may say what a row is about."""
    if isinstance(value, str):
        return key not in _OUTCOMES
    return _is_number(value) and kind_of([key]) in {"bytes", "other"}


def _repeats(elements: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> bool:
    labels = Counter(_label(each, chosen) for each in elements)
    return any(number > 1 for number in labels.values())


def _label(element: Mapping[str, Any], chosen: Sequence[str]) -> str:
    values = {key: element[key] for key in chosen if element.get(key) not in {None, ""}}
    return " ".join(v if isinstance(v, str) else f"{key}={v}" for key, v in values.items())
