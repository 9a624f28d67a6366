"""The summary of a session, and `kernbench test`, which tells it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from kernbench.cli.testing import Mode
from kernbench.testing import options
from kernbench.testing.summary import Measured, lines_of

pytest_plugins = ["pytester"]

SUITE = """
import pytest
import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import dist_case

@dist_case
def sums(ctx, rank, n):
    dist.init_process_group("nccl")
    x = torch.ones(n, device="cuda")
    dist.all_reduce(x)
    dist.destroy_process_group()

@pytest.mark.parametrize("n", [1, 1_000_000])
def test_case(request, world_batch, n):
    world_batch.run(request, case="sums", world_size=2, n=n)

def race(rank):
    dist.init_process_group("nccl")
    x = torch.full((1,), float(rank), device="cuda")
    if rank:
        dist.send(x, 0)
    else:
        assert dist.recv(x) == 1, "lost the race"
        dist.recv(x)

def test_race(kernbench):
    kernbench.explore(race, nprocs=3)
def test_queued(kernbench):
    loop = kernbench.context().engine.loop
    loop.at(10, loop.owner(1), lambda: None)
def test_group(kernbench):
    def worker(rank):
        dist.init_process_group("nccl")
        dist.new_group([0, 1])
    kernbench.spawn(worker, nprocs=2)
def test_nothing():
    pass
"""


def test_what_a_suite_simulates_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)
    arguments = ["--", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=no"]
    result = CliRunner().invoke(app, ["test", "test_suite.py", "--seed=3", *arguments])
    assert result.exit_code == pytest.ExitCode.TESTS_FAILED
    lines = result.output.splitlines()
    [total] = [line for line in lines if line.startswith("5 cases, 7 worlds: ")]
    assert total.endswith(" simulated")
    simulated = lines[lines.index("slowest by simulated time") + 2 :]
    assert simulated[0].endswith(" us  test_suite.py::test_case[1000000]")
    assert lines[lines.index("leaks: 2") + 1 :][:2] == [
        "  test_suite.py::test_group: [C17] process groups were made and not destroyed: 1",
        f"      group G1{{0-1}}, held by ranks 0-1, made at {pytester.path}/test_suite.py:34:9: "
        "dist.new_group([0, 1])",
    ]
    assert lines[lines.index("flaky schedules: 1") + 1] == (
        "  test_suite.py::test_race: the result depends on which message a receive from any source "
        "takes"
    )
    assert "retries: none" in lines


def test_ten_of_the_slowest_are_listed() -> None:
    tests = [Measured(f"t{n:02}", 1, n / 100, 2.0**-n, "", "", n // 11) for n in range(12)]
    lines = lines_of([*tests, Measured("dead", 0, 0.0, 0.0, "", "", 1)])
    assert lines[0] == "12 cases, 12 worlds: 0.66 s of wall time, 2 s simulated"
    assert [line.split()[-1] for line in lines[3:13]] == [f"t{n:02}" for n in range(11, 1, -1)]
    assert lines[3] == "      0.11 s   488.3 us  t11"
    assert [line.split()[-1] for line in lines[15:25]] == [f"t{n:02}" for n in range(10)]
    assert lines[25:] == [
        "leaks: none",
        "flaky schedules: none",
        "retries: 2",
        "  dead: 1",
        "  t11: 1",
    ]


LEFT_TWICE = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist
import pytest
from kernbench.testing import dist_case

def group(rank):
    dist.init_process_group("nccl")
    dist.new_group([0, 1])

def span(rank):
    torch.cuda.nvtx.range_push("step")

@dist_case
def grouped(ctx, rank):
    group(rank)

@pytest.fixture
def broken():
    yield
    raise OSError("no tear-down")

def test_span_and_group(kernbench):
    kernbench.spawn(span, nprocs=2)
    kernbench.spawn(group, nprocs=2)
def test_span_and_failure(kernbench):
    kernbench.spawn(span, nprocs=2)
    raise ValueError("of the test")
def test_both_fixtures(request, kernbench, world_batch):
    kernbench.spawn(span, nprocs=2)
    world_batch.run(request, case="grouped", world_size=2)
def test_case_twice(request, world_batch):
    for _ in range(2):
        with pytest.raises(AssertionError) as left:
            world_batch.run(request, case="grouped", world_size=2)
    raise left.value
def test_span_twice(kernbench):
    kernbench.spawn(span, nprocs=2)
    kernbench.spawn(span, nprocs=2)
def test_broken_too(broken, kernbench):
    kernbench.spawn(span, nprocs=2)
"""


