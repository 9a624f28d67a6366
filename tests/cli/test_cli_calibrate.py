"""`kernbench calibrate`: a folder of tables in, a machine file out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from kernbench.cli.failures import Exit
from kernbench.topology import load_topology

MEASURED = Path(__file__).resolve().parents[2] / "validation" / "h100x8"


def test_a_machine_of_a_datasheet_gets_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("memory", "embedding", "host", "launch"):
        (folder / f"{name}.csv").write_text((MEASURED / f"{name}.csv").read_text())
    runner = CliRunner()
    assert runner.invoke(app, ["new-machine", "sheet"]).exit_code == Exit.OK
    done = runner.invoke(
        app, ["calibrate", "mine", "-o", "gpu.yaml", "--topology", "sheet.yaml", "-v"]
    )
    assert done.exit_code == Exit.OK, done.output
    assert "cube.hbm.bandwidth" in done.output
    text = Path("gpu.yaml").read_text()
    assert "    launch: 1.18 us                     # measured, memory.csv: 1 % of 4\n" in text
    assert "          start: 400 ns                 # inferred from h200x8\n" in text
    system = load_topology("gpu.yaml").topology_obj.machine.system
    base = load_topology("h200x8").topology_obj.machine.system
    assert system.sip.kernels["softmax"] == base.sip.kernels["softmax"]
    assert system.sip.pe.attention == base.sip.pe.attention
    # The sheet's 7.49 TFLOP/s of a PE are the library's; tiles of one size reach 6.2 of 7.49.
    gemm = system.sip.pe.gemm
    assert gemm.library is not None
    assert gemm.library.kernels[0].rate["bf16"].per_second == 7_490 * 10**9
    assert gemm.rate["bf16"].per_second == 6_200 * 10**9


def test_a_table_whose_law_does_not_hold_is_said_in_words(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    sizes = [(m, n) for m in (16, 256, 4096) for n in (16, 256, 4096)]
    rows = "".join(f"bf16,{m},{n},4096,{1000 + m}\n" for m, n in sizes)  # whatever n is
    (tmp_path / "gemm2.csv").write_text(f"dtype,m,n,k,us\n{rows}")
    done = CliRunner().invoke(app, ["calibrate", str(tmp_path), "-o", str(tmp_path / "m.yaml")])
    assert done.exit_code == Exit.OK, done.output
    assert "! gemm2: off by " in done.output


def test_a_folder_that_is_not_there_is_a_mistake_in_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    out = tmp_path / "m.yaml"
    done = CliRunner().invoke(app, ["calibrate", str(tmp_path / "no"), "-o", str(out)])
    assert done.exit_code == Exit.USAGE
    assert "no such folder" in done.output
    assert not out.exists()


def test_a_file_that_cannot_be_written_is_named_before_anything_is_fitted(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "m.yaml"
    done = CliRunner().invoke(app, ["calibrate", str(MEASURED), "-o", str(out)])
    assert done.exit_code == Exit.USAGE
    assert f"cannot write {out}" in done.output
    assert "# memory" not in done.output
