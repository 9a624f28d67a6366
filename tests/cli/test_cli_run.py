"""`kernbench run` and `kernbench list`: outputs, exit codes, and what wrong input shows."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import benches.ccl_allreduce
from benches.nccl.measure import Result
from kernbench.cli.app import app
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

ROOT = Path(__file__).parents[2]
OUTPUTS = [field.name for field in dataclasses.fields(Output)]


def _kernbench(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "from kernbench.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        check=False,
        timeout=120,
    )


def _run(bench: str | Path, *arguments: str, explore: int = 0, **said: Any) -> int:
    shown = {name: said.pop(name) for name in list(said) if name in OUTPUTS}
    spec = RunSpec(bench=str(bench), arguments=arguments, **said)
    return run_bench(spec, Output(**shown), explore)


@pytest.mark.parametrize(
    ("one", "other"),
    [("trace", "report"), ("report", "json"), ("trace_kineto", "flight_recorder")],
)
def test_two_outputs_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: str, other: str
) -> None:
    file, again = tmp_path / "x.json", tmp_path / "sub" / ".." / "x.json"
    bench = tmp_path / "bench.py"
    bench.write_text("def run(ctx): print('ran')\n")
    named: dict[str, Any] = {one: file, other: again}
    assert _run(bench, **named) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"kernbench: {again} is named for two outputs\n  hint: give each a file of its own\n"
    )
    assert not file.exists()


def test_the_main_job_prints_a_right_table() -> None:
    done = _kernbench("run", "benches/ccl_allreduce.py", "--", "-e", "64K")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [1 << n for n in range(10, 17)]
    assert all(row[8] == row[12] == "0" for row in rows)
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert done.stderr == ""


def test_results_trace_and_breakdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, trace = tmp_path / "out.json", tmp_path / "trace.json"
    status = _run(
        "ccl_allreduce", "-e", "1K", json=results, trace=trace, breakdown=True, topology="torus4x4"
    )
    assert status == 0
    document = json.loads(results.read_text())
    assert document["results"][0]["ranks"] == 16
    assert document["results"][0]["out_of_bounds_values"] == 0
    events = json.loads(trace.read_text())["traceEvents"]
    sends = [event for event in events if event["ph"] == "s" and event["cat"] != "ac2g"]
    ends = [event for event in events if event["ph"] == "f" and event["cat"] != "ac2g"]
    assert len(sends) == len(ends) > 0
    assert "Simulated time per rank" in capsys.readouterr().out


def test_a_corrupted_algorithm_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "skewed_ring.py").write_text(
        "def all_reduce(comm):\n"
        "    n = comm.world_size\n"
        "    for step in range(n - 1):\n"
        "        comm.exchange(send=(comm.rank - step) % n, to=(comm.rank + 1) % n,\n"
        "                      receive=(comm.rank - step - 1) % n, source=(comm.rank - 1) % n,\n"
        "                      combine='reduce' if step else 'copy')\n"
    )
    (tmp_path / "ccl.yaml").write_text(
        "defaults: {algorithm: skewed}\nalgorithms:\n  skewed: {module: skewed_ring}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert _run("ccl_allreduce", "-e", "1K") == 1
    out, err = capsys.readouterr()
    assert "skewed" in out
    assert "FAILED" in out
    assert err == (
        f"kernbench: algorithms are those of {tmp_path / 'ccl.yaml'}; --ccl FILE names others\n"
    )
    assert _run("ccl_allreduce", "-e", "1K", ccl="ccl.yaml") == 1
    assert capsys.readouterr().err == ""
    assert _run("ccl_allreduce", "-e", "1K", quiet=True) == 1
    assert capsys.readouterr().err == ""


def test_run_spawns_once_over_all_sips_and_looks_worker_up(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[int, int]] = []

    def worker(rank: int, world_size: int, torch: RuntimeContext) -> list[Result]:
        calls.append((rank, world_size))
        return []

    monkeypatch.setattr(benches.ccl_allreduce, "worker", worker)
    with kernbench.context("torus4x4") as ctx:
        assert benches.ccl_allreduce.run(ctx) == 0
    assert sorted(calls) == [(rank, 16) for rank in range(16)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing.py"], "bench nothing.py does not exist"),
        (["run", "benches"], "is a folder"),
        (["run", "ccl_allreduc"], "did you mean `ccl_allreduce`"),
        (["run", "ccl_allreduce", "--topology", "h200x9"], "did you mean `h200x8`"),
        (["run", "ccl_allreduce", "--set", "system.sips.cont=3"], "did you mean `count`"),
        (["run", "ccl_allreduce", "--set", "sytem.sips.count=3"], "did you mean `system`"),
        (["run", "ccl_allreduce", "--set", "defaults.algorithm=tree"], "expected one of"),
        (["run", "ccl_allreduce", "--set", "defaults.n_slots=0"], "defaults.n_slots"),
        (["run", "ccl_allreduce", "--ccl", "no.yaml"], "no.yaml"),
        (["run", "ccl_allreduce", "--trace", "/no/such/folder/t.json"], "/no/such/folder"),
        (["run", "ccl_allreduce", "--trace-kineto", "README.md"], "README.md: it is no folder"),
        (["run", "ccl_allreduce", "--trace-kineto", "README.md/traces"], "Not a directory"),
        (["run", "ccl_allreduce", "--trace-kineto", "/proc/traces"], "[F15]"),
        (
            ["run", "ccl_allreduce", "--trace-kineto", "no", "--fidelity", "functional"],
            "--trace-kineto needs simulated time, which --fidelity functional does not have",
        ),
        (["run", "ccl_allreduce", "--flight-recorder", "/no/such/folder/f.json"], "[F15]"),
        (["run", "ccl_allreduce", "-q", "-v"], "--quiet and --verbose: expected one of them"),
        (["run", "ccl_allreduce", "--", "-b", "5X"], "expected a size such as 16M"),
        (["run", "ccl_allreduce", "--", "-o", "xor"], "invalid choice: 'xor'"),
        (
            ["run", "ccl_allreduce", "--fidelity", "exact"],
            "--fidelity: expected one of tile, kernel, functional; got 'exact'",
        ),
        (
            ["run", "ccl_allreduce", "--data", "maybe"],
            "--data: expected one of on, off; got 'maybe'",
        ),
        (["run", "ccl_allreduce", "--seed", "-1"], "--seed: expected an integer from 0, got -1"),
        (["run", "ccl_allreduce", "--seed", "x"], "--seed: expected a whole number; got 'x'"),
        (["run", "ccl_allreduce", "--watchdog", "nan"], "--watchdog: expected seconds from 0, got"),
        (["run", "ccl_allreduce", "--watchdog", "x"], "--watchdog: expected a number; got 'x'"),
        (
            ["run", "ccl_allreduce", "--max-time", "-1s"],
            "--max-time: expected a time from 0, such as '10 ms'; got '-1s'",
        ),
        (
            ["run", "ccl_allreduce", "--trace-limit", "-1"],
            "--trace-limit: expected a whole number from 0; got '-1'",
        ),
        (
            ["run", "ccl_allreduce", "--routing", "nosuch"],
            "--routing (routing=): no routing is called 'nosuch'",
        ),
        (
            ["run", "ccl_allreduce", "--routing", "zipf:x"],
            "expected zipf:S with a number S above 0",
        ),
        (["run"], "Invalid value for BENCH: expected one, or --spec FILE"),
    ],
)
def test_wrong_input_ends_with_2(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_process_with_wrong_input_ends_with_2_and_no_traceback() -> None:
    done = _kernbench("run", "nothing.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "bench nothing.py does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bench_that_raises_shows_the_users_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "broken.py"
    bench.write_text(
        "def worker(rank, torch):\n"
        "    x = torch.zeros(3)\n"
        "    if rank == 1:\n"
        "        raise ValueError('bad rank')\n"
        "    x.numpy()\n"
        "def run(ctx):\n"
        "    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)\n"
    )
    assert _run(bench) == 1
    err = capsys.readouterr().err
    assert "raise ValueError('bad rank')" in err
    assert "ValueError: bad rank" in err
    assert "rank 1 failed" in err
    assert "kernbench/" not in err


def test_a_rank_that_never_calls_the_collective_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "hang.py"
    bench.write_text(
        "import kernbench.torch as torch\n"
        "import kernbench.torch.distributed as dist\n"
        "def worker(rank):\n"
        "    dist.init_process_group('nccl')\n"
        "    x = torch.ones(8)\n"
        "    if rank != 3:\n"
        "        dist.all_reduce(x)\n"
        "    x.numpy()\n"
        "def run(ctx):\n"
        "    ctx.multiprocessing.spawn(worker, nprocs=4)\n"
    )
    assert _run(bench) == 1
    err = capsys.readouterr().err
    assert "all_reduce #1 of group WORLD: ranks 0-2 wait for rank 3" in err
    assert "hang.py:7:9: dist.all_reduce(x)" in err
    assert "missing rank 3 returned" in err


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("def run(ctx):\n    return 7\n", 7, ""),
        ("def run(ctx):\n    import sys; sys.exit(5)\n", 5, ""),
        ("def run(ctx):\n    import sys; sys.exit('stop')\n", 1, "stop"),
        ("def run(ctx):\n    raise KeyboardInterrupt\n", 130, "interrupted"),
        ("import numpy as np\ndef run(ctx): return np.int64(255)\n", 255, ""),
        ("def run(ctx): return 256\n", 2, "returned 256: expected None, or an exit code from 0 to"),
        ("def run(ctx): return -1\n", 2, "bench.py: run(ctx) returned -1"),
        ("def run(ctx): return False\n", 2, "run(ctx) returned False"),
        ("def run(ctx): return 'done'\n", 2, "run(ctx) returned 'done'"),
        ("def run(ctx): return 2.5\n", 2, "run(ctx) returned 2.5"),
        ("def run(ctx): return [1, 2]\n", 2, "run(ctx) returned list"),
        ("async def run(ctx): print(1)\n", 2, "bench.py: run(ctx) is a generator or a coroutine"),
        ("def run(ctx): yield 1\n", 2, "run(ctx) is a generator or a coroutine"),
        ("async def run(ctx): yield 1\n", 2, "run(ctx) is a generator or a coroutine"),
        ("def start(ctx): ...\n", 2, "has no run(ctx)"),
        ("def run(ctx:\n", 1, "SyntaxError"),
        ("import no_such_module_anywhere\n", 1, "ModuleNotFoundError"),
        ("def run(ctx):\n    assert 1 == 2\n", 1, "AssertionError"),
    ],
)
def test_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int, said: str
) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(text)
    assert _run(bench) == status
    assert said in capsys.readouterr().err


FAILING = (
    "import kernbench.torch.distributed as dist\n"
    "import kernbench.torch as torch\n"
    "def worker(rank):\n"
    "    dist.init_process_group('nccl')\n"
    "    x = torch.ones(8, device='cuda')\n"
    "    if rank != 3:\n"
    "        dist.all_reduce(x)\n"
    "    x.tolist()\n"
    "def run(ctx):\n"
    "    ctx.multiprocessing.spawn(worker, nprocs=4)\n"
)


def test_a_flight_record_is_written_if_ranks_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, record = tmp_path / "hang.py", tmp_path / "flight.json"
    bench.write_text(FAILING)
    assert _run(bench, flight_recorder=record) == 1
    assert json.loads(record.read_text())["schema_version"] == 1
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["flight.json", "hang.py"]
    err = capsys.readouterr().err
    assert err.startswith(f"kernbench: what every rank did last is in {record}\n")
    assert err.count(str(record)) == 1
    assert "ranks 0-2 wait for rank 3" in err


def test_the_record_is_the_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, record = tmp_path / "hang.py", tmp_path / "flight.json"
    bench.write_text(FAILING)
    ranks = [{"rank": 0, "last": "all_reduce"}]
    monkeypatch.setattr(RuntimeContext, "flight_record", lambda self: {"ranks": ranks})
    assert _run(bench, flight_recorder=record) == 1
    assert json.loads(record.read_text()) == {"ranks": ranks}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("def run(ctx): ...\n", 0),
        ("def run(ctx): return 4\n", 4),
        ("def run(ctx): 1 / 0\n", 1),
    ],
)
def test_no_flight_record_if_no_rank_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    bench, record = tmp_path / "bench.py", tmp_path / "flight.json"
    bench.write_text(text)
    assert _run(bench, flight_recorder=record) == status
    assert not record.exists()
    assert str(record) not in capsys.readouterr().err


def test_a_record_that_cannot_be_written_hides_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, folder = tmp_path / "hang.py", tmp_path / "gone"
    folder.mkdir()
    # The folder could be written to when the run began.
    bench.write_text(FAILING + f"    raise AssertionError\nimport os; os.rmdir({str(folder)!r})\n")
    assert _run(bench, flight_recorder=folder / "flight.json") == 1
    err = capsys.readouterr().err
    assert err.startswith("kernbench: [F15] cannot write")
    assert "ranks 0-2 wait for rank 3" in err


def test_a_failure_is_written_as_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, results = tmp_path / "hang.py", tmp_path / "out.json"
    bench.write_text(FAILING.replace("    ctx.m", "    ctx.results.append({'a': 1})\n    ctx.m"))
    assert _run(bench, json=results, seed=3) == 1
    assert capsys.readouterr().err.startswith(f"kernbench: the failure is in {results}\n")
    document = json.loads(results.read_text())
    failure = document.pop("failure")
    spec = RunSpec(bench=str(bench), seed=3).to_json()
    assert document.pop("sim_ps") > 0
    assert document == {"kernbench": 1, "run": "hang", "spec": spec, "results": [{"a": 1}]}
    command = f"kernbench run {bench} --seed 3"
    assert failure["replay"] == {"command": command, "seed": 3, "schedule": "0"}
    assert [error["code"] for error in failure["errors"].values()] == ["C1"] * 3
    assert list(failure["errors"]) == ["0", "1", "2"]


def test_a_failure_on_main_is_written_as_json_too(tmp_path: Path) -> None:
    bench, results = tmp_path / "bench.py", tmp_path / "out.json"
    bench.write_text("def run(ctx):\n    raise ValueError('boom')\n")
    assert _run(bench, json=results) == 1
    failure = json.loads(results.read_text())["failure"]
    assert failure == {
        "class": "ValueError",
        "code": "",
        "summary": "boom",
        "at": {"site": f"{bench}:2:5", "source": "raise ValueError('boom')"},
        "replay": {"command": f"kernbench run {bench} --seed 0", "seed": 0, "schedule": "0"},
    }


SENDS_FIRST = (
    "import kernbench.torch.distributed as dist\n"
    "import kernbench.torch as torch\n"
    "def worker(rank):\n"
    "    dist.init_process_group('nccl')\n"
    "    x, y = torch.ones(8, device='cuda'), torch.empty(8, device='cuda')\n"
    "    dist.send(x, 1 - rank)\n"
    "    dist.recv(y, 1 - rank)\n"
    "    y.tolist()\n"
    "def run(ctx):\n"
    "    ctx.multiprocessing.spawn(worker, nprocs=2)\n"
)


def test_an_eager_limit_lets_small_messages_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(SENDS_FIRST)
    assert _run(bench) == 1
    assert "[P4] ranks 0-1 wait for one another" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=r"\[P5\] works only because message <= eager limit 32 B"):
        assert _run(bench, eager_limit=32) == 0


def test_the_watchdog_stops_code_that_never_yields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(SENDS_FIRST.replace("    dist.send(", "    while True: pass\n    dist.send("))
    assert _run(bench, watchdog_s=0.1) == 1
    text = capsys.readouterr().err
    assert "[K5] code ran on past the watchdog's 0.1 s of wall time" in text


@pytest.mark.parametrize("code", ["def run(ctx):\n    while True: pass\n", "while True: pass\n"])
def test_the_watchdog_stops_main_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(f"{code}\ndef run_again(ctx): pass\nrun = globals().get('run', run_again)\n")
    assert _run(bench, watchdog_s=0.1) == 1
    text = capsys.readouterr().err
    assert "NoProgressError: [K5]" in text
    assert "  where main was, innermost call last:\n" in text
    assert re.search(
        r"last:\n    (run|<module>) at \S*/bench.py:\d+:\d+: while True: pass\n  hint", text
    )


SPAWN_ONE = "def run(ctx):\n    ctx.multiprocessing.spawn(worker, nprocs=1)\n"
CATCHES_ALL = """
    def spin():
        while True: pass
    while True:
        try:
            spin()
        except Exception: pass
