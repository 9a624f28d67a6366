"""Sweeps without processes: files, resuming, what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import Executor, grid_of, record_of

import kernbench
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.sweeps.documents import read_document
from kernbench.sweeps.keys import Keys
from kernbench.sweeps.sweeping import Files, Sweep


def _sweep(folder: Path, executor: Executor, values: Any = range(4), **options: Any) -> Sweep:
    files = Files(json=folder / "s.json", csv=folder / "s.csv")
    with Sweep(grid_of(folder, values), files, **options) as sweep:
        for _ in sweep.run(executor):
            pass
        sweep.finish()
        return sweep


def test_the_files_are_in_the_order_of_the_grid(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path, Executor(backwards=True))
    assert (sweep.done, sweep.failed) == (4, 1)
    assert read_document(tmp_path / "s.json") == [record_of(run) for run in sweep.runs]
    text = (tmp_path / "s.json").read_bytes()
    document = json.loads(text)
    assert document["sweep"] == {"version": kernbench.__version__, "runs": 4}
    assert len(text.splitlines()) == 4 + 4 + 2, "a record a line"
    table = list(csv.reader((tmp_path / "s.csv").read_text().splitlines()))
    assert table[0] == ["-n", "run", "ok", "sim_ps", "n", "size", "time.us", "failure"]
    assert [row[0] for row in table[1:]] == ["0", "0", "1", "1", "2", "2", "3"]
    assert table[1] == ["0", "bench", "true", "1", "0", "1", str(1 / 3), ""]
    assert table[-1] == ["3", "bench", "false", "0", "", "", "", "ValueError: it is three"]
    assert not (tmp_path / "s.json.journal").exists()


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    _sweep(tmp_path, Executor())
    whole = (tmp_path / "s.json").read_bytes(), (tmp_path / "s.csv").read_bytes()
    for name in ("s.json", "s.csv"):
        (tmp_path / name).unlink()
    with pytest.raises(KeyboardInterrupt):
        _sweep(tmp_path, Executor(most=2))
    with pytest.raises(UsageError, match=r"s.json.journal holds 2 records .*interrupted"):
        _sweep(tmp_path, Executor())
    rest = Executor()
    _sweep(tmp_path, rest, resume=True)
    assert rest.given == ["2", "3"]
    assert whole == ((tmp_path / "s.json").read_bytes(), (tmp_path / "s.csv").read_bytes())


def test_a_finished_sweep_is_not_run_again_and_can_be_extended(tmp_path: Path) -> None:
    _sweep(tmp_path, Executor())
    again, more = Executor(), Executor()
    _sweep(tmp_path, again, resume=True)
    assert again.given == []
    _sweep(tmp_path, more, [5, *range(4)], resume=True)
    assert more.given == ["5"]
    names = [record.run.varied["-n"] for record in read_document(tmp_path / "s.json")]
    assert names == ["5", "0", "1", "2", "3"]


def test_records_of_other_runs_are_refused_and_stay(tmp_path: Path) -> None:
    _sweep(tmp_path, Executor())
    before = (tmp_path / "s.json").read_bytes()
    with pytest.raises(UsageError, match="holds 2 records of runs that this sweep does not have"):
        _sweep(tmp_path, Executor(), [0, 1], resume=True)
    (tmp_path / "bench.py").write_text("def run(ctx): pass\n")
    with pytest.raises(UsageError, match="the bench, a file that it names, or kernbench has chang"):
        _sweep(tmp_path, Executor(), resume=True)
    assert (tmp_path / "s.json").read_bytes() == before
    assert not (tmp_path / "s.json.journal").exists()
    _sweep(tmp_path, Executor())  # anew, without --resume


def test_a_table_alone_cannot_be_resumed_once_it_is_finished(tmp_path: Path) -> None:
    files = Files(csv=tmp_path / "s.csv")
    runs = grid_of(tmp_path)
    with Sweep(runs, files, resume=True) as sweep, pytest.raises(KeyboardInterrupt):
        list(sweep.run(Executor(most=3)))
    with Sweep(runs, files, resume=True) as sweep:
        assert sweep.done == 3
        list(sweep.run(Executor()))
        sweep.finish()
    with pytest.raises(UsageError, match="is finished, and holds no records"):
        Sweep(runs, files, resume=True)


def test_resuming_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume goes on from a file"):
        Sweep(grid_of(tmp_path), resume=True)


def test_a_sweep_that_has_done_nothing_leaves_no_journal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _sweep(tmp_path, Executor(most=0))
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.parametrize("name", ["nowhere/s.json", "."])
def test_outputs_that_cannot_be_written_are_refused_before_the_first_run(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match="cannot write") as caught:
        Sweep(grid_of(tmp_path), Files(json=tmp_path / name))
    assert caught.value.code == "F15"


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"kernbench": 1, "run": "a", "spec": {}, "results": []}')
    with pytest.raises(UsageError, match="expected a file that `kernbench sweep --json` has writ"):
        _sweep(tmp_path, Executor(), resume=True)


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    same = tmp_path / "s"
    with pytest.raises(UsageError, match="is named for two outputs"):
        Sweep(grid_of(tmp_path), Files(json=same, csv=same))


def test_a_page_shows_the_records_and_needs_more_of_each_run(tmp_path: Path) -> None:
    bench = grid_of(tmp_path)[0].spec.bench
    files: dict[str, Any] = {"json": tmp_path / "s.json"}
    page = tmp_path / "s.html"
    options: dict[str, Any] = {"arg": {"-n": [2, 3]}, "executor": Executor()}
    records = kernbench.sweep(bench, **options, **files, report=page)
    assert {record.run.spec.record for record in records} == {"full"}
    text = page.read_text()
    assert "it is three" in text
    assert "kernbench sweep bench" in text
    with pytest.raises(UsageError, match="one of the two sweeps has --report"):
        kernbench.sweep(bench, **options, **files, resume=True)


def test_keys_follow_all_that_a_run_depends_on(tmp_path: Path) -> None:
    (first,) = grid_of(tmp_path, [1])
    assert grid_of(tmp_path, [1])[0].key == first.key
    assert grid_of(tmp_path, [1], seed=1)[0].key != first.key
    (tmp_path / "bench.py").write_text("def run(ctx): pass\n")
    assert grid_of(tmp_path, [1])[0].key != first.key


def test_keys_follow_the_modules_beside_a_bench(tmp_path: Path) -> None:
    texts = {
        "bench.py": "import os, one\nfrom package.deep import three\ndef run(ctx): import later\n",
        "one.py": "from two import x\n",
        "two.py": "import one\n",
        "package/__init__.py": "",
        "package/deep/__init__.py": "from .. import four\n",
        "package/deep/three.py": "from .five import y\nfrom . import six\n",
        "package/deep/five.py": "not Python\n",
        "package/deep/six.py": "",
        "package/four.py": "",
        "later.py": "",
    }
    (tmp_path / "package" / "deep").mkdir(parents=True)
    for name, text in {**texts, "other.py": ""}.items():
        (tmp_path / name).write_text(text)
    bench = str(tmp_path / "bench.py")
    keys = {Keys().of(RunSpec(bench=bench))}
    (tmp_path / "other.py").write_text("changed = 1\n")
    assert Keys().of(RunSpec(bench=bench)) in keys
    for number, name in enumerate(texts, 2):
        (tmp_path / name).write_text(f"{texts[name]}# changed\n")
        keys.add(Keys().of(RunSpec(bench=bench)))
        assert len(keys) == number, name


def test_keys_follow_the_files_of_machines_and_algorithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (first,) = grid_of(tmp_path, [1], topology="mine.yaml")
    (tmp_path / "mine.yaml").write_text("system: {}\n")
    (second,) = grid_of(tmp_path, [1], topology="mine.yaml")
    (tmp_path / "ccl.yaml").write_text("defaults: {}\n")
    (third,) = grid_of(tmp_path, [1], topology="mine.yaml")
    assert len({first.key, second.key, third.key}) == 3


# In Python


def test_in_python_a_grid_gives_a_list_of_records(tmp_path: Path) -> None:
    bench = Path(grid_of(tmp_path)[0].spec.bench or "")
    executor = Executor()
    records = kernbench.sweep(
        bench,
        machine=["sip8", "h200x8"],
        set={"system.sips.count": (2, 4)},
        arg={"-n": [1, "x"]},
        executor=executor,
        seed=7,
    )
    assert [dict(record.run.varied) for record in records] == [
        {"topology": machine, "system.sips.count": count, "-n": n}
        for machine in ("sip8", "h200x8")
        for count in ("2", "4")
        for n in ("1", "x")
    ]
    assert records[-1].run.spec == RunSpec(
        bench=str(bench),
        topology="h200x8",
        overrides=("system.sips.count=4",),
        arguments=("-n", "x"),
        seed=7,
    )
    again = kernbench.sweep(specs=[record.run.spec for record in records[:2]], executor=_plain)
    assert [record.run.varied for record in again] == [
        {"arguments": "-n 1"},
        {"arguments": "-n x"},
    ]


def _plain(runs: Any) -> Any:
    from kernbench.sweeps.records import Record

    for run in runs:
        yield Record(run=run, ok=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bench": print}, "takes the file of a bench"),
        ({}, "takes a bench, or specs="),
        ({"bench": "ccl", "jobs": 0}, "expected an integer from 1, got 0"),
        ({"bench": "ccl", "jobs": "2"}, "expected an integer from 1, got '2'"),
        ({"bench": "ccl", "timeout_s": -1}, "expected a number above 0, got -1"),
        ({"bench": "ccl", "arg": ["-n"]}, "arg: expected a mapping"),
        ({"bench": "ccl", "set": {3: 4}}, "set: expected a mapping"),
        ({"bench": "ccl", "arg": {"-n": [{1}]}}, "-n.*expected a plain value, got set"),
        ({"bench": "ccl", "topology": "sip8"}, "as machine="),
        ({"specs": ["a"]}, "expected run specifications, got 'a'"),
        ({"specs": 3}, "expected run specifications, got 3"),
        ({"bench": "ccl", "json": 3}, "expected the path of a file, got 3"),
        (
            {
                "bench": "ccl",
                "overrides": ["system.sips.count=2"],
                "set": {"system.sips.count": 4},
            },
            "stands among the overrides",
        ),
        ({"bench": "ccl", "specs": []}, "so nothing else may say it"),
        ({"specs": []}, "the sweep has no runs"),
        ({"bench": "ccl", "sed": 3}, "did you mean `seed`"),
        ({"bench": "ccl", "set": {"system.sips.count": []}}, "expected at least one value"),
        ({"bench": "ccl", "set": {"system.sips.cuont": 3}}, "did you mean `count`"),
        ({"bench": "cc1", "arg": {"-n": 1}}, "did you mean `ccl`"),
    ],
)
def test_in_python_mistakes_are_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kernbench.sweep(**options)
