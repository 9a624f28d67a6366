"""Tables as they should not be: every mistake has its file, its line and its code."""

from pathlib import Path

import pytest

from kernbench.config.problems import ConfigError
from kernbench.errors import UsageError
from kernbench.validation.catalogue import TABLES
from kernbench.validation.reading import read_folder, read_table

_GOOD = "op,rows,cols,us\nsum,128,256,3.5\n"


def _problems(folder: Path, text: str, name: str = "rowops") -> list[str]:
    file = folder / f"{name}.csv"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_table(file, TABLES[name])
    return [str(problem).replace(f"{folder}/", "") for problem in raised.value.problems]


def test_a_table_is_read_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "rowops.csv").write_text("cols,op,us,rows\n256,sum,3.5,128\n\n64,sum,,32\n")
    (line,) = read_folder(tmp_path).lines  # a row without a measurement is no cell
    assert (line.row["rows"], line.row["cols"], line.measured) == ("128", "256", {"us": 3.5})
    assert line.label == "256 sum 128"
    assert line.place == f"{tmp_path}/rowops.csv:2"


def test_an_unknown_column(tmp_path: Path) -> None:
    assert _problems(tmp_path, "op,rows,colls,us\nsum,128,256,3.5\n") == [
        "rowops.csv:1:9: colls: expected the columns of rowops, got an unknown one [F1]\n"
        "    op,rows,colls,us\n"
        "            ^\n"
        "    did you mean `cols`?",
        "rowops.csv:1: cols: expected this column of rowops [F1]",
    ]


def test_a_column_that_stands_twice(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, "op,rows,cols,us,us\nsum,1,2,3,4\n")
    assert problem.startswith("rowops.csv:1:17: us: expected each column once, got it again [F6]")


def test_texts_in_numbers_are_told_all_at_once(tmp_path: Path) -> None:
    assert _problems(tmp_path, f"{_GOOD}sum,many,256,3.5\nsum,128,256,fast\n") == [
        "rowops.csv:3:5: rows: expected a whole number from 0, got text 'many' [F2]\n"
        "    sum,many,256,3.5\n"
        "        ^",
        "rowops.csv:4:13: us: expected a number above 0, or nothing, got text 'fast' [F2]\n"
        "    sum,128,256,fast\n"
        "                ^",
    ]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_time_that_cannot_be(tmp_path: Path, value: str) -> None:
    (problem,) = _problems(tmp_path, f"op,rows,cols,us\nsum,128,256,{value}\n")
    assert problem.startswith(
        f"rowops.csv:2:13: us: expected a number above 0, or nothing, got {value} [F3]"
    )


def test_a_row_that_is_too_short(tmp_path: Path) -> None:
    assert _problems(tmp_path, f"{_GOOD}sum,128\n") == [
        "rowops.csv:3: expected 4 values, got 2 [F2]"
    ]


def test_a_flag_that_is_none(tmp_path: Path) -> None:
    text = "backend,b,h,hk,s,d,causal,fwd_us,bwd_us\ncudnn,1,1,1,64,64,yes,3,\n"
    (problem,) = _problems(tmp_path, text, "attention")
    assert problem.startswith(
        "attention.csv:2:19: causal: expected one of 0, 1, False, True, got text 'yes' [F2]"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a table, got an empty file"),
        ("op,rows,cols,us\n", "expected rows with us, got none"),
        ("op,rows,cols,us\nsum,1,2,\n", "expected rows with us, got none"),
    ],
)
def test_files_with_nothing_in_them(tmp_path: Path, text: str, told: str) -> None:
    assert _problems(tmp_path, text) == [f"rowops.csv: {told} [F11]"]


def test_a_quote_that_never_ends(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, 'op,rows,cols,us\n"sum,128,256,3\n')
    assert problem.startswith("rowops.csv:2: expected comma-separated values: ")
    assert problem.endswith("[F10]")


def test_folders_without_tables(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("")
    for folder, told in (
        (tmp_path / "gone", "there is none"),
        (tmp_path / "gemm.csv", "got a file"),
    ):
        with pytest.raises(UsageError, match=f"expected a folder with tables, {told}"):
            read_folder(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"expected tables, \*\.csv; there are none"):
        read_folder(tmp_path / "empty")


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "rowops.csv").write_text(_GOOD)
    (tmp_path / "rowopps.csv").write_text("a\n1\n")
    read = read_folder(tmp_path)
    assert len(read.lines) == 1
    assert read.unknown == {
        f"{tmp_path}/rowopps.csv": "no table is called so; did you mean `rowops`?"
    }
    (tmp_path / "images.csv").write_text("op,us\nconv,5\n")
    assert read_folder(tmp_path).unknown[f"{tmp_path}/images.csv"] == (
        "its rows are compared by kernbench calibrate, which runs no programs"
    )
    with pytest.raises(UsageError, match=r"--table gemm: .* has no gemm\.csv"):
        read_folder(tmp_path, ["gemm"])