"""
NEVER_COMES_BACK = """
    import threading
    threading.Lock().acquire() and threading.Event().wait()
"""


def test_main_that_cannot_be_stopped_ends_its_process(tmp_path: Path) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(f"def run(ctx):{CATCHES_ALL}")
    done = _kernbench("run", str(bench), "--watchdog", "0.1")
    assert done.returncode == 1
    assert "[K5] main was stopped after 0.1 s of wall time" in done.stderr
    assert re.search(
        r"last:\n    run at .*: spin\(\)\n    spin at .*True: pass\n  hint", done.stderr
    )


@pytest.mark.parametrize(
    ("code", "places"),
    [
        pytest.param(
            CATCHES_ALL,
            [r"worker at .*/bench\.py:\d+:\d+: spin\(\)", r"spin at .*: while True: pass"],
            marks=pytest.mark.slow,
        ),
        (
            NEVER_COMES_BACK,
            [r"worker at .*/bench\.py:\d+:\d+: threading\.Lock.*", r"wait at .*", r"wait at .*"],
        ),
    ],
)
def test_code_that_cannot_be_stopped_ends_its_process(
    tmp_path: Path, code: str, places: list[str]
) -> None:
    bench = tmp_path / "bench.py"
    bench.write_text(f"def worker(rank):\n    print('begun', flush=True)\n{code}\n{SPAWN_ONE}")
    done = _kernbench("run", str(bench), "--watchdog", "0.1")
    assert done.returncode == 1
    assert done.stdout == "begun\n"
    expected = [
        r"kernbench: \[K5\] rank 0 was stopped after 0\.1 s of wall time without a simulated step, "
        "and goes on; the process ends",
        "  rank 0 is running, innermost call last:",
        *(f"    {place}" for place in places),
        "  hint: let NoProgressError through, and do not block on what is outside of the "
        "simulation",
        "explain: kernbench explain K5",
    ]
    for line, pattern in zip(done.stderr.splitlines(), expected, strict=True):
        assert re.fullmatch(pattern, line)


RACE = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

runs = []

def worker(rank):
    dist.init_process_group("nccl")
    x = torch.full((1,), float(rank), device="cuda")
    for _ in range(rank):
        x.mul_(1)
    if rank:
        dist.send(x, 0)
    else:
        total = 0
        for _ in range(2):
            dist.recv(x)
            total = MIX
        print(float(total))

def run(ctx):
    runs.append(1)
    assert len(runs) == 1, "each run has a module of its own"
    ctx.multiprocessing.spawn(worker, nprocs=3)
"""


