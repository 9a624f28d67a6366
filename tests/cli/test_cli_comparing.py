"""`kernbench compare`: tables, files, exit codes, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kernbench.cli.app import app
from kernbench.run_spec import RunSpec


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *times_us: float, **more: Any) -> str:
    rows = [{"size_bytes": 1 << n, "time_us": us} for n, us in enumerate(times_us)]
    document = {"kernbench": 1, "run": "ccl", "spec": RunSpec(bench="ccl").to_json()}
    text = json.dumps({**document, "results": [{"bench": "mine", "rows": rows}], **more})
    Path(name).write_text(text, encoding="utf-8")
    return name


def read(name: str) -> Any:
    return json.loads(Path(name).read_text(encoding="utf-8"))


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_files_of_runs_are_compared() -> None:
    flags = ["-q", "--data", "off", "--json"]
    for name, latency in (("a.json", "100ns"), ("b.json", "1us")):
        network = f"system.sips.network.latency={latency}"
        words = [
            "run",
            "ccl_allreduce",
            *flags,
            name,
            "--set",
            network,
            "--",
            "-b",
            "1K",
            "-e",
            "2K",
        ]
        assert CliRunner().invoke(app, words).exit_code == 0
    done = compare("a.json", "b.json", "--json", "found.json")
    assert done.exit_code == 1
    assert "4 figures: 4 slower, 0 the same" in done.stdout
    assert "differs: spec.overrides: system.sips.network.latency=100ns -> " in done.stdout
    rows = read("found.json")["rows"]
    results = [
        json.loads(Path(name).read_text())["results"][0]["rows"] for name in ("a.json", "b.json")
    ]
    for row in rows:
        number = ["size_bytes=1024" in row["row"], "size_bytes=2048" in row["row"]].index(True)
        place = row["figure"].removesuffix(".time_us")
        one, other = (each[number][place]["time_us"] for each in results)
        assert (row["before"], row["after"]) == (one, other)
        assert row["ratio"] == pytest.approx(other / one, rel=1e-15)
    assert compare("a.json", "a.json").exit_code == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 1),
        (["--tolerance", "9.9%"], 1),
        (["--tolerance", "10%"], 0),
        (["--tolerance", "0.1"], 0),
        (["--tolerance", "10%", "--both"], 1),
        (["--tolerance", "50%", "--both"], 0),
    ],
)
def test_the_exit_code_says_whether_it_is_within_the_tolerance(
    options: list[str], code: int
) -> None:
    write("a.json", 10.0, 10.0)
    write("b.json", 11.0, 5.0)
    assert compare("a.json", "b.json", *options).exit_code == code


def test_rows_of_one_file_alone_fail_unless_told_not_to() -> None:
    write("a.json", 10.0)
    write("b.json", 10.0, 20.0)
    done = compare("a.json", "b.json")
    assert done.exit_code == 1
    assert "only in b.json: mine / size_bytes=2" in done.stdout
    assert compare("a.json", "b.json", "--only-common").exit_code == 0
    assert compare("a.json", write("c.json", failure={}), "--only-common").exit_code == 1


def _last(*arguments: str) -> str:
    done = compare(*arguments)
    line = done.stdout.splitlines()[-1]
    assert line.startswith("passed: " if done.exit_code == 0 else "failed: ")
    return line


def test_the_last_line_is_the_verdict() -> None:
    write("a.json", 10.0, 10.0)
    write("b.json", 10.0, 11.0, 7.0)
    assert _last("a.json", "a.json") == "passed: 2 figures, all the same"
    counted = "2 figures: 1 slower, 1 the same"
    assert _last("a.json", "b.json") == f"failed: {counted}; 1 only in b.json"
    assert _last("b.json", "a.json", "--both") == (
        "failed: 2 figures: 1 faster, 1 the same; 1 only in b.json"
    )
    within = "2 figures, all the same within 10%"
    assert _last("a.json", "b.json", "--tolerance", "10%") == f"failed: {within}; 1 only in b.json"
    common = ["--tolerance", "10%", "--only-common"]
    assert _last("a.json", "b.json", *common) == f"passed: {within}"
    write("c.json", 10.0, 10.0, failure={})
    one = "failed: 0 figures; 1 failed in c.json only"
    assert _last("a.json", "c.json", "--only-common") == one


def test_half_of_a_surrogate_pair_is_shown_by_its_number() -> None:
    write("a.json", 1.0, results=[{"bench": "x\ud800", "us": 1.0, "is\udfff": True}])
    write("b.json", 2.0, results=[{"bench": "x\ud800", "us": 2.0, "is\udfff": False}])
    done = compare("a.json", "b.json", "--json", "c.json")
    assert done.exit_code == 1, done.exception
    assert "x\\ud800" in done.stdout
    assert "differs: is\\udfff: True -> False" in done.stdout
    assert read("c.json")["rows"][0]["row"] == "x\ud800"


def test_as_many_rows_as_asked_are_shown_the_worst_first() -> None:
    write("a.json", *[10.0] * 30)
    write("b.json", *[10.0 + each for each in range(30)])
    lines = [line for line in compare("a.json", "b.json").stdout.splitlines() if "mine" in line]
    assert len(lines) == 20
    assert "size_bytes=536870912" in lines[0]
    assert "3.9" in lines[0]
    shown = compare("a.json", "b.json", "--rows", "1").stdout
    assert "29 rows more, none worse than these" in shown
    assert "30 figures: 29 slower, 1 the same" in shown
    whole = compare("a.json", "b.json", "--rows", "0").stdout
    assert sum("mine" in line for line in whole.splitlines()) == 30


def test_names_are_shown_as_they_are() -> None:
    one = write("a[red].json", 1.0, results=[{"bench": "[bold]mine[/bold]", "us": 1.0}])
    shown = compare(one, one).stdout
    assert "[bold]mine[/bold]" in shown
    assert "a[red].json -> a[red].json" in shown


def test_a_tiny_change_is_not_shown_as_none() -> None:
    write("a.json", 1000000.0)
    write("b.json", 1000000.000001)
    assert "1.000000000001" in compare("a.json", "b.json").stdout


@pytest.mark.parametrize("tolerance", ["-1%", "5", "x", "nan", "%", "1e3%", "\u0665%"])
def test_what_is_no_share_is_refused(tolerance: str) -> None:
    write("a.json", 1.0)
    done = compare("a.json", "a.json", f"--tolerance={tolerance}")
    assert done.exit_code == 2
    assert "expected a share such as 5% or 0.05" in done.stderr


def test_bad_files_are_refused() -> None:
    write("a.json", 1.0)
    Path("text.json").write_text("no json")
    Path("other.json").write_text('{"a": 1}')
    Path("folder.json").mkdir()
    for name, told in (
        ("b.json", "did you mean"),
        ("text.json", "not JSON"),
        ("other.json", "other.json holds no results of kernbench"),
        ("folder.json", "expected a file, got a folder"),
    ):
        for pair in (("a.json", name), (name, "a.json")):
            done = compare(*pair)
            assert (done.exit_code, told in done.stderr) == (2, True), done.stderr
    done = compare("a.json", "a.json", "--json", "nowhere/found.json")
    assert done.exit_code == 2
    assert "cannot write nowhere/found.json" in done.stderr
    done = compare("a.json", "a.json", "--metric", "time")
    assert (done.exit_code, "did you mean `time_us`?" in done.stderr) == (2, True)
