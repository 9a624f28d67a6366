"""The tables of the public host: what is stored is what is simulated, and what documents say."""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernbench.validation.catalogue import TABLES
from kernbench.validation.reading import read_folder
from kernbench.validation.rows import run_row
from kernbench.validation.table import BRIDGE, OWN, Found
from kernbench.validation.validating import validate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "validation" / "h200x8"
ANEW = "`python validation/refresh.py` writes it anew"

MOST = {
    "gemm": 6,
    "gemm2": 8,
    "gemm_chain": 22,
    "gemm_sustained": 9,
    "memory": 3,
    "elementwise": 5,
    "rowops": 11,
    "rowops2": 8,
    "rowops3": 10,
    "embedding": 4,
    "optim": 11,
    "pcie": 3,
    "attention": 3,
    "attention2": 4,
    "attention3": 13,
    "collectives": 6,
    "collectives forced": 7,
    "protocols": 6,
    "p2p": 10,
    "concurrent": 13,
    "tp_mlp": 6,
    "host_ranks graph": 7,
    "host_ranks host": 40,
    "host_ranks gpu": 27,
    "overlap": 7,
    "overlap2": 6,
    "model": 20,
    "cp_attention": 7,
    "moe": 12,
    "programs host-bound": 11,
    "programs device-bound": 4,
    "programs3 step": 9,
    "triton_add": 4,
    "triton_softmax": 4,
    "triton_gemm": 6,
    "triton_flash": 6,
    "triton_more layer_norm": 7,
    "triton_more rms_loop": 12,
    "triton_more swiglu": 7,
    "triton_more dropout": 7,
    "triton_more transpose": 10,
    "triton_more column_sum": 40,
    "triton_more column_sum_late": 15,
    "triton_more scan_rows": 6,
    "triton_more gather_rows": 7,
    "triton_more gemm": 7,
    "triton_more fma_turns": 16,
    "triton_more store_turns": 13,
    "triton_more copy_turns": 52,
    "triton_more chase": 66,  # where nothing comes from the L1
    "triton_more add_at": 17,
    "triton_more add_apart": 12,
    "triton_more count_ids": 34,
    "triton_more take_tickets": 16,
    "triton_more sum_within": 37,
    "triton_more flash": 7,
    "symmetric barrier": 10,
    "symmetric signal": 24,
    "symmetric kernel_barrier": 10,
    "symmetric copy_from": 3,
    "symmetric copy_to": 7,
    "symmetric add_from": 11,
    "symmetric add_to": 7,
    "symmetric kernel_read": 8,
    "symmetric kernel_write": 10,
    "symmetric one_shot": 16,
    "symmetric two_shot": 21,
    "symmetric fused_all_gather_matmul": 11,
    "symmetric fused_matmul_reduce_scatter": 12,
    "symmetric one_shot_all_reduce_out": 12,
    "symmetric one_shot_all_reduce_copy_out": 13,
    "symmetric two_shot_all_reduce_": 17,
    "symmetric two_shot_all_reduce_out": 20,
    "symmetric reduce_scatter_out": 20,
    "symmetric _low_contention_all_gather": 19,
    "symmetric _low_contention_reduce_scatter": 22,
}
"""Mean absolute percentage errors that no table may exceed under either torch."""


@cache
def _stored() -> Any:
    return json.loads((FOLDER / "result.json").read_text(encoding="utf-8"))


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "validation" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _differences(which: str, every: int) -> list[str]:
    """Returns the cells of a sample whose prediction is not the stored one."""
    stored = {
        (cell["table"], cell["line"], cell["column"]): cell[which] for cell in _stored()["cells"]
    }
    wrong = []
    lines = [
        line
        for line in read_folder(FOLDER).lines
        if not line.table.scripts and not line.table.needs(line.row)
    ]
    for line in lines[::every]:
        found = run_row(line.table, line.row, which, "h200x8")
        for column in line.measured:
            was = stored[line.table.name, line.number, column]
            now = found.predicted.get(column)
            if was != now:
                wrong.append(f"{line.place} {column}: {was} was stored, now {now}")
    return wrong


def test_a_sample_takes_as_long_as_stored() -> None:
    assert not _differences(OWN, 20), ANEW


@pytest.mark.slow
def test_all_rows_take_as_long_as_stored() -> None:
    assert not _differences(OWN, 1), ANEW


@pytest.mark.torch
def test_a_sample_takes_as_long_as_stored_under_pytorch() -> None:
    pytest.importorskip("torch")
    assert not _differences(BRIDGE, 40), ANEW


