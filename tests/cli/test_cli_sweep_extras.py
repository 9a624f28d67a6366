"""`kernbench sweep --plot` and `--on`: what is refused before any run, and what is passed on."""

from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import Executor
from typer.testing import CliRunner, Result

from kernbench.cli.app import app
from kernbench.cli.program_command import with_value as with_value_of
from kernbench.sweeps import drawing, executors, on_ray


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bench.py").write_text("def run(ctx): pass\n")
    monkeypatch.setattr(executors, "Local", lambda jobs, timeout_s: Executor())


def sweep(*words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", "bench.py", "--arg", "-n=1,2", *words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plot", "a.gif"], "expected a name that ends in one of .png, .svg, .pdf"),
        (["--plot", "a.svg"], "pip install matplotlib"),
        (["--x", "n"], "--x n: there is no picture"),
        (["--on", "ray"], "pip install ray"),
        (["--on", "slurm"], "--on: expected one of local, ray; got 'slurm'"),
        (["--address", "auto"], "only Ray has one"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_what_cannot_be_is_refused_before_any_run(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drawing, on_ray):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    done = sweep(*words)
    assert done.exit_code == 2
    assert told in done.stderr.replace("\n", " ")
    assert not list(Path().glob("a.*"))


def test_columns_and_files_reach_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def write(self: drawing.Plot, records: Any) -> None:
        drawn.append((self, [record.run.varied["-n"] for record in records()]))

    monkeypatch.setattr(drawing, "find_spec", lambda name: name)
    monkeypatch.setattr(drawing.Plot, "write", write)
    done = sweep("--plot", "a.svg", "--x", "n", "--y", "time.us", "--hue", "size")
    assert done.exit_code == 0, done.stderr
    plot = drawing.Plot(path=Path("a.svg"), x="n", y="time.us", hue="size")
    assert drawn == [(plot, ["1", "2"])]


@pytest.mark.plot
def test_a_column_that_is_not_there_keeps_what_was_done() -> None:
    pytest.importorskip("matplotlib")
    done = sweep("--plot", "a.svg", "--x", "siz")
    assert done.exit_code == 2
    assert "did you mean `size`?" in done.stderr
    assert not Path("a.svg").exists()
    assert sweep("--plot", "a.svg", "--x", "size", "--resume").exit_code == 0
    assert Path("a.svg").read_bytes().startswith(b"<?xml")
    assert not list(Path().glob("*.journal"))


def test_every_option_with_a_value_is_known_to_have_one() -> None:
    """So that `--set` as the value of another option is not taken for an option."""
    import typer.main

    command: Any = typer.main.get_command(app)
    varied = {"--set", "--arg", "--topology", "--ccl"}
    with_value = {
        option
        for parameter in command.commands["sweep"].params
        for option in parameter.opts
        if option.startswith("--") and not parameter.is_flag
    }
    assert with_value == with_value_of("sweep")
    assert varied < with_value