@pytest.mark.parametrize("mode", ["inline", pytest.param("pool", marks=pytest.mark.slow)])
def test_a_test_that_leaks_twice_has_one_verdict(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(test_left=LEFT_TWICE)
    arguments = ["--", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--junitxml=j.xml"]
    result = CliRunner().invoke(app, ["test", "test_left.py", f"--mode={mode}", *arguments])
    verdicts = re.findall(r"^(FAILED|ERROR) test_left.py::(\w+)", result.output, re.MULTILINE)
    expected = [
        ("FAILED", "test_span_and_group"),
        ("FAILED", "test_span_and_failure"),
        ("FAILED", "test_both_fixtures"),
        ("FAILED", "test_case_twice"),
        ("ERROR", "test_span_twice"),
        ("ERROR", "test_broken_too"),
    ]
    assert verdicts == expected
    cases = list(ElementTree.parse("j.xml").iter("testcase"))
    kinds = {"failure": "FAILED", "error": "ERROR"}
    told = [
        (kinds[each.tag], case.get("name")) for case in cases for each in case if each.tag in kinds
    ]
    assert told == expected
    leaks = {
        case.get("name"): each.get("value", "")
        for case in cases
        for each in case.iter("property")
        if each.get("name") == "kb_leaks"
    }
    spans, groups = "range 'step' not ended by ranks 0-1", "group G1{0-1}, held by ranks 0-1"
    assert {name: (leaks[name].count(spans), leaks[name].count(groups)) for name in leaks} == {
        "test_span_and_group": (1, 1),
        "test_span_and_failure": (1, 0),
        "test_both_fixtures": (1, 1),
        "test_case_twice": (0, 1),
        "test_span_twice": (1, 0),
        "test_broken_too": (1, 0),
    }
    assert "leaks: 6" in result.output.splitlines()
    failures = result.output.partition("= kernbench =")[0]
    for name in ("test_span_and_group", "test_span_and_failure", "test_both_fixtures"):
        [section] = re.findall(rf"^_+ {name} _+\n(.*?)(?=^_+ \w+ _+\n|\Z)", failures, re.M | re.S)
        assert "Captured leaks teardown" in section
        assert spans in section


ENDLESS = """
import kernbench.torch as torch
import pytest
from kernbench.testing import dist_case

def forever(rank):
    x = torch.ones(4, device="cuda")
    if rank == 0:
        with open("fifo", "w") as begun:
            begun.write("begun")
    while True:
        x += 1

@dist_case
def endless(ctx, rank):
    forever(rank)

def test_first(kernbench):
    kernbench.spawn(lambda rank: None, nprocs=2)
def test_endless(kernbench):
    kernbench.spawn(forever, nprocs=2)
def test_caught(kernbench):
    with pytest.raises(KeyboardInterrupt):
        kernbench.spawn(forever, nprocs=2)
def test_case(request, world_batch):
    world_batch.run(request, case="endless", world_size=2)
def test_last():
    pass
"""


@pytest.mark.parametrize(
    ("mode", "name", "passed"),
    [
        ("inline", "endless", 1),
        ("inline", "caught", 2),
        ("inline", "case", 1),
        *(
            pytest.param(mode, name, 1, marks=pytest.mark.slow)
            for mode in ("pool", "batch")
            for name in ("endless", "case")
        ),
    ],
)
def test_sigterm_ends_a_suite_with_its_summary(
    tmp_path: Path, mode: str, name: str, passed: int
) -> None:
    (tmp_path / "test_end.py").write_text(ENDLESS)
    os.mkfifo(tmp_path / "fifo")
    arguments = [f"--mode={mode}", "--", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    arguments += ["--junitxml=j.xml", "-k", f"first or {name} or last"]
    with subprocess.Popen(
        [sys.executable, "-m", "kernbench", "test", "test_end.py", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert (tmp_path / "fifo").read_text() == "begun"
        process.terminate()
        output, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1] == "terminated"
    assert re.search(rf"^{passed} cases?, {passed} worlds?: ", output, re.MULTILINE)
    assert re.search(rf"^{passed} passed, ", output, re.MULTILINE), "and not the last one"
    names = [case.get("name") for case in ElementTree.parse(tmp_path / "j.xml").iter("testcase")]
    assert "test_first" in names
    assert "test_last" not in names


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["nowhere.py::test_x"], "there is no file or folder nowhere.py::test_x"),
        ([".", "--machine=nope"], "nope: expected a file or one of the shipped machines"),
        ([".", "--jobs=-1"], "expected a number or auto, got -1"),
        ([".", "--mode=fast"], "not one of"),
        ([".", "--", "--kb-seed=-1"], "argument --kb-seed: expected an integer from 0 to"),
    ],
)
def test_mistakes_are_told_before_any_test_runs(
    arguments: list[str], told: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    result = CliRunner().invoke(app, ["test", *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_an_unknown_variable_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_TEST_MOD", "pool")
    result = CliRunner().invoke(app, ["test", ".", "--", "-p", "no:cacheprovider"])
    assert result.exit_code == 2
    assert "KERNBENCH_TEST_MOD: no such variable; did you mean KERNBENCH_TEST_MODE?" in (
        result.output
    )


@pytest.mark.parametrize(("module", "arguments"), [("pytest", ["."]), ("xdist", [".", "--jobs=2"])])
def test_what_is_not_installed_is_named(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else sys)
    result = CliRunner().invoke(app, ["test", *arguments])
    assert result.exit_code == 2
    assert "is not installed: pip install pytest" in result.output


def test_the_modes_are_those_of_the_plugin() -> None:
    assert tuple(Mode) == get_args(options.Mode)
