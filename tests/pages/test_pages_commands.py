"""The slowest commands: against sums over the log; and the reading of documents of results."""

import random

import pytest
from page_reader import parts, read

from kernbench.errors import CallSite
from kernbench.pages.breakdowns import containers
from kernbench.pages.commands import by_line, command_table
from kernbench.pages.html import page_html
from kernbench.pages.page import Cell, Facts, Line, Lines, Note, Page, Section, Table
from kernbench.pages.results import (
    busbw_charts,
    names_of,
    result_parts,
    value_text,
    without_folders,
)
from kernbench.sim_engine.op_log import Category, Record


def site(line: int, file: str = "/far/away/train.py") -> CallSite:
    code = compile("\n" * (line - 1) + "f()", file, "exec")
    return CallSite(code, 4)


LINES = {line: site(line) for line in (1, 2, 3)}


def record(
    name: str,
    line: int,
    rank: int,
    took: int,
    category: Category = "compute",
    track: str = "stream 0",
) -> Record:
    return Record(name, category, rank, track, 0, 100, 100 + took, LINES[line])


def test_commands_are_summed_by_name_and_line() -> None:
    found = [record("a", 1 + n % 3, n % 4, 10 + n) for n in range(24)]
    found += [record("b", 1, 1, 5), record("b", 1, 0, 5)]
    found += [
        record("r", 1, 0, 900, "range", "host"),
        record("a", 1, 0, 900, "compute", "pe1.gemm"),
    ]
    random.Random(1).shuffle(found)
    rows = {(row.name, row.site and row.site.line): row for row in by_line(found)}
    for line in (1, 2, 3):
        row, mine = rows["a", line], range(line - 1, 24, 3)
        assert (row.count, row.total_ps, row.max_ps) == (
            8,
            sum(10 + n for n in mine),
            10 + mine[-1],
        )
        assert row.rank == mine[-1] % 4
    assert (rows["b", 1].rank, rows["b", 1].total_ps) == (0, 10)
    assert len(rows) == 4
    totals = [row.total_ps for row in by_line(found)]
    assert totals == sorted(totals, reverse=True)


def test_one_line_of_a_function_that_was_compiled_twice_is_one_row() -> None:
    found = [
        Record("a", "compute", rank, "stream 0", 0, 0, 10 - rank, site(7)) for rank in range(2)
    ]
    (row,) = by_line(found)
    assert (row.count, row.total_ps, row.max_ps, row.rank) == (2, 19, 10, 0)


def test_the_table_has_lines_without_folders_and_says_what_is_left_out() -> None:
    found = [record(f"op{n}", 1, 0, n + 1) for n in range(60)]
    table, note = command_table(found)
    assert isinstance(table, Table)
    assert isinstance(note, Note)
    assert note.text == "The slowest 25 of 60 lines are shown."
    assert [cell.text for cell in table.rows[0][:3]] == ["op59", "compute", "1"]
    assert table.rows[0][7] == Cell("train.py:1", code=True)
    assert command_table([]) == []