def test_p8_explore_tells_what_depends_on_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, file = tmp_path / "race.py", tmp_path / "out.json"
    bench.write_text(RACE.replace("MIX", "10 * total + x"))
    assert _run(bench, explore=5, json=file) == 1
    out, err = capsys.readouterr()
    assert out == "12.0\n", "only the first run prints"
    place = f"{bench}:17:13: dist.recv(x)"
    assert re.sub("data [0-9a-f]{12}", "data HASH", err) == (
        f"kernbench: the failure is in {file}\n"
        "ScheduleError: [P8] the result depends on which message a receive from any source takes\n"
        "  rank 0, message #1 of group WORLD: recv([1], torch.float32, from any rank, tag 0) at "
        f"2 us, at {place}\n"
        "  schedule 0 takes that of rank 1: hosts read data HASH, all ranks return\n"
        "  schedule 2.1 takes that of rank 2 of those of ranks 1-2: hosts read data HASH, "
        "all ranks return\n"
        "  hint: name the source, or use what comes in a way that no order changes; "
        "--schedule 2.1 runs the second one again\n"
        f"replay: kernbench run {bench} --explore 5 --seed 0\n"
        "explain: kernbench explain P8\n"
    )
    assert len(set(re.findall("data ([0-9a-f]{12})", err))) == 2
    assert json.loads(file.read_text())["failure"]["code"] == "P8"
    assert _run(bench, schedule=(2, 1)) == 0
    assert capsys.readouterr().out == "21.0\n"


