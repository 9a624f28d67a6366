"""The page of a sweep: one row a run, what varies first, and no wall times."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from page_reader import parts, read, section_titles

from kernbench.pages import of_sweep, write_sweep_page
from kernbench.pages.page import Bars, Code, Fold, Lines, Note, Table
from kernbench.report import RankBreakdown
from kernbench.run_spec import RunSpec


def document(busbw: float) -> dict[str, Any]:
    timing = {"time_us": 9.0 - busbw, "algbw_gb_per_s": busbw, "busbw_gb_per_s": busbw, "wrong": 0}
    return {
        "collective": "all_reduce",
        "machine": "m",
        "ranks": 2,
        "algorithm": "ring",
        "rows": [
            {"size_bytes": 1 << n, "out_of_place": timing, "in_place": timing} for n in (10, 12)
        ],
        "average_busbw_gb_per_s": busbw,
    }


def record(number: int, **more: Any) -> dict[str, Any]:
    rows = [RankBreakdown(rank, 100, 7, 40 + number, 30, 20, 10, 30 - number, 5) for rank in (0, 1)]
    return {
        "key": f"run {number}",
        "varied": {"system.sips.count": str(2 + number), "system.name": "same", "-b": "1K"},
        "ok": True,
        "spec": RunSpec(bench="ccl_allreduce").to_json(),
        "results": [document(1.0 + number)],
        "failure": None,
        "report": None,
        "sim_ps": 10**6 * (number + 1),
        "wall_s": random.random(),  # what is never the same is not shown
        "breakdown": [asdict(row) for row in rows],
        **more,
    }


FAILED = record(
    9,
    ok=False,
    results=[],
    report='ValueError: <i> at "/home/me/x.py":3',
    failure={"replay": {"command": "kernbench run again"}},
    sim_ps=None,
    breakdown=None,
)


def test_a_run_is_a_row_and_what_varies_comes_first() -> None:
    page = of_sweep([*(record(n) for n in range(3)), FAILED], "a sweep")
    assert section_titles(page) == [
        "Runs",
        "Bus bandwidth",
        "Where the time went",
        "Failures",
        "Specification",
        "What is not modelled",
    ]
    (table,) = parts(page, Table, "Runs")
    assert list(table.columns) == [
        "system.sips.count",
        "status",
        "simulated time",
        "average busbw (GB/s)",
        "time of the largest size (us)",
    ]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["2", "ok", "1 us", "1", "8"],
        ["3", "ok", "2 us", "2", "7"],
        ["4", "ok", "3 us", "3", "6"],
        ["11", "failed", "-", "-", "-"],
    ]
    assert [row[0].number for row in table.rows] == [2, 3, 4, 11]
    assert page.failed == "1 of 4 failed"


def test_lines_and_bars_are_called_by_what_varies() -> None:
    page = of_sweep([record(n) for n in range(3)], "a sweep")
    (lines,) = parts(page, Lines)
    assert [line.name for line in lines.lines][::2] == [
        f"count={n}, out of place" for n in (2, 3, 4)
    ]
    (bars,) = parts(page, Bars)
    assert [(bar.label, tuple(bar.parts), bar.beside) for bar in bars.bars] == [
        (f"count={2 + n}", (40 + n, 20, 10, 30 - n), 7) for n in range(3)
    ]


def test_keys_with_one_last_name_are_told_apart() -> None:
    runs = [record(n, varied={"a.x": str(n), "b.x": str(n)}) for n in range(2)]
    (bars,) = parts(of_sweep(runs, "s"), Bars)
    assert [bar.label for bar in bars.bars] == ["a.x=0, b.x=0", "a.x=1, b.x=1"]


def test_the_first_factor_is_the_colour_and_the_second_the_dash() -> None:
    runs = [
        record(n, varied={"count": n, "algorithm": name}, results=[{**document(1), **bound}])
        for n, bound in ((2, {}), (4, {"link_bound_gb_per_s": 350.0}))
        for name in ("ring", "tree")
    ]
    (chart,) = parts(of_sweep(runs, "s"), Lines)
    assert [(line.name, line.colour, line.dash, line.bound) for line in chart.lines] == [
        ("count=2, algorithm=ring", 0, 0, False),
        ("count=2, algorithm=tree", 0, 1, False),
        ("count=4, algorithm=ring", 1, 0, False),
        ("count=4, algorithm=tree", 1, 1, False),
        ("bound of the links", 0, 0, True),
    ]


def test_a_failure_has_its_report_and_its_command() -> None:
    page = of_sweep([record(1), FAILED], "a sweep")
    report, command = parts(page, Code, "Failures")
    assert report.text == 'ValueError: <i> at "x.py":3'
    assert command.text == "kernbench run again"
    assert [fold.title for fold in parts(page, Fold, "Failures")] == ["count=11"]
    silent = {**FAILED, "report": None, "failure": None}
    (note,) = parts(of_sweep([silent], "s"), Note, "Failures")
    assert note.text == "The run left no report."


def test_figures_of_other_documents_are_columns_where_they_differ() -> None:
    runs = [
        record(
            n,
            results=[
                {
                    "flags": {"tp": n},
                    "sections": [{"step_us": 5.0 + n, "losses": [1.0] * 40}],
                    "same": 3,
                }
            ],
        )
        for n in range(2)
    ]
    (table,) = parts(of_sweep(runs, "s"), Table, "Runs")
    assert list(table.columns)[3:] == ["sections.0.step_us"]
    assert [row[3].text for row in table.rows] == ["5", "6"]


def test_equal_records_give_equal_files_but_for_wall_times(tmp_path: Path) -> None:
    files = [tmp_path / "a.html", tmp_path / "b.html"]
    for file in files:
        write_sweep_page(file, [record(n) for n in range(3)], "<sweep>")
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert "<sweep>" in read(first.decode()).text


def test_a_sweep_without_runs_says_so() -> None:
    page = of_sweep([], "nothing")
    assert "The sweep has no runs." in [note.text for note in parts(page, Note)]


def test_a_large_sweep_is_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    large = [record(n % 7, varied={"n": str(n)}) for n in range(3000)]
    large += [{**FAILED, "report": "x" * 50_000} for _ in range(100)]
    write_sweep_page(tmp_path / "s.html", large, "large")
    html = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert len(html) < 3_000_000
    shown = read(html).text
    for said in ("2000 of 3100 runs", "24 of 3000 lines", "64 of 3000 runs", "40 of 100 failures"):
        assert said in shown, said
