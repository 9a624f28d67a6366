"""The script that users run on their GPUs, tried without one."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.calibration.cells import read_cells

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).resolve().parents[2] / "measure" / "measure.py"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
TABLES = ("launch", "memory", "elementwise", "rowops2", "gemm2", "embedding", "optim")


def lines(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def measured(folder: Path, *arguments: str, ranks: int = 1) -> None:
    command = [sys.executable, str(SCRIPT)]
    if ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={ranks}", str(SCRIPT)]
    options = ["--device", "cpu", "--quick", "--out", str(folder), *arguments]
    done = subprocess.run(
        [*command, *options], env=ENV, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_what_is_measured_is_read_and_not_measured_again(tmp_path: Path) -> None:
    measured(tmp_path, "--tables", *TABLES)
    files = {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    assert set(files) == {f"{name}.csv" for name in TABLES}
    cells = list(read_cells(tmp_path))
    assert {cell.table for cell in cells} == set(TABLES) - {"launch"}
    assert {line["op"] for line in lines(tmp_path / "rowops2.csv")} >= {"softmax", "softmax_bwd"}
    short = (tmp_path / "rowops2.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rowops2.csv").write_text("".join(short[:-1]))
    measured(tmp_path, "--tables", *TABLES)
    again = {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    assert {name for name, text in again.items() if text != files[name]} == {"rowops2.csv"}
    assert again["rowops2.csv"].startswith("".join(short[:-1]))
    assert len(again["rowops2.csv"].splitlines()) == len(short)


def test_ranks_measure_collectives_together_and_say_the_host_s_part(tmp_path: Path) -> None:
    measured(tmp_path, "--tables", "collectives", "host_collectives", "p2p", ranks=2)
    found = lines(tmp_path / "collectives.csv")
    assert [line["op"] for line in found] == [
        *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"),
        "ring_exchange",
    ]
    assert {(line["n"], line["algo"], line["graph"]) for line in found} == {("2", "default", "1")}
    assert all(float(line["us"]) > 0 for line in found)
    assert {line["who"] for line in lines(tmp_path / "host.csv")} == {"all two"}
    assert {line["pattern"] for line in lines(tmp_path / "p2p.csv")} == {
        "send 0->1 (mean over all ranks)"
    }
