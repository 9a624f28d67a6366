"""The commands of the first minutes: what is installed, and the tour."""

import importlib.metadata
from pathlib import Path

import pytest

from kernbench.cli import doctor
from kernbench.cli.app import app
from kernbench.cli.tour import STOPS, tour
from kernbench.cli.verdicts import idle_line
from kernbench.sim_engine.op_log import Category, Total


def test_the_doctor_says_of_each_part_its_version_or_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"torch": "2.12.0", "pytest": "9.0"}

    def version(package: str) -> str:
        if package not in there:
            raise importlib.metadata.PackageNotFoundError
        return there[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(SystemExit) as ended:
        app(["doctor"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for part in doctor.PARTS:
        assert part.enables in said
        assert (part.install in said) == (part.package not in there)
    assert "torch            2.12.0: kernbench torchrun" in said
    assert "2.13" in said.split("torch            2.12.0")[1].split("triton")[0]


@pytest.mark.slow
def test_the_tour_runs_its_six_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tour(tmp_path / "tour") == 0
    out, err = capfd.readouterr()
    for stop in STOPS:
        assert f"$ {stop.command}\n" in out
        assert f"-> {stop.look}\n" in out
    assert "host-bound: the device idles" in out
    assert "[C1] all_reduce #2 of group WORLD: ranks 0-2 wait for rank 3" in err
    assert (tmp_path / "tour" / "page.html").stat().st_size > 50_000


def test_a_tour_in_a_place_that_cannot_be_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        app(["tour", "--folder", str(file)])
    assert ended.value.code == 2
    assert "it is no folder" in capsys.readouterr().err


def test_idle_time_is_what_sums_of_commands_leave() -> None:
    # Rank 0 has 300 of 1000 ps to do, rank 1 more than all: 700 and 0 are left.
    totals: dict[tuple[int, Category], Total] = {
        (0, "compute"): Total(3, 200),
        (0, "collective"): Total(1, 100),
        (0, "event"): Total(1, 500),
        (1, "compute"): Total(9, 5000),
        (-1, "compute"): Total(1, 1000),
    }
    assert idle_line(totals, 1000) == (
        "devices are idle for at least 35% of the time; --explain-time says why"
    )
    assert idle_line(totals, 300) == ""
    assert idle_line({}, 300) == ""
