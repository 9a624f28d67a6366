"""`kernbench validate`: its table, its JSON, its exit codes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kernbench.cli.app import app
from kernbench.validation.running import Result as Row
from kernbench.validation.summary import score
from kernbench.validation.table import OWN
from kernbench.validation.validating import Validation, validate

_COPIES = "op,bytes,us,gbps\ncopy,67108864,80,\ncopy,16777216,24,\nexchange,4096,2,\n"


def _command(*words: object) -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "tables"
    found.mkdir()
    (found / "memory.csv").write_text(_COPIES)
    return found


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if PyTorch were not installed, whether it is or not."""
    monkeypatch.setattr("kernbench.validation.validating.torches", lambda: (OWN,))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("name", "machine"), [("sip8", "sip8"), ("mine", "h200x8")])
def test_a_folder_that_is_called_as_a_machine_is_of_it(
    tmp_path: Path, name: str, machine: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "memory.csv").write_text("op,bytes,us,gbps\ncopy,67108864,80,\n")
    assert _command(tmp_path / name, "--jobs", 1).output.startswith(f"{machine} ")


@pytest.mark.usefixtures("own")
def test_what_is_printed_and_written(folder: Path, tmp_path: Path) -> None:
    (folder / "gem.csv").write_text("a\n1\n")
    file = tmp_path / "out.json"
    done = _command(folder, "--topology", "sip8", "--jobs", 1, "-v", "--json", file)
    assert done.exit_code == 1
    # 1 us and 2 * 64 MiB over 1.6 TB/s are 84.886 us; 1 us and 2 * 16 MiB are 21.972 us.
    errors = 84.88608 / 80 - 1, 21.97152 / 24 - 1
    cells, row, *rest = re.split(r"(?m)^(?:sip8 .*\ntable .*\n|memory .*\n)", done.output)
    assert cells.splitlines() == [
        f"{folder}/memory.csv:2: copy 67108864 us: measured 80, own torch 84.8861 (+6.1%)",
        f"{folder}/memory.csv:3: copy 16777216 us: measured 24, own torch 21.9715 (-8.5%)",
        f"{folder}/memory.csv:4: exchange 4096 us: measured 2, own torch -",
    ]
    assert not row
    line = next(each for each in done.output.splitlines() if each.startswith("memory "))
    assert " ".join(line.split()) == "memory | 2 7.3% 0.986 100% -8% | copy 16777216"
    assert "".join(rest).splitlines() == [
        "memory.csv:4: not simulated by own torch: op 'exchange' is not known",
        f"{folder}/gem.csv: not simulated: no table is called so; did you mean `gemm`?",
        "PyTorch is not installed: all of it is by kernbench.torch",
        "1 row of 3 simulated by no torch, 1 file not run",
    ]
    told: dict[str, Any] = json.loads(file.read_text())
    assert told["machine"] == "sip8"
    assert told["tables"] == {
        "memory": {
            "own": {
                "cells": 2,
                "mape": round((errors[0] - errors[1]) / 2, 4),
                "geomean": round(((1 + errors[0]) * (1 + errors[1])) ** 0.5, 4),
                "within_10_percent": 1.0,
                "worst": round(errors[1], 4),
                "worst_cell": "copy 16777216",
            }
        }
    }
    assert told["cells"][0] == {
        "table": "memory",
        "line": 2,
        "cell": "copy 67108864",
        "column": "us",
        "measured": 80.0,
        "own": 84.88608,
    }
    assert [each["reason"] for each in told["not_simulated"]] == ["op 'exchange' is not known"]
    assert list(told["unknown_files"]) == [f"{folder}/gem.csv"]


@pytest.mark.usefixtures("own")
def test_whole_programs_are_run_on_demand(folder: Path) -> None:
    head = "gpu,command,step_ms,runs_ms,spread,peak_mib\n"
    (folder / "programs3.csv").write_text(f"{head}sip8,unet.py 16 64,9,,,\nH100,lm.py gpt2,9,,,\n")
    assert validate(folder, "sip8", jobs=1).not_run == {"programs3": 2}
    done = validate(folder, "sip8", jobs=1, programs=True, names=["programs3"])
    assert [each.found[OWN].missing for each in done.results] == [
        "a program of PyTorch",
        "measured on H100, and the machine is sip8",
    ]


@pytest.mark.usefixtures("own")
def test_the_number_of_processes_changes_nothing(folder: Path) -> None:
    (folder / "rowops.csv").write_text("op,rows,cols,us\nsum,128,256,3\nsoftmax,1024,4096,9\n")

    def cells(jobs: int, every: int = 1) -> list[Any]:
        cells: list[Any] = validate(folder, "sip8", jobs=jobs, every=every).as_json()["cells"]
        return cells

    assert cells(1) == cells(3)
    assert cells(2, every=2) == [each for each in cells(1) if each["line"] % 2 == 0]


def test_mistakes_end_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    (folder / "memory.csv").write_text("op,bytes,us,gbps\ncopy,big,1,\n")
    done = _command(folder)
    assert done.exit_code == 2
    assert "memory.csv:2:6: bytes: expected a whole number from 0, got text 'big' [F2]" in (
        done.output
    )
    for words, told in (
        ([tmp_path / "gone"], "expected a folder with tables"),
        ([folder, "--topology", "h300"], "h300"),
        ([folder, "--json", tmp_path / "gone" / "x.json"], "[F15] cannot write"),
        ([folder, "--plot", tmp_path / "x.gif"], "expected a name that ends in one of .png"),
        ([folder, "--table", "gemm"], "has no gemm.csv"),
    ):
        done = _command(*words)
        assert (done.exit_code, told in done.output) == (2, True), done.output


def test_the_worst_cell_is_the_farthest_by_its_ratio() -> None:
    found = score([(0.9, "twice"), (-0.6, "less than half"), (0.1, "near")])
    assert found is not None
    assert (found.worst, found.worst_cell) == (-0.6, "less than half")
    assert found.near == pytest.approx(1 / 3)
    assert found.mape == pytest.approx((0.9 + 0.6 + 0.1) / 3)
    assert found.geomean == pytest.approx((1.9 * 0.4 * 1.1) ** (1 / 3))
    assert score([]) is None


@pytest.mark.plot
@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.usefixtures("own")
def test_a_picture_is_the_same_each_time(folder: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    from kernbench.validation.picture import write_picture

    done = validate(folder, "sip8", jobs=1)
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        write_picture(file, done)
    assert files[0].read_bytes() == files[1].read_bytes()
    nothing: list[Row] = []
    write_picture(files[0], Validation("sip8", (OWN,), nothing, {}, {}))
    assert files[0].read_bytes() != files[1].read_bytes()
