"""Sweeps in processes: equal to single runs, and to themselves with any number of processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.sweeps import printed
from kernbench.sweeps.records import Record
from kernbench.workers.failing import PoolDied

ROOT = Path(__file__).resolve().parents[2]

BENCH = """\
import argparse, os, sys, time
import neighbour

parser = argparse.ArgumentParser()
parser.add_argument("--how")


def worker(rank, torch):
    if rank == 2:
        raise ValueError("rank two")


def run(ctx):
    how = parser.parse_args(ctx.argv).how
    neighbour.calls += 1
    seen = neighbour.calls, os.getcwd(), os.environ.get("LEFT"), "left" in sys.path
    ctx.results.append({"how": how, "seen": seen, "order": list(map(str, {"a", "b", "c"}))})
    print("printed by", how)
    os.write(1, b"raw 1\\n")
    os.write(2, b"raw 2\\n")
    if how == "changes":
        os.chdir("/")
        os.environ["LEFT"] = "1"
        sys.path.insert(0, "left")
    if how == "odd":
        ctx.results.append({"x": {1, 2}})
    if how == "exits":
        sys.exit(3)
    if how == "leaves":
        sys.exit("enough")
    if how == "status":
        return 4
    if how == "dies":
        os._exit(0)
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "faults":
        import ctypes
        ctypes.string_at(0)
    if how == "hangs":
        time.sleep(1000)
    if how == "floods":
        os.write(1, b"x" * (1 << 20))
        print("y" * (1 << 20))
        raise RuntimeError("flooded")
    if how == "forks":
        if os.fork():
            os.wait()
    if how == "ranks":
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=4)
    if how == "asserts":
        assert 1 + 1 == 3