@pytest.mark.torch
@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("triton_add", 1),
        ("triton_softmax", 1),
        ("triton_gemm", 1),
        ("triton_flash", 1),
        ("triton_more", 2),  # rms_loop
        ("triton_more", 9),  # swiglu
        ("triton_more", 20),  # column_sum
    ],
)
def test_kernels_of_triton_take_about_as_long_as_stored(table: str, place: int) -> None:
    """Exactly as long only by the version of Triton's compiler that was there."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    line = read_folder(FOLDER, [table]).lines[place]
    found = run_row(line.table, line.row, BRIDGE, "h200x8")
    (stored,) = (
        cell[BRIDGE]
        for cell in _stored()["cells"]
        if (cell["table"], cell["line"]) == (table, line.number)
    )
    assert found.predicted["us"] == pytest.approx(stored, rel=0.1)


_OF_TRITON = {"triton_add", "triton_softmax", "triton_gemm", "triton_flash"}


def test_kernels_of_triton_are_near_on_rows_that_nothing_was_fitted_on() -> None:
    errors: dict[str, list[float]] = {}
    for cell in _stored()["cells"]:
        if cell["table"] in _OF_TRITON and (cell["line"] - 2) % 4 in (0, 3):
            error = abs(cell[BRIDGE] / cell["measured"] - 1)
            errors.setdefault(cell["table"], []).append(error)
    assert sum(map(len, errors.values())) == 16
    for of_table in errors.values():
        assert sum(of_table) / len(of_table) < 0.12
        assert max(of_table) < 0.4


@pytest.mark.torch
@pytest.mark.parametrize("program", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_a_program_of_several_ranks_takes_as_long_as_stored(program: str) -> None:
    pytest.importorskip("torch")
    line = next(
        line
        for line in read_folder(FOLDER, ["programs"]).lines
        if (line.row["program"], line.row["world"], line.row["hidden"]) == (program, "2", "1024")
    )
    found = run_row(line.table, line.row, BRIDGE, "h200x8")
    stored = [
        cell[BRIDGE]
        for cell in _stored()["cells"]
        if (cell["table"], cell["line"]) == ("programs", line.number)
    ]
    assert list(found.predicted.values()) == stored, ANEW


@pytest.mark.parametrize("machine", ["h200x8", "h100x8"])
def test_a_result_names_files_from_the_root(machine: str) -> None:
    told = json.loads((FOLDER.parent / machine / "result.json").read_text(encoding="utf-8"))
    assert all(path.startswith(f"validation/{machine}/") for path in told["unknown_files"])


def test_every_row_is_in_the_result() -> None:
    rows = {
        (line.table.name, line.number, column): value
        for line in read_folder(FOLDER).lines
        for column, value in line.measured.items()
    }
    stored = {
        (cell["table"], cell["line"], cell["column"]): cell["measured"]
        for cell in _stored()["cells"]
    }
    assert stored == rows, ANEW


def test_scores_are_those_of_the_cells() -> None:
    by_part: dict[str, list[tuple[float, float]]] = {}
    rows = {(line.table.name, line.number): line.row for line in read_folder(FOLDER).lines}
    for cell in _stored()["cells"]:
        part = TABLES[cell["table"]].part(rows[cell["table"], cell["line"]], cell["column"])
        if cell[OWN] is not None:
            name = f"{cell['table']} {part}".rstrip()
            by_part.setdefault(name, []).append((cell[OWN], cell["measured"]))
    for part, cells in by_part.items():
        told = _stored()["tables"][part][OWN]
        errors = [abs(predicted / measured - 1) for predicted, measured in cells]
        assert told["mape"] == pytest.approx(sum(errors) / len(errors), abs=1e-4), part
        assert told["cells"] == len(cells)
        assert told["within_10_percent"] == pytest.approx(
            sum(error <= 0.1 for error in errors) / len(errors), abs=1e-4
        )


@pytest.mark.parametrize("part", MOST)
def test_no_table_is_farther_off_than_it_was(part: str) -> None:
    for torch, told in _stored()["tables"][part].items():
        assert 0 < 100 * told["mape"] <= MOST[part], torch


def test_the_document_says_what_is_stored() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert _script().with_tables(text, _stored()) == text, ANEW


def test_a_law_has_fewer_numbers_than_a_fifth_of_its_cells() -> None:
    script = _script()
    for line in list(script.laws(_stored()))[1:]:
        name, _, numbers, cells, _ = (part.strip() for part in line.strip("|\n").split("|"))
        assert int(numbers) > 0, name
        if name not in {"rows", "look-ups", "lists", "PCIe"}:  # the document says why
            assert int(numbers) < int(cells) / 5, name


def test_numbers_of_a_file_are_counted_with_their_units() -> None:
    count = _script().numbers
    assert count({"a": "4.5 us", "b": [1, {"c": 2.5}], "d": "flash", "e": True, "f": None}) == 3


def test_what_a_program_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.validation.rows.find_spec", lambda name: None)
    line = next(
        line
        for line in read_folder(FOLDER, ["programs3"]).lines
        if line.row["command"].startswith("vision.py")
    )
    assert run_row(line.table, line.row, BRIDGE, "h200x8") == Found(missing="needs torchvision")
    done = validate(FOLDER, "sip8", names=["programs3"], which=[OWN], jobs=1)
    assert {each.found[OWN].missing for each in done.results} == {
        "measured on H200, and the machine is sip8"
    }
