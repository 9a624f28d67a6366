"""The table of nccl-tests: its text, its arithmetic, its JSON."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from kernbench.report import (
    Header,
    Measurement,
    as_json,
    average_busbw,
    busbw_factor,
    footer_lines,
    header_lines,
    row_line,
    timing,
    total_wrong,
)

HEADER = Header("all_reduce", "sip8", 8, "ring_allreduce_tcm", {"data": "on", "seed": "0"})
GOLDEN = Path(__file__).with_name("golden_table.txt")
FACTOR = busbw_factor("all_reduce", 8)


def row(size: int, out_ps: int, in_ps: int, wrong: int | None = 0) -> Measurement:
    return Measurement(
        size,
        size // 4,
        "float",
        "sum",
        -1,
        timing(size, out_ps, FACTOR, wrong=wrong),
        timing(size, in_ps, FACTOR, wrong=wrong),
        "ring_allreduce_tcm",
    )


def test_a_table_is_that_of_nccl_tests() -> None:
    """Columns and widths are those that nccl-tests prints; `golden_table.txt` holds them."""
    rows = [row(1024, 14_000_000, 13_900_000), row(1 << 24, 12_345_678_900, 12_345_678_900)]
    lines = [*header_lines(HEADER), *map(row_line, rows), *footer_lines(rows)]
    assert lines == GOLDEN.read_text().splitlines()


def test_names_and_rows_stand_in_the_same_columns() -> None:
    names, line = header_lines(HEADER)[-2], row_line(row(1024, 14_000_000, 13_900_000))
    assert len(names) == len(line)
    assert len(names.split()) == len(line.split()) + 1  # the leading "#"


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.004, "   0.00"),
        (9999.99, "9999.99"),
        (9999.999, "10000.0"),
        (99999.9, "99999.9"),
        (99999.99, " 100000"),
        (9_999_999.4, "9999999"),
        (12_345_678.0, "1.2e+07"),
    ],
)
def test_a_time_has_as_many_decimals_as_fit(time_us: float, text: str) -> None:
    line = row_line(row(1024, round(time_us * 10**6), 1))
    assert line[52:61] == f"  {text}"


def test_bandwidths_are_exact_ratios() -> None:
    measured = timing(3000, 1_000_000, Fraction(3, 2), iterations=2)
    assert measured.time_us == 0.5
    assert measured.algbw_gb_per_s == 6.0
    assert measured.busbw_gb_per_s == 9.0


@pytest.mark.parametrize(
    ("operation", "of_2", "of_8"),
    [
        ("all_reduce", "1", "7/4"),
        ("broadcast", "1", "1"),
        ("reduce", "1", "1"),
        ("all_gather", "1/2", "7/8"),
        ("reduce_scatter", "1/2", "7/8"),
        ("gather", "1/2", "7/8"),
        ("scatter", "1/2", "7/8"),
        ("all_to_all", "1/2", "7/8"),
        ("sendrecv", "1", "1"),
    ],
)
def test_bus_bandwidths_are_those_of_nccl_tests(operation: str, of_2: str, of_8: str) -> None:
    """The numbers are written out from the formulas in nccl-tests' doc/PERFORMANCE.md and src/."""
    assert busbw_factor(operation, 2) == Fraction(of_2)
    assert busbw_factor(operation, 8) == Fraction(of_8)


def test_one_rank_sends_nothing() -> None:
    assert busbw_factor("all_reduce", 1) == busbw_factor("all_to_all", 1) == 0


def test_what_cannot_be_called_in_place_is_left_out() -> None:
    out_of_place = timing(4096, 10**6, Fraction(1), wrong=2)
    lone = Measurement(4096, 128, "float", "none", -1, out_of_place, None, "ring")
    line = row_line(lone)
    assert len(line) == len(row_line(row(1024, 14_000_000, 13_900_000)))
    assert line.split()[9:] == ["N/A"] * 4
    assert total_wrong([lone]) == 2
    assert average_busbw([lone]) == 4.096
    assert as_json(HEADER, [lone])["rows"][0]["in_place"] is None


def test_wrong_values_fail() -> None:
    rows = [row(1024, 10**6, 10**6), row(2048, 10**6, 10**6, wrong=3)]
    assert total_wrong(rows) == 6
    assert row_line(rows[1]).split()[8] == "3"
    assert footer_lines(rows)[0] == "# Out of bounds values : 6 FAILED"


def test_unchecked_values_are_not_called_right() -> None:
    rows = [row(1024, 10**6, 10**6, wrong=None)]
    assert total_wrong(rows) is None
    assert row_line(rows[0]).split()[8] == "N/A"
    assert footer_lines(rows)[0] == "# Out of bounds values : N/A (not checked)"
    assert as_json(HEADER, rows)["out_of_bounds_values"] is None


def test_without_time_there_is_no_bandwidth() -> None:
    rows = [row(1024, 0, 0)]
    assert row_line(rows[0]).split()[5:8] == ["0.00", "N/A", "N/A"]
    assert average_busbw(rows) is None
    assert footer_lines(rows)[1] == "# Avg bus bandwidth    : N/A"


def test_no_dials_no_line() -> None:
    bare = header_lines(Header("all_reduce", "sip8", 8, "ring", {}))
    assert bare[1].startswith("# times are simulated")


def test_the_json_holds_the_same() -> None:
    rows = [row(1024, 14_000_000, 13_900_000)]
    document = as_json(HEADER, rows)
    assert json.loads(json.dumps(document)) == document
    out_of_place = {"time_us": 14.0, "algbw_gb_per_s": 1024 / 14000, "wrong": 0}
    assert document == {
        "schema_version": 1,
        "clock": "simulated",
        "collective": "all_reduce",
        "machine": "sip8",
        "ranks": 8,
        "algorithm": "ring_allreduce_tcm",
        "dials": {"data": "on", "seed": "0"},
        "rows": [
            {
                "size_bytes": 1024,
                "count": 256,
                "type": "float",
                "redop": "sum",
                "root": -1,
                "algorithm": "ring_allreduce_tcm",
                "out_of_place": {**out_of_place, "busbw_gb_per_s": 1024 / 14000 * 1.75},
                "in_place": {
                    "time_us": 13.9,
                    "algbw_gb_per_s": 1024 / 13900,
                    "busbw_gb_per_s": float(Fraction(1024, 13900) * FACTOR),
                    "wrong": 0,
                },
            }
        ],
        "out_of_bounds_values": 0,
        "average_busbw_gb_per_s": average_busbw(rows),
        "limit": None,
        "link_bound_gb_per_s": None,
    }
    assert as_json(HEADER, rows, "limited by slots") == {**document, "limit": "limited by slots"}
