"""Rows as programs on the invented machine, whose times can be worked out by hand."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench.validation.catalogue import TABLES
from kernbench.validation.experts import rows_of
from kernbench.validation.reading import read_table
from kernbench.validation.rows import run_row
from kernbench.validation.table import BRIDGE, OWN, Found

_HBM = 4 * 400e3  # bytes a microsecond of a SIP: four cubes
_LAUNCH = 1.0
_MIB = 1 << 20


def _run(table: str, text: str, folder: Path, which: str = OWN, machine: str = "sip8") -> Found:
    file = folder / f"{table}.csv"
    file.write_text(text)
    (line,) = read_table(file, TABLES[table])
    return run_row(line.table, line.row, which, machine)


def _memory(op: str, nbytes: int, folder: Path, which: str = OWN) -> float:
    text = f"op,bytes,us,gbps\n{op},{nbytes},1,\n"
    return _run("memory", text, folder, which).predicted["us"]


def test_a_copy_is_timed_without_the_host(tmp_path: Path) -> None:
    expected = _LAUNCH + 2 * 64 * _MIB / _HBM
    assert _memory("copy", 64 * _MIB, tmp_path) == pytest.approx(expected, abs=1e-3)


def test_calls_of_a_graph_follow_each_other(tmp_path: Path) -> None:
    # 2 us of the host a call would be more than the 1.25 us of the kernel.
    expected = _LAUNCH + 3 * 131072 / _HBM
    assert _memory("add", 131072, tmp_path) == pytest.approx(expected, abs=1e-3)


def test_an_event_pair_reads_what_recording_one_takes(tmp_path: Path) -> None:
    text = 'what,us\n"event pair, nothing between",1\n'
    found = _run("launch", text, tmp_path, machine="h200x8").predicted["us"]
    assert found == pytest.approx(4.2, abs=1e-3)


def test_a_look_up_reads_its_rows(tmp_path: Path) -> None:
    text = "op,dtype,vocab,hidden,tokens,us\nembedding,bf16,4096,1024,1024,1\n"
    expected = _LAUNCH + (2 * 2 * 1024 * 1024 + 8 * 1024) / _HBM
    found = _run("embedding", text, tmp_path).predicted["us"]
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_collective_is_timed_behind_another(tmp_path: Path) -> None:
    head = "op,algo,n,bytes,dtype,graph,us,min_us\n"
    one = _run("collectives", f"{head}all_reduce,default,2,{2 * _MIB},bf16,1,1,\n", tmp_path)
    two = _run("collectives", f"{head}all_reduce,default,2,{4 * _MIB},bf16,1,1,\n", tmp_path)
    # A ring of two sends half of the buffer twice, over a link of 50 GB/s.
    each = two.predicted["us"] - one.predicted["us"]
    assert each == pytest.approx(2 * 2 * _MIB / 2 / 50e3, abs=1e-3)


def test_a_column_that_is_blank_is_not_measured(tmp_path: Path) -> None:
    text = "backend,b,h,hk,s,d,causal,fwd_us,bwd_us\ncudnn,1,1,1,64,64,1,3,\n"
    assert set(_run("attention", text, tmp_path).predicted) == {"fwd_us"}


def test_what_is_not_known_is_told_by_name(tmp_path: Path) -> None:
    head = "op,rows,cols,us\n"
    assert _run("rowops", f"{head}softmaxx,8,8,1\n", tmp_path).missing == (
        "op 'softmaxx' is not known; did you mean `softmax`?"
    )
    fp8 = "dtype,m,n,k,us,tflops\nfp8,64,64,64,1,\n"
    assert "torch._scaled_mm is not in kernbench.torch" in _run("gemm", fp8, tmp_path).missing


def test_a_program_needs_its_packages(tmp_path: Path) -> None:
    text = "gpu,command,step_ms,runs_ms,spread,peak_mib\nH200,vision.py resnet50,1,,,\n"
    assert _run("programs3", text, tmp_path).missing == "a program of PyTorch"


def test_experts_rows_add_up() -> None:
    assert rows_of("even", 4, 10) == [4, 2, 2, 2]
    assert rows_of("one", 4, 10) == [10, 0, 0, 0]
    assert rows_of("half_empty", 4, 10) == [5, 0, 5, 0]
    assert rows_of("zipf", 3, 11) == [6, 3, 2]  # of 6, 3 and 2 elevenths


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_table_measures_its_columns(table: str) -> None:
    columns = TABLES[table].columns
    assert any(kind.name == "MEASURED" for kind in columns.values())
    assert TABLES[table].about


_ROWS = {"host_tp": 4}
"""Places of rows that are run in place of the first, which does not say the heads."""


def _some_rows() -> Iterator[tuple[str, str]]:
    folder = Path(__file__).parents[2] / "validation" / "h200x8"
    for table in TABLES.values():
        file = folder / f"{table.name}.csv"
        if file.exists() and not table.scripts:
            with file.open() as lines:
                head, *rows = csv.reader(lines)
            row = ",".join(f'"{each}"' for each in rows[_ROWS.get(table.name, 0)])
            yield table.name, f"{','.join(head)}\n{row}\n"


@pytest.mark.torch
@pytest.mark.parametrize(("table", "text"), list(_some_rows()))
def test_a_row_takes_as_long_under_both_torches(table: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if table.startswith("triton"):
        pytest.importorskip("triton")
    found = _run(table, text, tmp_path, BRIDGE, "h200x8")
    assert not found.missing
    own = _run(table, text, tmp_path, OWN, "h200x8")
    if not own.missing:
        for column, value in own.predicted.items():
            assert value == pytest.approx(found.predicted[column], rel=0.03), column
