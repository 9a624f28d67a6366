"""The command as a process: its start, and an end from outside."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench import __version__
from kernbench.cli.failures import Exit
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec

COMMAND = (sys.executable, "-m", "kernbench")


def test_python_m_kernbench() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"kernbench {__version__}\n"


@pytest.mark.parametrize("where", ["in ranks", "on main"])
def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path: Path, where: str) -> None:
    calls = "ctx.multiprocessing.spawn(lines, nprocs=2)" if where == "in ranks" else "lines(0)"
    (tmp_path / "talks.py").write_text(
        "def lines(rank):\n"
        "    for number in range(100_000):\n"
        "        print(rank, number)\n"
        f"def run(ctx):\n    {calls}\n"
    )
    with subprocess.Popen(
        [*COMMAND, "run", str(tmp_path / "talks.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0 0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == Exit.BROKEN_PIPE


ENDLESS = """
from kernbench import torch
from kernbench.torch import distributed as dist

def worker(rank):
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank == 0:
        dist.recv(x, src=1)
        x.tolist()
    print("begun", flush=True)
    while True:
        x += 1

def run(ctx):
    ctx.multiprocessing.spawn(worker, nprocs=2)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_an_end_from_outside_tells_where_all_ranks_are(
    tmp_path: Path, number: int, code: int, said: str
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    names = {name: tmp_path / f"{name}.json" for name in ("trace", "flight-recorder", "json")}
    options = [text for name, path in names.items() for text in (f"--{name}", str(path))]
    with subprocess.Popen(
        [*COMMAND, "run", str(tmp_path / "endless.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        told = process.stderr.read()
    assert process.returncode == code
    last = told[told.index(said) :]
    assert re.match(rf"{said} at \d.* of simulated time\n", last)
    call = r"recv\(\[4\], torch.float32, from rank 1, tag 0\) at \d+ us"
    assert re.search(rf"rank 0 waits in {call}, at .*:9:9: dist.recv", last)
    assert re.search(r"rank 1 \w+ .*endless.py:1[123]:", last)
    assert "\nreplay: kernbench run " in last
    written = {name: json.loads(path.read_text()) for name, path in names.items()}
    assert [entry["rank"] for entry in written["flight-recorder"]["ranks"]] == [0, 1]
    assert "rank 0 waits in recv" in written["json"]["failure"]["summary"]
    assert written["trace"]["traceEvents"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "endless.py",
        *(path.name for path in names.values()),
    }


def test_a_trace_has_a_bound(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS.replace("while True", "for _ in range(50)"))
    trace = tmp_path / "trace.json"
    output = Output(trace=trace, trace_limit=30, quiet=True)
    assert run_bench(RunSpec(bench=str(tmp_path / "endless.py")), output) == Exit.FAILED
    document = json.loads(trace.read_text())
    said = r"the first 30 records, up to \S+ us, were kept, and (\d+) later"
    told = re.search(said, capfd.readouterr().err)
    assert told is not None
    assert document["droppedRecords"] == int(told[1]) > 10


def test_a_breakdown_of_a_part_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.py").write_text(
        "from kernbench import torch\n\n\ndef run(ctx):\n    x = ctx.ones(4, device='cuda')\n"
        "    for _ in range(50):\n        x = x + 1\n    torch.cuda.synchronize()\n"
    )
    for limit, partial in ((10, True), (0, False)):
        for breakdown in (True, False):
            output = Output(
                breakdown=breakdown, explain_time=not breakdown, trace_limit=limit, quiet=True
            )
            assert run_bench(RunSpec(bench=str(tmp_path / "long.py")), output) == Exit.OK
            out = capfd.readouterr().out
            told = re.search(r"^partial: .* first 10 records of (\d+)", out, re.M)
            assert (told is not None) is partial
            assert told is None or int(told[1]) > 50
