"""Two documents of results, figure by figure: what has become slower, and by how much.

Documents are those of `kernbench run --json` and `kernbench sweep --json`; `figures` says how
figures are found and named. Figures of time are compared, but not the parts of a breakdown, which
say where a time went that is compared already. What is no figure, such as a flag or the algorithm
that ran, may explain a difference: it is reported, and decides nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Final, Literal

from kernbench.config import did_you_mean
from kernbench.errors import UsageError
from kernbench.sweeps.figures import (
    Found,
    Kind,
    Place,
    find,
    is_whole_time,
    kind_of,
    once,
    row_text,
)

Verdict = Literal["slower", "faster", "more", "less", "changed", "same"]

_VERDICTS: Final[Mapping[Kind, tuple[Verdict, Verdict]]] = {
    "time": ("slower", "faster"),
    "rate": ("faster", "slower"),
    "bytes": ("more", "less"),
    "other": ("changed", "changed"),
}
"""By kind, what becomes of a figure that is larger, and of one that is smaller."""

_WORSE: Final = frozenset({"slower", "more", "changed"})


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, before and after.

    Attributes:
        row: What the figure is about, such as `all_reduce / size_bytes=1024 float sum`.
        figure: Its name, such as `out_of_place.time_us`.
        kind: What the figure is.
        before: Its value in the first document, in the unit that its name says.
        after: Its value in the second document.
        verdict: What has become of it; `same` if it differs by no more than the tolerance.
    """

    row: str
    figure: str
    kind: Kind
    before: int | float
    after: int | float
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """`after` over `before`; infinite if only `before` is 0, and 1 if both are."""
        if not self.before:
            return math.inf if self.after else 1.0
        try:
            return float(Fraction(self.after) / Fraction(self.before))
        except OverflowError:
            return math.inf

    @property
    def worse(self) -> bool:
        """Whether it has become worse by more than the tolerance."""
        return self.verdict in _WORSE

    def to_json(self) -> dict[str, Any]:
        """Returns the row as plain values; the ratio is None if it is infinite."""
        return {**asdict(self), "ratio": self.ratio if math.isfinite(self.ratio) else None}


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is no figure and differs.

    Attributes:
        name: Its key, with those of the mappings around it.
        before: As text; `none` if it is not there.
        after: As text; `none` if it is not there.
        places: In how many runs or rows it differs so.
    """

    name: str
    before: str
    after: str
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison has found.

    Attributes:
        rows: Figures that both documents have, the worst first.
        only_before: Runs and rows that only the first document has.
        only_after: Runs and rows that only the second document has.
        failed_before: Runs that failed in the first document only.
        failed_after: Runs that failed in the second document only.
        failed_both: Runs that failed in both.
        differences: What else differs.
    """

    rows: Sequence[Row]
    only_before: Sequence[str]
    only_after: Sequence[str]
    failed_before: Sequence[str]
    failed_after: Sequence[str]
    failed_both: Sequence[str]
    differences: Sequence[Difference]

    def passed(self, *, both: bool = False, only_common: bool = False) -> bool:
        """Returns whether the second document is as good as the first.

        Args:
            both: Whether what has become better by more than the tolerance counts, too.
            only_common: Whether what only one document has does not count.
        """
        alone = self.only_before or self.only_after or self.failed_before
        if self.failed_after or (alone and not only_common):
            return False
        return not any(row.worse or (both and row.verdict != "same") for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as plain values."""
        found: dict[str, Any] = {each.name: list(getattr(self, each.name)) for each in fields(self)}
        found["rows"] = [row.to_json() for row in self.rows]
        found["differences"] = [asdict(each) for each in self.differences]
        return found


def compare(
    before: object,
    after: object,
    *,
    tolerance: Fraction = Fraction(0),
    metrics: Sequence[str] = (),
    names: tuple[str, str] = ("before", "after"),
) -> Comparison:
    """Compares two documents of results.

    Args:
        before: Plain values, as `kernbench run --json` or `kernbench sweep --json` writes them.
        after: Plain values of the same form.
        tolerance: Share of the first value by which a figure may differ; 0, as simulated time is
            exact, for not at all.
        metrics: Names of figures, such as `busbw_gb_per_s` or `out_of_place.time_us`; empty for
            all times but those of breakdowns.
        names: What the documents are called in errors.

    Raises:
        UsageError: If a document holds no results of kernbench, the documents have no figure in
            common, or no figure has a name of `metrics`.
    """
    runs = _runs(before, names[0]), _runs(after, names[1])
    found = Found(), Found()
    counted: Counter[tuple[str, str, str]] = Counter()
    failed: dict[tuple[bool, bool], list[str]] = {}
    alone: tuple[list[str], list[str]] = [], []
    for label in dict.fromkeys([*runs[0], *runs[1]]):
        one, other = runs[0].get(label), runs[1].get(label)
        if one is None or other is None:
            only = one or other
            alone[one is None].append(label or (only.name if only is not None else ""))
        elif one.failed or other.failed:
            failed.setdefault((one.failed, other.failed), []).append(label or one.name)
        else:
            counted.update(_differences(one.spec, other.spec))
            row = (label,) if label else ()
            for side, more in zip(found, find(one.results, other.results, row), strict=True):
                side.figures.update(more.figures)
                side.settings.update(more.settings)
    for metric in metrics:
        _check_metric(metric, found)
    chosen = [
        {place: each for place, each in side.figures.items() if _is_chosen(place, metrics)}
        for side in found
    ]
    shared = [place for place in chosen[0] if place in chosen[1]]
    for n, ours in enumerate(chosen):
        alone[n].extend(dict.fromkeys(_row_of(each) for each in ours if each not in chosen[1 - n]))
    if not shared and not failed.get((False, True)):
        raise _nothing_in_common(names, alone, failed.get((True, True), []))
    for place, value in found[0].settings.items():
        if place in found[1].settings and found[1].settings[place] != value:
            counted[".".join(place[1]), str(value), str(found[1].settings[place])] += 1
    rows = [_compared(each, chosen[0][each], chosen[1][each], tolerance) for each in shared]
    return Comparison(
        rows=sorted(rows, key=_badness, reverse=True),
        only_before=alone[0],
        only_after=alone[1],
        failed_before=failed.get((True, False), []),
        failed_after=failed.get((False, True), []),
        failed_both=failed.get((True, True), []),
        differences=[Difference(*what, places=number) for what, number in counted.items()],
    )


# Documents


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a document.

    Attributes:
        name: The program.
        spec: Its specification as plain values.
        results: What it has left.
        failed: Whether it has failed.
    """

    name: str
    spec: Mapping[str, Any]
    results: Mapping[str, Any]
    failed: bool


def _runs(document: object, name: str) -> dict[str, _Run]:
    """Returns the runs of a document by what is varied; that of `kernbench run` has no label.

    Raises:
        UsageError: If the document is none of kernbench's.
    """
    try:
        if not isinstance(document, Mapping) or document["kernbench"] != 1:
            raise TypeError
        if "records" not in document:
            # What a program measures itself says more than when all of it has ended.
            figures = ("results",) if document["results"] else ("sim_ps",)
            return {"": _run(document, figures, "failure" in document)}
        runs: dict[str, _Run] = {}
        for record in document["records"]:
            label = " ".join(f"{key}={value}" for key, value in record["varied"].items())
            runs[once(label, runs)] = _run(record, ("sim_ps", "results"), not record["ok"])
    except (TypeError, KeyError, AttributeError):
        raise UsageError(
            f"{name} holds no results of kernbench",
            ["expected a file of `kernbench run --json` or `kernbench sweep --json`"],
            code="F10",
        ) from None
    return runs


def _run(document: Mapping[str, Any], figures: Sequence[str], failed: bool) -> _Run:
    if not isinstance(document["results"], list):
        raise TypeError
    spec = dict(document["spec"].items())
    results = {key: document[key] for key in figures if key in document}
    return _Run(str(spec.get("bench") or "the program"), spec, results, failed)


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns what differs between two specifications."""
    keys = dict.fromkeys([*one, *other])
    sides = [(key, one.get(key), other.get(key)) for key in keys]
    return [(f"spec.{key}", _text(a), _text(b)) for key, a, b in sides if a != b]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _nothing_in_common(
    names: tuple[str, str], alone: tuple[list[str], list[str]], failed: Sequence[str]
) -> UsageError:
    facts = [f"{name} has {_some(rows)}" for name, rows in zip(names, alone, strict=True)]
    return UsageError(
        f"{names[0]} and {names[1]} have no figure in common",
        [*facts, *([f"failed in both: {_some(failed)}"] if failed else [])],
        hint="compare runs of one bench; --metric names figures that are not times",
    )


def _some(rows: Sequence[str]) -> str:
    if not rows:
        return "no other figures"
    return "; ".join([*rows[:3], *([f"{len(rows) - 3} more"] if len(rows) > 3 else [])])


# Figures


def _is_chosen(place: Place, metrics: Sequence[str]) -> bool:
    keys = place[1]
    if not metrics:
        return is_whole_time(keys)
    return any(name in {_metric(place), ".".join(keys)} for name in metrics)


def _metric(place: Place) -> str:
    return place[1][-1].partition("[")[0]


def _check_metric(metric: str, found: tuple[Found, Found]) -> None:
    """Raises a UsageError if no figure has a name."""
    places = [*found[0].figures, *found[1].figures]
    if places and not any(_is_chosen(place, [metric]) for place in places):
        known = sorted({_metric(place) for place in places})
        raise UsageError(
            f"--metric {metric}: no figure has this name",
            [f"expected one of {', '.join(known)}"],
            hint=did_you_mean(metric, known),
        )


def _row_of(place: Place) -> str:
    row, keys = place
    return row_text([*row, *([".".join(keys[:-1])] if keys[:-1] else [])]) or ".".join(keys)


def _compared(place: Place, before: float, after: float, tolerance: Fraction) -> Row:
    row, keys = place
    kind = kind_of(keys)
    change = Fraction(after) - Fraction(before)
    larger, smaller = _VERDICTS[kind]
    within = abs(change) <= tolerance * abs(Fraction(before))
    verdict = "same" if within else larger if change > 0 else smaller
    return Row(row_text(row), ".".join(keys), kind, before, after, verdict)


def _badness(row: Row) -> tuple[bool, float]:
    """Returns how much worse a figure has become, to sort by."""
    ratio = row.ratio
    if row.kind == "rate" or (row.kind == "other" and 0 <= ratio < 1):
        ratio = 1 / ratio if ratio else math.inf
    return row.worse, ratio
