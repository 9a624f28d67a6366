"""The page of a sweep: many runs beside each other."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from kernbench.pages.breakdowns import KINDS, mean_bar
from kernbench.pages.html import write_page
from kernbench.pages.page import (
    Bars,
    Cell,
    Fold,
    Note,
    Page,
    Part,
    Section,
    Table,
    left_out,
    time_cell,
)
from kernbench.pages.results import (
    busbw_charts,
    is_nccl,
    value_cell,
    value_text,
)
from kernbench.pages.runs import NOT_MODELLED, failure_parts, spec_parts

Record = Mapping[str, Any]
"""A run of a sweep as plain values, as `kernbench sweep --json` writes them."""

_MOST_ROWS: Final = 2000
_MOST_BARS: Final = 64
_MOST_FAILURES: Final = 40
_LONGEST_REPORT: Final = 20_000
_MOST_KEYS: Final = 12
_OPEN: Final = 3
_MOST_FIGURES: Final = 8
_DEEPEST: Final = 4
_MOST_ITEMS: Final = 4


def write_sweep_page(path: str | Path, records: Sequence[Record], title: str) -> None:
    """Writes the page of a sweep. Equal records give equal files, but for wall times.

    Args:
        path: The HTML file to write; it appears when it is complete.
        records: The runs as plain values, see `of_sweep`.
        title: Title of the page.

    Raises:
        UsageError: If the file cannot be written.
    """
    write_page(path, of_sweep(records, title))


def of_sweep(records: Sequence[Record], title: str) -> Page:
    """Returns the page of a sweep; wall times are left out, since they are never the same.

    Args:
        records: The runs as plain values. `varied` is what was varied, by key; `results` the
            documents of `--json`; `report` the text of a failure; `sim_ps` the simulated time in
            picoseconds; `breakdown` the rows of `report.breakdown`, or None.
        title: Title of the page.
    """
    varied = varied_keys(records)
    names = [name_of(record, varied) for record in records]
    failed = sum(not record.get("ok") for record in records)
    facts = [f"{len(records)} run{'s' * (len(records) != 1)}"]
    said = f"{failed} of {len(records)} failed" if failed else ""
    sections = [
        Section("Runs", _table(records, varied)),
        Section("Bus bandwidth", _bandwidths(records, names, varied)),
        Section("Where the time went", _bars(records, names)),
        Section("Failures", _failures(records, names)),
        Section("Specification", _specification(records, varied)),
        Section("What is not modelled", [Note(NOT_MODELLED)]),
    ]
    return Page(title, facts, [section for section in sections if section.parts], said)


def varied_keys(records: Sequence[Record]) -> list[str]:
    """Returns the keys of `varied` whose values differ, in the order of their first use."""
    keys = dict.fromkeys(key for record in records for key in record["varied"])
    return [key for key in keys if len({_value(record, key) for record in records}) > 1]


def name_of(record: Record, varied: Sequence[str]) -> str:
    """Returns what a run is called: its values of what varies, or its key."""
    short = {key: key.rpartition(".")[2] for key in varied}
    if len(set(short.values())) < len(varied):
        short = {key: key for key in short}
    values = [f"{short[key]}={_value(record, key)}" for key in varied]
    return ", ".join(values) or str(record.get("key", ""))


def _value(record: Record, key: str) -> str:
    return value_text(record["varied"].get(key))


def _varied_cell(text: str) -> Cell:
    """Returns the cell of a value that varies: texts of numbers are sorted as numbers."""
    try:
        number = float(text)
    except ValueError:
        return Cell(text)
    return Cell(text, number) if isfinite(number) else Cell(text)


def _table(records: Sequence[Record], varied: Sequence[str]) -> list[Part]:
    figures = [dict(_figures(record)) for record in records]
    names = _differing(figures)
    keys = varied[:_MOST_KEYS]
    columns = keys or ["run"]
    rows = []
    for record, found in zip(records[:_MOST_ROWS], figures, strict=False):
        ok = bool(record.get("ok"))
        cells = [_varied_cell(_value(record, key)) for key in keys]
        sim = record.get("sim_ps")
        rows.append(
            [
                *(cells or [Cell(str(record.get("key", "")), code=True)]),
                Cell("ok" if ok else "failed", bad=not ok),
                Cell("-") if sim is None else time_cell(sim),
                *(value_cell(found.get(name)) for name in names[:_MOST_FIGURES]),
            ]
        )
    heads = [*columns, "status", "simulated time", *names[:_MOST_FIGURES]]
    return [
        Table(heads, rows),
        *left_out(len(rows), len(records), "runs", "The first"),
        *left_out(len(keys), len(varied), "keys", "The first"),
        *left_out(len(names[:_MOST_FIGURES]), len(names), "figures of results", "The first"),
    ]


def _figures(record: Record) -> Iterator[tuple[str, float]]:
    """Yields the figures of the results of a run, by their way in the documents."""
    results = record.get("results") or []
    for number, document in enumerate(results):
        before = "" if len(results) == 1 else f"{number}."
        if is_nccl(document):
            busbw = document.get("average_busbw_gb_per_s")
            if busbw is not None:
                yield f"{before}average busbw (GB/s)", busbw
            if document["rows"]:
                last = document["rows"][-1]
                time = last["out_of_place"].get("time_us")
                if time is not None:
                    yield f"{before}time of the largest size (us)", time
        else:
            yield from _numbers(document, before, 0)


def _numbers(value: object, name: str, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield name.removesuffix("."), value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NO_FIGURES:
                yield from _numbers(inner, f"{name}{key}.", depth + 1)
    elif depth < _DEEPEST and isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value if len(value) <= _MOST_ITEMS else ()):
            yield from _numbers(inner, f"{name}{number}.", depth + 1)


_NO_FIGURES: Final = ("schema_version", "flags", "dials", "breakdown")
"""Keys of documents whose values say what was run, or are shown as bars."""


def _differing(figures: Sequence[Mapping[str, float]]) -> list[str]:
    """Returns the names of figures that differ among runs; all if there is only one run."""
    names = list(dict.fromkeys(name for found in figures for name in found))
    if len(figures) < 2:
        return names
    return [name for name in names if len({found.get(name) for found in figures}) > 1]


def _bandwidths(
    records: Sequence[Record], names: Sequence[str], varied: Sequence[str]
) -> list[Part]:
    found = [
        ((name, document), tuple(_value(record, key) for key in varied))
        for name, record in zip(names, records, strict=True)
        for document in record.get("results") or []
    ]
    return busbw_charts([table for table, _ in found], [values for _, values in found])


def _bars(records: Sequence[Record], names: Sequence[str]) -> list[Part]:
    known = [
        (name, record["breakdown"])
        for name, record in zip(names, records, strict=True)
        if record.get("breakdown")
    ]
    if not known:
        return []
    bars = [mean_bar(name, rows) for name, rows in known[:_MOST_BARS]]
    return [
        Bars("Each run, mean of its ranks", KINDS, bars, "host"),
        *left_out(len(bars), len(known), "runs", "The first"),
    ]


def _failures(records: Sequence[Record], names: Sequence[str]) -> list[Part]:
    failed = [
        (name, record) for name, record in zip(names, records, strict=True) if not record.get("ok")
    ]
    parts: list[Part] = []
    for name, record in failed[:_MOST_FAILURES]:
        said = failure_parts(record.get("report") or "", record.get("failure"), _LONGEST_REPORT)
        parts.append(Fold(name, said or [Note("The run left no report.")], len(failed) <= _OPEN))
    return [*parts, *left_out(len(parts), len(failed), "failures", "The first")]


def _specification(records: Sequence[Record], varied: Sequence[str]) -> list[Part]:
    if not records:
        return [Note("The sweep has no runs.")]
    parts = spec_parts(records[0].get("spec") or {})
    if len(records) > 1:
        keys = ", ".join(varied)
        said = f"This is the first run; the others differ in {keys}." if keys else ""
        parts = [*([Note(said)] if said else []), *parts]
    return parts
