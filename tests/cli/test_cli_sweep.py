"""`kernbench sweep`: options, the table, the line on a terminal, exit codes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import Executor, grid_of, record_of
from typer.testing import CliRunner

from kernbench.cli import sweeping
from kernbench.cli.app import app
from kernbench.cli.program_command import Varied
from kernbench.cli.sweep_options import varied
from kernbench.cli.sweeping import Line, print_table
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.sweeps import executors
from kernbench.sweeps.documents import read_document
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import Files, Sweep


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "Local", lambda jobs, timeout_s: Executor())


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["sweep", *words])


def test_options_in_their_order_make_the_grid(tmp_path: Path) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    words = [bench, "--arg", "-n=1,2", "--topology=sip8,h200x8", "--seed", "3", "--data", "off"]
    words += ["--set", "system.sips.count=4,2", "--max-time", "1ms", "--devices", "0,1"]
    done = _invoke(*words, "--json", "s.json", "--", "--arg", "-k=1")
    assert done.exit_code == 0, done.output
    records = read_document(Path("s.json"))
    assert [tuple(record.run.varied.values()) for record in records] == [
        (n, machine, count) for n in "12" for machine in ("sip8", "h200x8") for count in "42"
    ]
    assert records[-1].run.spec == RunSpec(
        bench=bench,
        topology="h200x8",
        overrides=("system.sips.count=2",),
        arguments=("--arg", "-k=1", "-n", "2"),
        seed=3,
        data=False,
        max_time_ps=10**9,
        devices=(0, 1),
    )
    again = _invoke("--spec", "s.json", "--json", "t.json", "--quiet", "--jobs", "2")
    assert (again.exit_code, again.output) == (0, "")
    assert Path("s.json").read_bytes() == Path("t.json").read_bytes()


def test_words_that_look_like_options_are_values() -> None:
    words = ["b", "--json", "--set", "--set", "--arg", "--arg=--set=1,2", "--arg", "--csv=3", "--"]
    assert varied([*words, "--set", "x=1"]) == [
        ("set", "--arg"),
        ("arg", "--set=1,2"),
        ("arg", "--csv=3"),
    ]


def test_a_failed_run_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    done = _invoke(bench, "--arg", "-n=2,3")
    assert done.exit_code == 1
    assert done.stdout == (
        "-n  simulated  size  time.us   failure\n"
        "2   1 ps       1     0.333333\n"
        "2   1 ps       2     0.666667\n"
        "3   0 ps                       ValueError: it is three\n"
    )
    assert done.stderr == "kernbench: 2 of 2 runs, 1 failed\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "system.sips.cuont=1"], "did you mean `count`"),
        (["--set", "sytem.sips.count=1"], "did you mean `system`"),
        (["--set", "system.sips.count="], "expected at least one value"),
        (["--set", "system.sips.count"], "expected KEY=V1,V2"),
        (["--arg", "n=1"], "did you mean `-n`"),
        (["--topology", "sip8,sip9"], "did you mean `sip8`"),
        (["--json", "nowhere/s.json"], "cannot write nowhere/s.json"),
        (["--resume"], "name it with --json FILE"),
        (["--spec", "s.json"], "BENCH cannot stand beside it"),
        (["--jobs", "0"], "--jobs"),
        (["--devices", "x"], "expected numbers with commas"),
        (["--explore", "3"], "only kernbench run and kernbench torchrun"),
    ],
)
def test_mistakes_end_with_2_before_any_run(tmp_path: Path, words: list[str], said: str) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    done = _invoke(bench, *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
    assert not list(tmp_path.glob("*.journal"))


def test_a_sweep_that_has_done_nothing_does_not_tell_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    monkeypatch.setattr(executors, "Local", lambda jobs, timeout_s: Executor(most=0))
    done = _invoke(bench, "--arg", "-n=1,2", "--json", "s.json")
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")
    assert not list(tmp_path.glob("*.journal"))


def test_a_bench_or_a_file_is_needed() -> None:
    assert _invoke().exit_code == 2
    Path("specs.json").write_text("[]")
    done = _invoke("--spec", "specs.json")
    assert (done.exit_code, "the sweep has no runs" in done.output) == (2, True)


def test_a_grid_above_a_million_is_refused(tmp_path: Path) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    many = ",".join(map(str, range(1001)))
    done = _invoke(bench, "--arg", f"-n={many}", "--arg", f"-m={many}")
    assert done.exit_code == 2
    assert "the sweep has 1,002,001 runs; the most are 1,000,000" in done.output


def test_an_interrupt_tells_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    monkeypatch.setattr(executors, "Local", lambda jobs, timeout_s: Executor(most=1))
    words = [bench, "--arg", "-n=1,2,x y"]
    done = _invoke(*words)
    assert done.exit_code == 130
    assert done.stderr == (
        "interrupted\nkernbench: 1 of 3 runs are done, and nothing keeps them; --json FILE does\n"
    )
    words += ["--csv", "s.csv"]
    done = _invoke(*words)
    again = f"kernbench sweep --resume {bench} --arg '-n=1,2,x y' --csv s.csv"
    assert done.stderr.splitlines()[-1] == (
        f"kernbench: 1 of 3 runs are done and kept in s.csv.journal; to go on: {again}"
    )
    assert _invoke(*words).exit_code == 2
    monkeypatch.setattr(executors, "Local", lambda jobs, timeout_s: Executor())
    assert _invoke(*words, "--resume").exit_code == 0
    assert not Path("s.csv.journal").exists()


def test_an_output_that_cannot_be_written_in_the_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    words = [bench, "--arg", "-n=1,2", "--json", "s.json"]

    def full(*_: object) -> None:
        raise UsageError("cannot write s.json: No space left on device", code="F15")

    with monkeypatch.context() as patched:
        patched.setattr("kernbench.sweeps.sweeping.write_document", full)
        done = _invoke(*words)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith(
        "kernbench: 2 of 2 runs are done and kept in s.json.journal; to go on: kernbench sweep"
    )
    assert _invoke(*words, "--resume").exit_code == 0
    assert len(read_document(Path("s.json"))) == 2


def test_a_terminal_has_a_line_that_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    told: list[str] = []

    @contextmanager
    def shown(text: Callable[[], str]) -> Iterator[None]:
        told.append(text())
        yield
        told.append(text())

    monkeypatch.setattr(sweeping, "shown", shown)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    what = RunSpec(bench=bench)
    grid, files = [Varied("arg", "-n=1,2")], Files()
    assert sweeping.run_sweep(what, grid, [bench], executor=Executor(), files=files) == 0
    assert [line.partition(", ")[0] for line in told] == ["0 of 2 runs", "2 of 2 runs"]
    assert "2 of 2 runs" in capsys.readouterr().err


def test_the_table_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{f"m{column}": row + column for column in range(9)} | {"same": 1} for row in range(45)]
    run = Run(RunSpec(bench="b.py"), {"k": "v" * 90}, "")
    record = Record(run=run, ok=True, results=({"rows": rows},))
    print_table(lambda: iter([record]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["k", "simulated", "m0", "m1", "m2", "m3", "m4", "m5"]
    assert len(lines) == 42
    assert lines[-1] == "and 5 more rows; --csv FILE has all rows and columns"
    assert max(map(len, lines[:-1])) < 72 + 60


def test_the_line_tells_runs_and_the_time_that_is_left(tmp_path: Path) -> None:
    now = [0.0]
    with Sweep(grid_of(tmp_path)) as sweep:
        line = Line(sweep, lambda: now[0])
        assert line.text() == "0 of 4 runs, 0 s"
        told = []
        for _ in sweep.run(Executor(backwards=True)):
            now[0] += 2.0
            told.append(line.text())
    assert told[0] == "1 of 4 runs, 1 failed, 2 s, about 6 s left"
    assert told[-1] == "4 of 4 runs, 1 failed, 8 s, about 0 s left"


def test_records_are_plain_json(tmp_path: Path) -> None:
    for run in grid_of(tmp_path):
        plain = json.loads(json.dumps(record_of(run).to_json()))
        assert Record.from_json(plain) == record_of(run)


@pytest.mark.parametrize("option", ["--json", "--csv", "--report"])
@pytest.mark.parametrize("place", [".", "/", "..", "here", "here/", ""])
def test_a_folder_is_no_output_file(tmp_path: Path, option: str, place: str) -> None:
    (tmp_path / "here").mkdir()
    done = _invoke(grid_of(tmp_path)[0].spec.bench or "", f"{option}={place}")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"kernbench: [F15] cannot write {Path(place)}: it is no file\n")
    assert list((tmp_path / "here").iterdir()) == []


def test_algorithms_of_the_working_directory_are_named(tmp_path: Path) -> None:
    bench = grid_of(tmp_path)[0].spec.bench or ""
    Path("ccl.yaml").write_text("defaults: {algorithm: ring}\nalgorithms: {}\n")
    said = f"kernbench: algorithms are those of {Path('ccl.yaml').resolve()}; "
    assert _invoke(bench).stderr.startswith(said)
    assert said not in _invoke(bench, "--ccl", "ccl.yaml").stderr
    assert said not in _invoke(bench, "--quiet").stderr
