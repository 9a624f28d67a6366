"""Flat rows of records."""

import csv
from pathlib import Path
from typing import Any

import pytest

from kernbench.run_spec import RunSpec
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.tables import columns_of, rows_of, summary_of, write_csv

HEAD = {"a": "1", "run": "b", "ok": True, "sim_ps": 5}


def _record(*results: Any, **fields: Any) -> Record:
    run = Run(RunSpec(bench="b.py"), {"a": "1"}, "k")
    return Record(run=run, **{"ok": True, "sim_ps": 5, "results": results, **fields})


def test_rows_of_documents_of_all_shapes() -> None:
    assert list(rows_of(_record())) == [HEAD]
    assert list(rows_of(_record({"x": {"y": {"z": 1}, "w": {}}, "l": [1, 2], "e": []}))) == [
        {**HEAD, "x.y.z": 1, "x.w": {}, "l": [1, 2], "e": []}
    ]
    rows = [{"time": {"us": 1.5}, "algorithm": "ring"}, {"time": {"us": 2.5}}]
    assert list(rows_of(_record({"algorithm": "auto", "rows": rows}, {"n": 1}))) == [
        {**HEAD, "result.algorithm": "auto", "time.us": 1.5, "algorithm": "ring"},
        {**HEAD, "algorithm": "auto", "time.us": 2.5},
        {**HEAD, "n": 1},
    ]
    assert list(rows_of(_record({"p": [{"v": 1}], "q": [{"v": 2}, {"v": [{"w": 3}]}]}))) == [
        {**HEAD, "rows": "p", "v": 1},
        {**HEAD, "rows": "q", "v": 2},
        {**HEAD, "rows": "q", "v": [{"w": 3}]},
    ]
    assert list(rows_of(_record(5, [{"x": 1}]))) == [
        {**HEAD, "result": 5},
        {**HEAD, "x": 1},
    ]
    assert list(rows_of(_record({"failure": 3}))) == [{**HEAD, "result.failure": 3}]
    assert list(rows_of(_record({"ok": 3, "a": 4}))) == [{**HEAD, "result.ok": 3, "result.a": 4}]


def test_a_failure_is_a_row_behind_the_results() -> None:
    failure = {"class": "ValueError", "summary": "no\nmore"}
    head = {**HEAD, "ok": False}
    assert list(rows_of(_record({"n": 1}, ok=False, failure=failure, report="r"))) == [
        {**head, "n": 1},
        {**head, "failure": "ValueError: no"},
    ]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (None, ""),
        ({"class": "SystemExit", "summary": "3"}, "the report"),
        ({"class": "E", "summary": ""}, "E: "),
        ({"class": "S", "errors": {"4": {"class": "E", "summary": "x"}}}, "rank 4: E: x"),
        (
            {"class": "C", "problems": [{"where": "f", "field": "", "message": "m"}]},
            "f: m",
        ),
    ],
)
def test_a_failure_is_told_in_a_line(failure: Any, said: str) -> None:
    record = _record(ok=failure is None, failure=failure, report="the report\nmore")
    assert summary_of(record) == said


def test_a_table_has_the_columns_of_all_records(tmp_path: Path) -> None:
    records = [
        _record({"x": 1.5, "t": True, "n": None}),
        _record({"y": [1, {"z": 2}], "w": 'a,"b'}),
        _record(ok=False, failure={"class": "E", "summary": "s"}),
    ]
    assert columns_of(records[:1]) == ["a", "run", "ok", "sim_ps", "x", "t", "n"]
    path = tmp_path / "t.csv"
    write_csv(path, lambda: records)
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["a", "run", "ok", "sim_ps", "x", "t", "n", "y", "w", "failure"],
            ["1", "b", "true", "5", "1.5", "true", "", "", "", ""],
            ["1", "b", "true", "5", "", "", "", '[1, {"z": 2}]', 'a,"b', ""],
            ["1", "b", "false", "5", "", "", "", "", "", "E: s"],
        ]