"""

HOW = [
    "is_fine",
    "changes",
    "odd",
    "exits",
    "leaves",
    "status",
    "dies",
    "killed",
    "faults",
    "floods",
    "forks",
    "ranks",
    "asserts",
    "again",
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "bench.py").write_text(BENCH)
    (folder / "neighbour.py").write_text("calls = 0\n")
    # A limit for one run alone: on a busy machine the others may take any time.
    found = kernbench.sweep(folder / "bench.py", arg={"--how": HOW}, jobs=2)
    found += kernbench.sweep(folder / "bench.py", arg={"--how": "hangs"}, timeout_s=2.0)
    return {record.run.varied["--how"]: record for record in found}


def test_every_run_is_a_record(records: dict[str, Record]) -> None:
    assert list(records) == [*HOW, "hangs"]
    good = ["is_fine", "changes", "forks", "again"]
    assert [how for how, record in records.items() if record.ok] == good
    for how in good:
        assert (records[how].failure, records[how].report) == (None, "")
        assert records[how].results[0]["how"] == how


def test_no_run_sees_another(records: dict[str, Record]) -> None:
    told = {json.dumps(r.results[0]["seen"]) for r in records.values() if r.results}
    assert told == {json.dumps([1, os.getcwd(), None, False])}
    assert len({str(r.results[0]["order"]) for r in records.values() if r.results}) == 1


@pytest.mark.parametrize(
    ("how", "kind", "report"),
    [
        ("odd", "UsageError", "ctx.results[1]['x']: expected a plain value, got set"),
        ("exits", "SystemExit", "the program has ended with exit code 3"),
        ("leaves", "SystemExit", "enough"),
        ("status", "SystemExit", "the program has ended with exit code 4"),
        ("dies", "RunDiedError", "the run has ended its process\n  exit code 0"),
        ("killed", "RunDiedError", "the run has ended its process\n  killed by SIGKILL"),
        ("faults", "RunDiedError", "the run has ended its process\n  killed by SIGSEGV"),
        ("hangs", "RunTimeoutError", "the run took more than 2 s of wall time"),
        ("asserts", "AssertionError", "    assert 1 + 1 == 3\n"),
        ("ranks", "SpawnException", "ValueError: rank two"),
    ],
)
def test_a_run_that_fails_is_a_record_with_its_report(
    records: dict[str, Record], how: str, kind: str, report: str
) -> None:
    record = records[how]
    assert not record.ok
    assert report in record.report
    assert record.failure is not None
    assert record.failure["class"] == kind
    assert record.failure["replay"]["command"] == record.run.spec.command()
    for line in (f"printed by {how}\n", "raw 1\n", "raw 2\n"):
        assert line in record.failure["output"]
    assert record.report.count("Traceback") <= 1
    assert "kernbench/sweeps" not in record.report


def test_the_report_of_a_hang_or_a_fault_says_where(records: dict[str, Record]) -> None:
    for how, line in (("hangs", "time.sleep"), ("faults", "string_at")):
        output = (records[how].failure or {})["output"]
        numbers = [int(n) for n in re.findall(r'bench.py", line (\d+) in run', output)]
        assert any(line in BENCH.splitlines()[number - 1] for number in numbers)
        assert not re.search(r"0x[0-9a-f]{6}", output)


def test_what_is_kept_of_a_flood_is_bounded(records: dict[str, Record]) -> None:
    record = records["floods"]
    assert "RuntimeError: flooded" in record.report
    assert len((record.failure or {})["output"]) <= 4000


def test_the_values_are_those_of_single_runs(tmp_path: Path) -> None:
    """A sweep writes what `kernbench run --json` writes, whatever the number of processes."""
    grid: dict[str, Any] = {
        "machine": ["sip8", "torus4x4"],
        "set": {"defaults.n_slots": [2, 4]},
        "arg": {"-o": ["sum", "nix"]},
        "arguments": ("-b", "64", "-e", "64", "-g", "4"),
    }
    documents = []
    for jobs in (1, 3):
        path = tmp_path / f"{jobs}.json"
        kernbench.sweep("ccl_allreduce", **grid, jobs=jobs, json=path, csv=tmp_path / f"{jobs}.csv")
        document = json.loads(path.read_text())
        for record in document["records"]:
            assert record.pop("wall_s") > 0
        documents.append((document, (tmp_path / f"{jobs}.csv").read_bytes()))
    assert documents[0] == documents[1]
    from kernbench.cli.output import Output
    from kernbench.cli.run import run_bench
    from kernbench.run_spec import RunSpec

    assert len(documents[0][0]["records"]) == 8
    for record in documents[0][0]["records"]:
        spec = RunSpec.from_json(record["spec"])
        single = tmp_path / "single.json"
        assert (run_bench(spec, Output(json=single)) == 0) == record["ok"]
        document = json.loads(single.read_text())
        assert document.pop("kernbench") == 1
        if not record["ok"]:
            del record["failure"]["output"]
            assert record["failure"] == document["failure"]
        assert document == {key: record[key] for key in document}


def test_a_run_that_keeps_every_record_has_a_breakdown(tmp_path: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(
        "def worker(rank, torch):\n    torch.zeros(8, device='cuda') + 1\n"
        "def run(ctx):\n    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)\n"
    )
    (record,) = kernbench.sweep(bench, record="full")
    assert record.breakdown is not None
    assert [row["rank"] for row in record.breakdown if row["rank"] >= 0] == [0, 1]
    for row in record.breakdown:
        parts = [row[f"{part}_ps"] for part in ("compute", "exposed", "copy", "idle")]
        assert sum(parts) == row["span_ps"] > 0
    assert record.sim_ps >= record.breakdown[0]["span_ps"]


def test_code_that_nothing_can_stop_ends_its_process_with_a_report(tmp_path: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(
        "import time\n"
        "def worker(rank): time.sleep(1000)\n"
        "def run(ctx):\n    ctx.multiprocessing.spawn(worker, nprocs=1)\n"
    )
    (record,) = kernbench.sweep(bench, watchdog_s=0.3)
    assert (record.failure or {})["class"] == "RunDiedError"
    assert "[K5]" in (record.failure or {})["output"]


def test_folders_of_killed_sweeps_go_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, fresh = tmp_path / "kernbench-sweep-killed", tmp_path / "kernbench-sweep-fresh"
    for left in (killed, fresh):
        left.mkdir()
        (left / "1").touch()
    os.utime(killed, (0, 0))
    with printed.folder() as held:
        assert set(tmp_path.iterdir()) == {held, fresh}
        os.utime(held, (0, 0))
        with printed.folder() as other:
            assert set(tmp_path.iterdir()) == {held, fresh, other}
    assert set(tmp_path.iterdir()) == {fresh}


def test_a_worker_that_cannot_start_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernbench.sweeps import local

    monkeypatch.setattr(local, "WORKER", "kernbench.nowhere")
    with pytest.raises(PoolDied) as caught:
        kernbench.sweep("ccl_allreduce", json=tmp_path / "s.json")
    assert "No module named 'kernbench.nowhere'" in caught.value.tail
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_keeps_what_is_done_and_tells_how_to_go_on(tmp_path: Path, number: int) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(
        "import os, time\n"
        "def run(ctx):\n"
        "    ctx.results.append({'n': ctx.argv[1]})\n"
        "    if ctx.argv[1] == '3' and not os.path.exists('again'):\n"
        "        open('reached', 'w').close()\n"
        "        time.sleep(1000)\n"
    )
    os.mkfifo(tmp_path / "reached")
    command = ["sweep", "bench.py", "--arg", "-n=1,2,3,4", "--json", "s.json"]
    begin = [sys.executable, "-m", "kernbench"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*begin, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        (tmp_path / "reached").read_bytes()  # waits until the third run has begun
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    again = "kernbench sweep --resume bench.py --arg -n=1,2,3,4 --json s.json"
    kept = "kernbench: 2 of 4 runs are done and kept in s.json.journal; to go on: "
    assert told.splitlines()[-1] == kept + again
    assert "Traceback" not in told
    (tmp_path / "again").touch()
    rest = subprocess.run(
        [*begin, *again.split()[1:], "-q"], cwd=tmp_path, env=environment, check=True
    )
    assert rest.returncode == 0
    records = json.loads((tmp_path / "s.json").read_text())["records"]
    assert [record["results"] for record in records] == [[{"n": n}] for n in "1234"]
