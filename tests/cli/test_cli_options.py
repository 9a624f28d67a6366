"""The command that repeats a run."""

import dataclasses
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from kernbench.cli import run
from kernbench.cli.app import app
from kernbench.cli.options import Options, command

DIALS = [
    "--topology my.yaml --ccl my/ccl.yaml --set system.sips.count=4 --set defaults.n_elem=8",
    "--data off --fidelity tile --eager-limit 4096 --watchdog 2.5",
    "--seed 9 --schedule 2.1",
    "--explore 7",
    "-- --op all_to_all 'two words'",
    "",
]
OUTPUTS = ["", "--trace a.json --flight-recorder b --json c --breakdown --quiet --verbose"]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Everything that a bench is run with."""
    seen: list[Options] = []

    def note(options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(run, "run_bench", note)
    return seen


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("dials", DIALS)
def test_a_command_says_again_what_changes_a_run(
    said: list[Options], dials: str, outputs: str
) -> None:
    argv = shlex.split(f"run 'my bench.py' {outputs} {dials}")
    assert CliRunner().invoke(app, argv).exit_code == 0
    (first,) = said
    schedule = ".".join(map(str, first.schedule or (0,)))
    program, *again = shlex.split(command(first, schedule))
    assert program == "kernbench"
    assert CliRunner().invoke(app, again).exit_code == 0
    silent: dict[str, Any] = {"trace": None, "flight_recorder": None, "json": None}
    silent |= {"breakdown": False, "quiet": False, "verbose": False}
    assert said[1] == dataclasses.replace(first, **silent)


def test_a_command_names_what_failed(said: list[Options]) -> None:
    CliRunner().invoke(app, ["run", "race.py", "--explore", "9", "--json", "out"])
    assert command(said[0], "0") == "kernbench run race.py --explore 9 --seed 0"
    assert command(said[0], "1.2") == "kernbench run race.py --seed 0 --schedule 1.2"
