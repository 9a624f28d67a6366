"""Records as flat rows: one for each row of a result, or for a failure."""

import csv
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kernbench.report.files import replacing
from kernbench.report.flattening import flat
from kernbench.sweeps.records import Record

FIRST: Final = ("run", "ok", "sim_ps")
"""Columns of every row, behind what varies."""

LAST: Final = "failure"
"""The last column: the failure in a line, see `summary_of`."""


def rows_of(record: Record) -> Iterator[dict[str, Any]]:
    """Yields the rows of a record: what varies, `run`, `ok`, `sim_ps`, results, `failure`.

    A result document gives a row for each mapping in its lists, or a single row if it has no such
    list; one that is no mapping is the column `result`. Nested keys are joined with dots; what is a
    list inside of a row is JSON in a text. Where a row and its document have the same key, the
    document's is `result.KEY`. A failure gives a row of its own behind those of results that were
    left before.
    """
    run = record.run
    head = {**run.varied, "run": run.spec.name, "ok": record.ok, "sim_ps": record.sim_ps}
    told = False
    for document in record.results:
        for row in _rows(document):
            told = True
            yield {**head, **_apart(row, {*head, LAST})}
    if not record.ok:
        yield {**head, LAST: summary_of(record)}
    elif not told:
        yield head


def summary_of(record: Record) -> str:
    """Returns the failure of a record in a line; empty if it has succeeded."""
    if record.failure is None:
        return ""
    failure, rank = record.failure, ""
    if failure.get("errors"):
        number, failure = next(iter(failure["errors"].items()))
        rank = f"rank {number}: "
    if failure["class"] == "SystemExit":
        text = record.report
    elif failure.get("problems"):
        first = failure["problems"][0]
        text = ": ".join(filter(None, (first["where"], first["field"], first["message"])))
    else:
        text = f"{failure['class']}: {failure['summary']}"
    return rank + (text.splitlines() or [""])[0]


def columns_of(records: Iterable[Record]) -> list[str]:
    """Returns the columns of all rows: what varies first, then the others as they come."""
    varied: dict[str, None] = {}
    others: dict[str, None] = dict.fromkeys(FIRST)
    failed = False
    for record in records:
        varied |= dict.fromkeys(record.run.varied)
        for row in rows_of(record):
            others |= dict.fromkeys(row)
        failed = failed or not record.ok
    names = [*varied, *(name for name in others if name not in varied and name != LAST)]
    return [*names, LAST] if failed else names


def write_csv(path: Path, records: Callable[[], Iterable[Record]]) -> None:
    """Writes the rows of records as a table of comma-separated values.

    Args:
        path: The file, which is replaced as a whole.
        records: Returns the records; called twice, so that they need not all be in memory.

    Raises:
        UsageError: If the file cannot be written (F15).
    """
    columns = columns_of(records())
    with replacing(path) as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        table.writeheader()
        for record in records():
            for row in rows_of(record):
                table.writerow({name: _cell(value) for name, value in row.items()})


def _rows(document: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(document, Mapping):
        document = {"result": document}
    lists = {
        name: value
        for name, value in document.items()
        if isinstance(value, list | tuple)
        and value
        and all(isinstance(each, Mapping) for each in value)
    }
    whole = dict(flat({name: value for name, value in document.items() if name not in lists}))
    if not lists:
        yield whole
    for name, entries in lists.items():
        for entry in entries:
            row = dict(flat(entry))
            if len(lists) > 1:
                row = {"rows": name, **row}
            yield {**_apart(whole, row), **row}


def _apart(values: Mapping[str, Any], taken: Container[str]) -> dict[str, Any]:
    """Returns values with other names where a name is taken."""
    return {f"result.{name}" if name in taken else name: each for name, each in values.items()}


def _cell(value: Any) -> Any:
    """Returns a value as it stands in a cell: true and false as in JSON, lists as JSON."""
    if isinstance(value, bool | list | tuple | Mapping):
        return json.dumps(value)
    return "" if value is None else value