def test_p8_what_a_bench_returns_is_part_of_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "returns.py"
    code = RACE.replace("dist.recv(x)\n", "sources.append(dist.recv(x))\n")
    code = code.replace("print(float(total))", "pass").replace("MIX", "0")
    code = code.replace("runs = []", "runs = []\nsources = []") + "    return sources[0] - 1\n"
    bench.write_text(code)
    assert _run(bench, explore=5) == 1
    err = capsys.readouterr().err
    assert re.search(r"schedule 0 takes .* data [0-9a-f]{12}, all ranks return\n", err)
    assert re.search(r"schedule 2.1 takes .* data [0-9a-f]{12}, the program returns 1\n", err)


def test_explore_says_how_many_schedules_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, file = tmp_path / "sum.py", tmp_path / "out.json"
    bench.write_text(RACE.replace("MIX", "total + x"))
    assert _run(bench, explore=5, json=file) == 0
    assert tuple(capsys.readouterr()) == ("3.0\n", "kernbench: schedules: all 3 agree\n")
    assert "failure" not in json.loads(file.read_text())
    assert _run(bench, explore=3) == 0
    assert capsys.readouterr().err == "kernbench: schedules: all 3 agree\n"
    assert _run(bench, explore=2) == 0
    assert capsys.readouterr().err == (
        "kernbench: schedules: 2 tried, which agree; more are left: raise --explore 2\n"
    )
    bench.write_text(RACE.replace("MIX", "total + x").replace("recv(x)", "recv(x, 1 + _)"))
    assert _run(bench, explore=5) == 0
    assert "one schedule, as no receive is from any source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"explore": 1}, "--explore: expected a number of schedules from 2, got 1"),
        ({"explore": 4, "schedule": (1,)}, "--explore and --schedule: expected one of them"),
    ],
)
def test_explore_takes_two_schedules_or_more(
    options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("ccl_allreduce", **options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1.", "0.1", "two", "-1"])
def test_a_schedule_is_numbers_with_dots(text: str) -> None:
    done = CliRunner().invoke(app, ["run", "ccl_allreduce", "--schedule", text])
    assert done.exit_code == 2
    assert "expected numbers from 1 with dots between" in done.output


def test_verbose_prints_what_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = tmp_path / "choosing.py"
    bench.write_text(
        "def run(ctx):\n"
        "    if ctx.on_choice is not None:\n"
        "        ctx.on_choice('all_reduce 1 MiB, 8 ranks of WORLD: ring (auto)')\n"
    )
    assert _run(bench) == 0
    assert capsys.readouterr() == ("", "")
    assert _run(bench, verbose=True) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "all_reduce 1 MiB, 8 ranks of WORLD: ring (auto)\n"


def test_verbose_names_each_choice_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("ccl_allreduce", "-e", "2K", "-n", "2", verbose=True) == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line.startswith("all_reduce ")]
    assert [line.partition(":")[0] for line in lines] == [
        "all_reduce 1 KiB, 8 ranks of WORLD",
        "all_reduce 4 B, 8 ranks of WORLD",  # the barrier
        "all_reduce 2 KiB, 8 ranks of WORLD",
    ]
    assert "WORLD" not in shown.out


def test_list_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    from kernbench.cli.listing import print_listing

    assert print_listing() == 0
    out = capsys.readouterr().out
    for name in (
        "ccl",
        "ccl_allreduce",
        "sip8",
        "h200x8",
        "torus4x4",
        "ring1024",
        "ring_allreduce_tcm",
    ):
        assert name in out


def test_the_options_are_these() -> None:
    """A new option needs a line in docs/command_line.md, and a reason."""
    import typer.main

    from kernbench.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name: sorted(opt for param in command.params for opt in param.opts if opt.startswith("-"))
        for name, command in commands.items()
    }
    assert options == {
        "collective": [],  # its commands have them: tests/docs/test_docs_readme.py
        "doctor": [],
        "tour": ["--folder"],
        "run": [
            "--as-torch",
            "--breakdown",
            "--ccl",
            "--class-limit",
            "--collapse",
            "--data",
            "--default-device",
            "--devices",
            "--eager-limit",
            "--explain-time",
            "--explore",
            "--fidelity",
            "--flight-recorder",
            "--group-limit",
            "--hash-seeds",
            "--json",
            "--max-time",
            "--nproc-per-node",
            "--quiet",
            "--report",
            "--roles",
            "--routing",
            "--schedule",
            "--seed",
            "--set",
            "--shadow",
            "--spec",
            "--step-budget",
            "--topology",
            "--trace",
            "--trace-kineto",
            "--trace-limit",
            "--trace-ranks",
            "--verbose",
            "--watchdog",
            "--witnesses",
            "-q",
            "-v",
        ],
        "torchrun": [
            "--breakdown",
            "--ccl",
            "--check-replicas",
            "--data",
            "--devices",
            "--eager-limit",
            "--explain-time",
            "--explore",
            "--fidelity",
            "--flight-recorder",
            "--group-limit",
            "--hash-seeds",
            "--json",
            "--max-time",
            "--module",
            "--nnodes",
            "--nproc-per-node",
            "--quiet",
            "--races",
            "--report",
            "--routing",
            "--same-ranks",
            "--schedule",
            "--seed",
            "--set",
            "--shadow",
            "--step-budget",
            "--topology",
            "--trace",
            "--trace-kineto",
            "--trace-limit",
            "--trace-ranks",
            "--verbose",
            "--watchdog",
            "--witnesses",
            "-m",
            "-q",
            "-v",
        ],
        "sweep": [
            "--address",
            "--arg",
            "--as-torch",
            "--ccl",
            "--class-limit",
            "--collapse",
            "--csv",
            "--data",
            "--default-device",
            "--devices",
            "--eager-limit",
            "--fidelity",
            "--group-limit",
            "--hue",
            "--jobs",
            "--json",
            "--max-time",
            "--nproc-per-node",
            "--on",
            "--plot",
            "--quiet",
            "--report",
            "--resume",
            "--roles",
            "--routing",
            "--schedule",
            "--seed",
            "--set",
            "--shadow",
            "--spec",
            "--step-budget",
            "--timeout",
            "--topology",
            "--watchdog",
            "--witnesses",
            "--x",
            "--y",
            "-q",
        ],
        "compare": ["--both", "--json", "--metric", "--only-common", "--rows", "--tolerance"],
        "test": ["--jobs", "--machine", "--mode", "--seed", "-n"],
        "check": ["--torchrun"],
        "explain": [],
        "new-machine": ["--from", "--like"],
        "validate": [
            *("--jobs", "--json", "--plot", "--programs", "--table", "--topology", "--verbose"),
            "-v",
        ],
        "calibrate": ["--from", "--out", "--topology", "--verbose", "-o", "-v"],
        "show-machine": [],
        "list": [],
    }


