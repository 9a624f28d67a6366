"""Machines fitted to tables: the constants come back that the tables were made with."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kernbench.calibration.calibrating import STAGES, Calibrated, calibrate
from kernbench.calibration.cells import SOURCES, Machine, read_cells
from kernbench.calibration.fits import FITS
from kernbench.calibration.fitting import mean_error
from kernbench.calibration.readings import READINGS, event_us
from kernbench.calibration.shares import with_shares
from kernbench.calibration.values import amount, get, has_field, path_of, put
from kernbench.calibration.writing import text_of
from kernbench.errors import UsageError
from kernbench.topology import load_topology
from kernbench.topology.spec import SystemSpec

BASE = load_topology("h200x8").topology_obj.machine.system
TABLES = Path(__file__).resolve().parents[2] / "validation" / "h100x8"

OTHER = {
    "sip.launch": 2_000_000,
    "sip.cube.hbm.bandwidth": 3 * 10**12,
    "sip.kernels.gelu.element": 90,
    "sip.kernels.softmax.element": 90,
    "sip.kernels.softmax_warps.element": 87,
    "sip.kernels.softmax_registers.element": 157,
    "sip.kernels.row_sum.share": 60,
}
"""Numbers of a machine that is unlike the base; those of softmax are half as much again."""


def written(folder: Path, name: str, lines: Sequence[Mapping[str, object]]) -> None:
    with (folder / f"{name}.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def tables_of(system: SystemSpec, folder: Path, event: float) -> None:
    """Writes the tables that a host would give that is exactly as a machine."""
    machine = Machine(system)

    def us(table: str, line: Mapping[str, object]) -> dict[str, object]:
        texts = {name: str(value) for name, value in line.items()}
        (law,) = SOURCES[table].laws.values()
        taken = event * SOURCES[table].events(texts)
        return {**line, "us": law(machine, texts) / 1e6 + taken}

    memory = [{"op": op, "bytes": 4096 << at} for at in range(20) for op in ("copy", "add")]
    written(folder, "memory", [{**us("memory", line), "gbps": 5000.0} for line in memory])
    elementwise = [
        {"op": op, "dtype": dtype, "bytes": 1 << at}
        for op in ("add", "exp", "gelu")
        for dtype in ("bf16", "fp32")
        for at in (20, 23, 25, 27, 29)
    ]
    written(folder, "elementwise", [us("elementwise", line) for line in elementwise])
    rows = [
        {"op": op, "rows": rows, "cols": columns}
        for op in ("softmax", "sum", "mean")
        for rows in (1024, 4096, 16384, 65536)
        for columns in (512, 1024, 4096, 16384, 32768)
    ]
    written(folder, "rowops2", [us("rowops2", line) for line in rows])
    written(folder, "launch", [{"what": "add_ 32 floats, graph of 20", "us": 1.5 + event / 20}])
    host = {"event pair around one add_ (GPU time)": 1.5 + event, "x.add_(1)": 12.72}
    alone = {"who": "one process", "n": 1, "cpus": "free"}
    written(folder, "host", [{"what": what, **alone, "us": us} for what, us in host.items()])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """What is fitted to the tables of a machine that has `OTHER` numbers."""
    pytest.importorskip("scipy")
    folder, machine = tmp_path_factory.mktemp("tables"), BASE
    for place, number in OTHER.items():
        machine = put(machine, path_of(place), number)
    tables_of(machine, folder, event=2.5)
    return calibrate(folder, BASE)


@pytest.mark.parametrize(("place", "number"), OTHER.items())
def test_the_numbers_come_back_that_made_the_tables(
    found: Calibrated, place: str, number: int
) -> None:
    assert amount(get(found.system, path_of(place))) == pytest.approx(number, rel=0.03)
    assert place in found.told


def test_the_event_pair_is_taken_off(found: Calibrated) -> None:
    assert found.event_us == pytest.approx(2.5)
    for cells, before, after, aside in found.tables.values():
        assert cells > 20
        assert after < 0.02 < before
        assert aside < 0.02


def test_host_times_are_in_proportion_to_the_loop_unless_a_line_tells_them(
    found: Calibrated,
) -> None:
    host = found.system.host
    assert BASE.host.loop == 6_360_000
    assert host.loop == 12_700_000
    assert host.eager.view == pytest.approx(2 * 2_400_000, rel=0.01)
    assert host.dispatch == pytest.approx(2 * 9_300_000, rel=0.01)
    assert host.eager.autograd == pytest.approx(2 * 2_000_000, rel=0.01)
    assert host.eager.beside_percent == BASE.host.eager.beside_percent


def test_what_no_table_tells_stays_as_it_was(found: Calibrated) -> None:
    assert found.system.sip.pe == BASE.sip.pe
    assert found.system.sip.kernels["batch_norm"] == BASE.sip.kernels["batch_norm"]
    assert {outcome.missing for outcome in found.outcomes if outcome.fit.table == "images"} == {
        "too few lines in images.csv"
    }


def test_the_file_says_what_each_number_is_from_and_reads_as_the_machine(
    found: Calibrated, tmp_path: Path
) -> None:
    text = text_of(found, Path("tables"), "h200x8", {"sip.cube.pes": "datasheet"})
    file = tmp_path / "m.yaml"
    file.write_text(text)
    assert load_topology(file).topology_obj.machine.system == found.system
    assert "    launch: 2 us                        # measured, memory.csv: 0 % of 4\n" in text
    assert "      pes: 132                          # datasheet\n" in text
    assert "    collective_launch: 18.5 us          # inferred from h200x8\n" in text
    assert "# inferred, host.csv: the base's, x 2.00 as `loop`\n" in text
    assert max(map(len, text.splitlines())) < 120


def test_cells_kept_aside_are_half_and_always_the_same() -> None:
    cells = list(read_cells(TABLES))
    again = list(read_cells(TABLES))
    assert [cell.aside for cell in cells] == [cell.aside for cell in again]
    assert 0.4 < sum(cell.aside for cell in cells) / len(cells) < 0.6


@pytest.mark.parametrize(
    ("table", "most"),
    [("elementwise", 9), ("rowops2", 13), ("gemm2", 9), ("attention2", 7), ("images", 19)],
)
def test_the_shipped_h100_is_near_the_tables_that_it_is_from(table: str, most: float) -> None:
    system = load_topology("h100x8").topology_obj.machine.system
    cells = [cell for cell in read_cells(TABLES) if cell.table == table]
    pair = event_us(TABLES)
    assert pair is not None
    assert pair == pytest.approx((3.36 - 1.12) * 20 / 19)  # a graph's 20 calls have a pair, too
    assert 100 * mean_error(cells, system, pair) < most
    like = with_shares(system, BASE)
    assert mean_error(cells, system, pair) < mean_error(cells, like, pair)


@pytest.mark.slow
def test_a_fit_from_another_machine_comes_as_near_to_each_table_as_the_shipped_file() -> None:
    pytest.importorskip("scipy")
    shipped = load_topology("h100x8").topology_obj.machine.system
    found = calibrate(TABLES, with_shares(shipped, BASE))
    cells = list(read_cells(TABLES))
    for name, (_, _, after, _) in found.tables.items():
        of_it = [cell for cell in cells if cell.table == name]
        assert after < mean_error(of_it, shipped, found.event_us) + 0.01


def test_every_number_that_is_fitted_is_one_of_the_machine() -> None:
    places = [place for fit in FITS for number in fit.numbers for place in number.split("+")]
    places += [reading.number for reading in READINGS]
    assert [place for place in places if not has_field(BASE, path_of(place))] == []
    assert {fit.stage for fit in FITS} | {reading.stage for reading in READINGS} <= set(STAGES)
    assert {fit.table for fit in FITS} <= set(SOURCES)


def test_a_number_inside_a_list_is_put_and_rounded() -> None:
    path = path_of("sip.pe.gemm.library.kernels.1.edge")
    changed = put(BASE, path, 31.4)
    assert get(changed, path) == 31
    assert get(changed, path_of("sip.pe.gemm.library.kernels.0.edge")) == 24
    assert get(BASE, path) == 20
    assert get(put(BASE, ("sip", "launch"), 1_234_567), ("sip", "launch")) == 1_230_000
    assert get(BASE, ("sip", "nothing", "there")) is None


def test_a_kernel_that_a_file_does_not_have_begins_with_the_price_of_the_like() -> None:
    changed = put(BASE, path_of("sip.kernels.gelu_backward.element"), 70)
    assert changed.sip.kernels["gelu_backward"].share == BASE.sip.kernels["gelu"].share
    assert changed.sip.kernels["gelu_backward"].element == 70


def test_without_scipy_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(UsageError, match="SciPy") as caught:
        calibrate(tmp_path, BASE)
    assert "pip install scipy" in str(caught.value)


def test_a_folder_without_tables_and_a_wrong_line_are_named(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    with pytest.raises(UsageError, match="no such folder"):
        calibrate(tmp_path / "nowhere", BASE)
    with pytest.raises(UsageError, match=r"measure/README\.md"):
        calibrate(tmp_path, BASE)


@pytest.mark.parametrize(
    ("table", "text", "said"),
    [
        ("gemm2", "dtype,m,n,k,us\nbf16,1,2,3,quick\n", r"gemm2\.csv: bf16 1 2 3 quick: .*'quick'"),
        (
            "gemm2",
            "dtype,m,n,k,us\nbf61,1,2,3,9\n",
            r"gemm2\.csv: bf61 1 2 3 9: dtype 'bf61' is not known",
        ),
        ("gemm2", "dtype,m,n,k,us\nbf16,1,2,3,0\n", r"gemm2\.csv: .*: expected us above 0, got 0"),
        ("gemm2", "dtype,m,n,k,ms\nbf16,1,2,3,9\n", r"gemm2\.csv: .*: expected a column 'us'"),
        ("rowops2", "op,rows,cols,us\nsumm,1,2,3\n", r"rowops2\.csv: .*: no law for 'summ'"),
        ("host", "who,us\nme,3\n", r"host\.csv: expected a column 'what'"),
        ("memory", b"op,bytes\xff\n", r"memory\.csv"),
        (
            "memory",
            "op,bytes,us,gbps\nad,1024,3,\n",
            r"memory\.csv: ad 1024 3: op 'ad' is not",
        ),
        (
            "optim",
            "op,dtype,tensors,elements,us\nadamw_fused,bf16,146,99,3\n",
            r"optim\.csv: .*: tensors 146 with 99 elements: their shapes are not known",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, table: str, text: str | bytes, said: str) -> None:
    pytest.importorskip("scipy")
    (tmp_path / "gemm2.csv").write_text("dtype,m,n,k,us\nbf16,256,256,256,5\n")
    (tmp_path / f"{table}.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UsageError, match=said):
        calibrate(tmp_path, BASE)


def test_a_number_that_nobody_would_believe_stays_the_bases_and_is_said(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    # 1 MiB more takes 10 us more, so 4 KiB takes 0.04 us: nothing is left for the way there.
    copies = [
        {"dir": "h2d", "bytes": at, "us": at / (1 << 20) * 10} for at in (4096, 1 << 20, 1 << 21)
    ]
    written(tmp_path, "pcie", copies)
    written(tmp_path, "gemm2", [{"dtype": "bf16", "m": 256, "n": 256, "k": 256, "us": 50}])
    found = calibrate(tmp_path, BASE)
    assert found.system.host.pcie.latency == BASE.host.pcie.latency
    assert amount(found.system.host.pcie.bandwidth) == pytest.approx((1 << 20) / 1e-5, rel=0.01)
    assert list(found.unbelieved) == ["host.pcie.latency"]
    assert "pcie.csv tells -4.2e+06" in found.unbelieved["host.pcie.latency"]


@pytest.mark.slow
def test_the_public_tables_give_the_shipped_machine_again_within_a_point() -> None:
    pytest.importorskip("scipy")
    found = calibrate(TABLES.parent / "h200x8", BASE)
    assert len(found.tables) == 9
    for name, (_, before, after, _) in found.tables.items():
        assert abs(after - before) < 0.01, name