def test_ranges_that_hold_others_are_looked_through() -> None:
    paths: set[tuple[str, ...]] = {
        ("step", "forward", "layer 0"),
        ("step", "forward"),
        ("warm",),
        (),
    }
    assert containers(paths) == ("forward", "step")
    assert containers({("layer 1", "attention"), ("layer 10",)}) == ("layer 1",)
    # A breakdown would look through both.
    assert containers({("layer", "attention"), ("layer 10",)}) == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('  File "/home/a b/train.py", line 3', '  File "train.py", line 3'),
        ("at /home/me/train.py:3:4: f()", "at train.py:3:4: f()"),
        ("(/x.py:1) or C:\\x\\y.py:2", "(x.py:1) or y.py:2"),
        ("benches/my.py:1 and ./a/b.py, GB/s", "benches/my.py:1 and ./a/b.py, GB/s"),
        ("/usr/bin in and/or x.py:1", "/usr/bin in and/or x.py:1"),
    ],
)
def test_texts_lose_the_folders_of_sources_only(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_a_value_that_is_a_path_is_the_name_of_its_file() -> None:
    assert value_text("/home/me/data.txt") == "data.txt"
    assert value_text("WORLD/1{0-1}") == "WORLD/1{0-1}"


def test_plain_values_become_texts() -> None:
    assert [value_text(value) for value in (None, True, 1.0 / 3, 7, "x", [1, 2], {"a": 1})] == [
        "-", "yes", "0.333333", "7", "x", "1, 2", "a: 1",
    ]  # fmt: skip
    assert value_text(list(range(99))) == "0, 1, 2, 3, 4, 5, 6, 7, ... (99 values)"


def page(documents: list[dict[str, object]]) -> Page:
    return Page("p", [], [Section("Results", result_parts(documents))])


def test_any_document_is_shown_whatever_it_holds() -> None:
    document: dict[str, object] = {
        "bench": "mine",
        "flags": {"tp": 2, "deep": {"er": 1}},
        "losses": [5.0, 4.0],
        "rows": [{"a": 1, "b": {"c": 2.5, "d_ps": 1500}}, {"a": 2, "d": None}],
        "sections": [{"name": "one", "rows": [{"x": 1}]}, {"name": "two", "rows": []}],
        "empty": {},
    }
    shown = page([document])
    facts = {name: value for part in parts(shown, Facts) for name, value in part.rows}
    assert facts == {
        "flags.tp": "2",
        "flags.deep": "er: 1",
        "losses": "5, 4",
        "empty": "",
        "name": "two",
        "rows": "",
    } | {"name": "two"}
    rows, inner = parts(shown, Table)
    assert list(rows.columns) == ["a", "b.c", "b.d_ps", "d"]
    assert [[cell.text for cell in row] for row in rows.rows] == [
        ["1", "2.5", "1.5 ns", ""],
        ["2", "", "", "-"],
    ]
    assert [[cell.text for cell in row] for row in inner.rows] == [["1"]]


def test_long_documents_are_cut_and_it_is_said() -> None:
    document: dict[str, object] = {
        "rows": [{f"c{n}": n for n in range(50)} for _ in range(500)],
        **{f"k{n}": n for n in range(500)},
    }
    shown = page([document] * 50)
    assert sum(len(table.rows) * len(table.columns) for table in parts(shown, Table)) < 40_000
    notes = [note.text for note in parts(shown, Note)]
    for said in (
        "400 of 500 rows",
        "30 of 50 columns",
        "400 of 500 values",
        "40 of 50 documents",
    ):
        assert any(said in note for note in notes), said


def test_odd_documents_are_shown_too() -> None:
    odd: list[object] = [
        7,
        "text",
        [1, 2],
        {"collective": "c", "rows": [{"out_of_place": 3, "size_bytes": 4}]},
        {"collective": "c", "rows": [{"out_of_place": {"time_us": "x"}, "size_bytes": 4}]},
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}},
        {"a": [[[[[[1]]]]]], "n": float("nan"), "i": float("inf")},
    ]
    shown = Page("p", [], [Section("Results", result_parts(odd))])  # type: ignore[arg-type]
    text = read("".join(page_html(shown))).text
    for said in ("result 2", "1, 2", "nan", "inf", "..."):
        assert said in text, said
    rates = [{"busbw_gb_per_s": float(text)} for text in ("inf", "nan", "-1", "0")]
    endless = {"collective": "c", "rows": [{"size_bytes": 4, "out_of_place": r} for r in rates]}
    assert busbw_charts([("t", endless)]) == []


def nccl(rows: list[tuple[int, float | None, float | None]]) -> dict[str, object]:
    def timing(busbw: float | None) -> dict[str, float | int | None]:
        return {"time_us": 1.5, "algbw_gb_per_s": 2.0, "busbw_gb_per_s": busbw, "wrong": 0}

    return {
        "collective": "all_reduce",
        "machine": "m",
        "ranks": 2,
        "algorithm": "ring",
        "rows": [
            {"size_bytes": size, "out_of_place": timing(out), "in_place": timing(inside)}
            for size, out, inside in rows
        ],
    }


def test_bandwidth_is_a_line_for_each_way() -> None:
    (chart,) = busbw_charts([("t", nccl([(4, 2.0, 3.0), (1, 1.0, None), (0, 9.0, 9.0)]))])
    assert isinstance(chart, Lines)
    assert chart.lines == [
        Line("t, out of place", [(1, 1.0), (4, 2.0)], 0, 0),
        Line("t, in place", [(4, 3.0)], 0, 1),
    ]
    assert busbw_charts([("t", nccl([(4, None, None)])), ("u", {"a": 1})]) == []


def test_tables_that_are_called_the_same_are_told_apart() -> None:
    table = nccl([(4, 2.0, 3.0)])
    assert names_of([table, {"a": 1}, table, {**table, "ranks": 3}]) == [
        "all_reduce, 2 ranks, ring, table 1",
        "",
        "all_reduce, 2 ranks, ring, table 3",
        "all_reduce, 3 ranks, ring",
    ]


def test_many_tables_have_a_line_each_which_differ_in_colour_or_pattern() -> None:
    chart, note = busbw_charts([(f"t{n}", nccl([(4, 2.0, 3.0)])) for n in range(30)])
    assert isinstance(chart, Lines)
    assert isinstance(note, Note)
    assert note.text == "The first 24 of 30 lines are shown."
    looks = {(line.colour % 8, line.dash % 3) for line in chart.lines}
    assert len(looks) == len(chart.lines) == 24
    assert chart.lines[3].name == "t3"