def test_traces_of_ranks_are_also_written_if_the_run_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, folder = tmp_path / "broken.py", tmp_path / "new" / "traces"
    bench.write_text(
        "def worker(rank, torch):\n"
        "    x = torch.zeros(3)\n"
        "    if rank == 1:\n"
        "        raise ValueError('bad rank')\n"
        "def run(ctx):\n"
        "    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=3)\n"
    )
    for limit, names in ((0, ["rank-0", "rank-1", "rank-2"]), (1, ["rank-0"])):
        assert _run(bench, trace_kineto=folder, trace_limit=limit) == 1
        documents = [json.loads((folder / f"{name}.pt.trace.json").read_text()) for name in names]
        assert [document["distributedInfo"]["rank"] for document in documents] == [
            int(name[-1]) for name in names
        ]
        assert [document.get("droppedRecords") for document in documents] == [
            2 if limit else None for _ in names
        ]
        assert len(list(folder.iterdir())) == 3
    assert (
        f"kernbench: tools that read {folder} will also read rank-1.pt.trace.json, "
        "rank-2.pt.trace.json, which this run did not write\n"
    ) in capsys.readouterr().err


def test_traces_of_ranks_name_the_devices_that_they_had(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    bench = tmp_path / "two.py"
    bench.write_text(
        "def run(ctx):\n    ctx.multiprocessing.spawn(lambda rank: ctx.zeros(3), nprocs=2)\n"
    )
    trace = tmp_path / "trace.json"
    assert _run(bench, devices=(5, 2), trace_kineto=folder, trace=trace) == 0
    for rank, sip in enumerate((5, 2)):
        document = json.loads((folder / f"rank-{rank}.pt.trace.json").read_text())
        (kernel,) = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
        assert (kernel["pid"], kernel["tid"]) == (sip, 7)
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert {"rank 0 (sip5)", "rank 1 (sip2)"} <= set(names)
