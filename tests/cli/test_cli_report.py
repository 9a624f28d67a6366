"""`kernbench run --report`: a page for every way in which a run ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_reader import read

from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec

BENCH = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def worker(rank, ctx):
    dist.init_process_group("nccl")
    x = torch.ones(1 << 10, device="cuda")
    dist.all_reduce(x)
    if "fail" in ctx.argv and rank == 1:
        raise ValueError("<b>asked for</b>")
    if "stop" in ctx.argv:
        raise KeyboardInterrupt
    if "any" in ctx.argv and rank == 0:
        got = torch.zeros(1, device="cuda")
        for _ in range(2):
            dist.recv(got)
        ctx.results.append({"got": got.item()})
        if got.item() == 1:
            raise ValueError("order")
    elif "any" in ctx.argv:
        dist.send(torch.full((1,), float(rank), device="cuda"), 0)

def run(ctx):
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=3)
    ctx.results.append({"bench": "mine", "answer": 42})
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    monkeypatch.chdir(tmp_path)
    Path("bench.py").write_text(BENCH)
    return RunSpec(bench="bench.py")


def page(spec: RunSpec, expected: int, explore: int = 0, **output: Any) -> str:
    status = run_bench(spec, Output(report=Path("page.html"), quiet=True, **output), explore)
    assert status == expected
    html = Path("page.html").read_text(encoding="utf-8")
    assert str(Path.cwd()) not in html
    return read(html).text


def test_a_run_leaves_a_page(bench: RunSpec) -> None:
    text = page(bench, 0)
    for said in (
        "Results",
        "answer",
        "42",
        "What bounds the run",
        "Slowest commands",
        "bench.py:7",
        "Memory over time",
    ):
        assert said in text, said
    assert "kernbench run bench.py --seed 0" in text
    assert "Failure" not in text
    first = Path("page.html").read_bytes()
    page(bench, 0)
    assert Path("page.html").read_bytes() == first


def test_a_failure_leaves_a_page_with_its_report(
    bench: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page(replace(bench, arguments=("fail",)), 1)
    for said in (
        "Failure",
        "rank 1 failed",
        'File "bench.py", line 10, in worker',
        "ValueError: <b>asked for</b>",
        "kernbench run bench.py --seed 0 -- fail",
        "Where the time went",
    ):
        assert said in text, said
    assert "kernbench: a page about the failure is in page.html" in capsys.readouterr().err


def test_an_interrupted_run_leaves_a_page(bench: RunSpec) -> None:
    text = page(replace(bench, arguments=("stop",)), 130)
    assert "interrupted" in text
    assert "Where the time went" in text


def test_what_several_schedules_show_together_has_a_page(bench: RunSpec) -> None:
    text = page(replace(bench, arguments=("any",)), 1, explore=5)
    assert "Failure" in text
    assert "--explore 5" in text


def test_a_run_without_time_has_a_page_that_says_so(bench: RunSpec) -> None:
    assert "The run simulated no time" in page(replace(bench, fidelity="functional"), 0)


def test_the_limit_of_records_holds_for_the_page(bench: RunSpec) -> None:
    assert "--trace-limit 0 counts all" in page(bench, 0, trace_limit=5)


def test_a_page_that_cannot_be_written_is_refused_before_the_run(
    bench: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(bench, Output(report=Path("no", "page.html"))) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_hides_no_failure(
    bench: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bench.py").write_text(
        "import os\ndef run(ctx):\n    os.mkdir('page.html')\n    raise ValueError('bad')\n"
    )
    assert run_bench(bench, Output(report=Path("page.html"))) == 1
    err = capsys.readouterr().err
    assert "cannot write page.html" in err
    assert "ValueError: bad" in err


def test_under_several_hash_seeds_the_first_run_writes_the_page(bench: RunSpec) -> None:
    assert run_bench(bench, Output(report=Path("page.html"), quiet=True), hash_seeds=2) == 0
    assert "answer" in read(Path("page.html").read_text(encoding="utf-8")).text


def test_the_page_has_what_the_program_printed(
    bench: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(str(bench.bench))
    file.write_text(file.read_text() + '    print("step <0>", end="")\n')
    text = page(bench, 0)
    assert "What the program printed\nstep <0>\n" in text
    assert capsys.readouterr().out == "step <0>"
