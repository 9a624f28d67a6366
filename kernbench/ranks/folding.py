"""Texts of many ranks as few: what differs in their own number, device or time is the same."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kernbench.ranks.ranges import folded
from kernbench.units import TIME_UNITS, format_span

_MOST: Final = 4
"""Most forms of one text that are shown, where ranks differ in other numbers."""

_VARYING: Final = re.compile(
    r"(?P<time>(?<![\w.])\d+(?:\.\d+)? (?:ps|ns|us|ms|s)\b)"
    r"|(?P<address>0x[0-9a-f]+)|(?P<number>\d+)"
)
"""What may differ between ranks that say the same."""

_OWN: Final = "<rank>"
_LOCAL: Final = "<local rank>"


class Folded(NamedTuple):
    """Ranks that say the same.

    Attributes:
        ranks: The ranks, ascending.
        text: What they say; where it is more than one rank, `<rank>` stands for its number.
    """

    ranks: list[int]
    text: str


def shape_of(text: str) -> str:
    """Returns what is left of a text without its numbers; texts that fold have the same."""
    return _VARYING.sub(lambda found: f"\0{found.lastgroup}\0", text)


def fold(
    texts: Mapping[int, str],
    subject: str = "",
    per_node: int | None = None,
    *,
    most: int | None = _MOST,
) -> list[Folded]:
    """Returns few texts that tell what ranks say.

    Args:
        texts: What each rank says, by rank; texts of one shape, see `shape_of`. What is told first
            is what the first of them says.
        subject: What stands in place of `rank N` where a text first names its own rank, with `{}`
            for the ranks; empty for nothing.
        per_node: Number of ranks of each node, which number their devices; None if there is one.
        most: Most texts; if there would be more, only the first is shown. None: no limit.
    """
    values = {rank: [found[0] for found in _VARYING.finditer(text)] for rank, text in texts.items()}
    ranks = list(texts)
    keys: dict[int, list[str]] = {rank: [] for rank in ranks}
    for column in zip(*[values[rank] for rank in ranks], strict=True):
        if not _explained(column, ranks, per_node):
            shared = Counter(column)
            for rank, value in zip(ranks, column, strict=True):
                keys[rank].append(_OWN if value == str(rank) and shared[value] == 1 else value)
    held: dict[tuple[str, ...], list[int]] = {}
    for rank, key in keys.items():
        held.setdefault(tuple(key), []).append(rank)
    forms = [
        Folded(sorted(some), _told({rank: texts[rank] for rank in some}, values, subject))
        for some in held.values()
    ]
    if most is None or len(forms) <= most:
        return forms
    others = sorted(rank for form in forms[1:] for rank in form.ranks)
    more = f"\n  {folded(others)} failed alike, with other numbers"
    return [Folded(forms[0].ranks, forms[0].text + more)]


def _explained(values: Sequence[str], ranks: Sequence[int], per_node: int | None) -> bool:
    """Returns whether what ranks say at one place is equal, their own, a time, or an address."""
    first = values[0]
    if all(value == first for value in values):
        return True
    if not first.isdigit():
        return True
    return _is_own(values, ranks) or _is_local(values, ranks, per_node)


def _is_own(values: Sequence[str], ranks: Sequence[int]) -> bool:
    return all(value == str(rank) for value, rank in zip(values, ranks, strict=True))


def _is_local(values: Sequence[str], ranks: Sequence[int], per_node: int | None) -> bool:
    return per_node is not None and _is_own(values, [rank % per_node for rank in ranks])


def _told(
    texts: Mapping[int, str],
    values: Mapping[int, Sequence[str]],
    subject: str,
) -> str:
    """Returns the text of ranks that differ in what is their own."""
    ranks = list(texts)
    text = texts[ranks[0]]
    if len(ranks) == 1:
        return text
    places = iter(range(len(values[ranks[0]])))

    def common(found: re.Match[str]) -> str:
        place = next(places)
        said = [values[rank][place] for rank in ranks]
        if all(value == said[0] for value in said):
            return said[0]
        if found["time"]:
            return format_span(map(_picoseconds, said))
        if found["address"]:
            return "0x..."
        return _OWN if _is_own(said, ranks) else _LOCAL

    told = _VARYING.sub(common, text)
    return (
        told.replace(f"rank {_OWN}", subject.format(folded(sorted(ranks))), 1) if subject else told
    )


def _picoseconds(text: str) -> int:
    number, unit = text.split()
    return round(float(number) * TIME_UNITS[unit])
