"""Suites of cases that tests run with pytest's own `pytester`, and what comes of their tests."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernbench.testing import cases

CASES = '''
import os
import signal
import sys
import warnings

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import dist_case

@dist_case
def total(ctx, rank, value=1.0):
    dist.init_process_group("nccl")
    x = torch.full((4,), value, device="cuda")
    dist.all_reduce(x)
    if rank == 0:
        print("the total is", x[0].item())
    assert x[0].item() == value * dist.get_world_size()
    dist.destroy_process_group()

@dist_case
def fails(ctx, rank, told="no"):
    assert rank != 1, f"rank {rank} says {told}"

@dist_case
def differs(ctx, rank):
    assert {"rank": rank, "more": [1, 2]} == {"rank": 0, "more": [1, 2, 3]}

@dist_case
def leaks(ctx, rank):
    dist.init_process_group("nccl")
    dist.new_group([0, 1])

@dist_case
def variable(ctx, rank, expected):
    assert os.environ.get("SUITE_VARIABLE") == expected

@dist_case
def folder(ctx, rank, expected):
    assert os.getcwd() == expected

@dist_case
def warns(ctx, rank):
    warnings.warn("in the case")

@dist_case
def waits(ctx, rank):
    dist.init_process_group("nccl")
    if rank == 0:
        dist.barrier()

@dist_case
def skips(ctx, rank):
    pytest.skip("in the case")

_seen = []

@dist_case
def ends(ctx, rank, how):
    """Notes in a file that it runs, then ends its process in one of many ways, or does not."""
    if rank:
        return
    with open("runs.txt", "a") as file:
        print(os.getpid(), how, file=file)
    _seen.append(how)
    if how == "only in company":
        how = "exit" if len(_seen) > 1 else ""
    if how == "only once":
        how = "SIGKILL" if open("runs.txt").read().count(how) == 1 else ""
    if how == "fails":
        raise AssertionError("fails")
    if how == "destroys the results":
        from kernbench.testing import worker
        for path in worker._files:
            path.write_text("[{")
        how = "exit"
    print("last words on output")
    print("last words on error", file=sys.stderr, flush=True)
    if how == "exit":
        os._exit(7)
    elif how == "hang":
        while True:
            pass
    elif how == "hang in C":
        import ctypes
        system = ctypes.PyDLL(None)  # which keeps the interpreter's lock
        mutex = ctypes.create_string_buffer(64)
        system.pthread_mutex_lock(mutex)
        system.pthread_mutex_lock(mutex)
    elif how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
'''
"""The head of a suite: cases of every ending."""

SUITE = (
    CASES
    + """
def test_passes(request, world_batch):
    world_batch.run(request, case="total", world_size=2)

@pytest.mark.parametrize("size", [2, 4, 99])
@pytest.mark.parametrize("value", [1.0, 2.0])
def test_parameters(request, world_batch, size, value):
    if value == 2.0 and size == 4:
        pytest.skip(f"not with {size}")
    world_batch.run(request, case="total", world_size=size, value=value)

@pytest.mark.skip(reason="by its marker")
def test_skipped(request, world_batch):
    world_batch.run(request, case="ends", world_size=2, how="exit")

@pytest.mark.skipif("sys.maxsize < 0")
@pytest.mark.skipif("os.sep and sys.maxsize > 0", reason="by a string")
def test_skipped_by_a_string(request, world_batch):
    world_batch.run(request, case="ends", world_size=2, how="exit")

@pytest.mark.skipif(condition=True, reason="by a keyword")
def test_skipped_by_a_keyword(request, world_batch):
    world_batch.run(request, case="ends", world_size=2, how="exit")

@pytest.mark.xfail(run=False, reason="would end the process")
def test_is_not_run(request, world_batch):
    world_batch.run(request, case="ends", world_size=2, how="exit")

@pytest.mark.xfail(reason="known", strict=True)
def test_fails_as_expected(request, world_batch):
    world_batch.run(request, case="fails", world_size=2)

@pytest.mark.xfail(reason="wrongly", strict=True)
def test_passes_unexpectedly(request, world_batch):
    world_batch.run(request, case="total", world_size=2)

def test_fails(request, world_batch):
    world_batch.run(request, case="fails", world_size=2)

def test_differs(request, world_batch):
    world_batch.run(request, case="differs", world_size=4)

def test_leaks(request, world_batch):
    world_batch.run(request, case="leaks", world_size=2)

def test_waits_for_ever(request, world_batch):
    world_batch.run(request, case="waits", world_size=2)

def test_skips_in_the_case(request, world_batch):
    world_batch.run(request, case="skips", world_size=2)

def test_has_a_mistake(request, world_batch):
    world_batch.run(request, case="nobody", world_size=2)

def test_has_a_wrong_argument(request, world_batch):
    world_batch.run(request, case="total", world_size=2, value=object())

def test_raises_before(request, world_batch):
    raise ValueError("before the case")

class TestMethods:
    size = 2

    @pytest.fixture
    def value(self):
        return 3.0

    def test_method(self, request, world_batch):
        assert not hasattr(self, "seen")
        self.seen = True
        world_batch.run(request, case="total", world_size=self.size)

    def test_with_another_fixture(self, request, world_batch, value):
        world_batch.run(request, case="total", world_size=self.size, value=value)

def test_runs_twice(request, world_batch):
    world_batch.run(request, case="total", world_size=2)
    world_batch.run(request, case="fails", world_size=2, told="the second time")

def test_looks_at_the_result(request, world_batch):
    assert world_batch.run(request, case="total", world_size=2).sim_s > 0

def test_expects_a_failure(request, world_batch):
    with pytest.raises(AssertionError, match="rank 1 says no"):
        world_batch.run(request, case="fails", world_size=2)

@pytest.mark.parametrize("value", ["1", "2"])
def test_with_a_variable(request, world_batch, monkeypatch, value):
    monkeypatch.setenv("SUITE_VARIABLE", value)
    world_batch.run(request, case="variable", world_size=2, expected=value)

def test_without_the_variable(request, world_batch):
    world_batch.run(request, case="variable", world_size=2, expected=None)

def test_in_a_folder(request, world_batch, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    world_batch.run(request, case="folder", world_size=2, expected=str(tmp_path))

def test_in_the_folder_as_before(request, world_batch):
    world_batch.run(request, case="folder", world_size=2, expected=os.getcwd())

@pytest.mark.filterwarnings("error")
def test_with_a_filter(request, world_batch):
    world_batch.run(request, case="warns", world_size=2)

@pytest.fixture
def doubled(request):
    return 2 * request.param

@pytest.mark.parametrize("doubled", [1.0], indirect=True)
def test_with_an_indirect_parameter(request, world_batch, doubled):
    assert doubled == 2.0
    world_batch.run(request, case="total", world_size=2, value=doubled)
"""
)
"""One test of each kind; none of them ends its process."""


class Outcome(NamedTuple):
    """What came of a test: `passed`, `failed`, `skipped`, ...; and what pytest tells of it."""

    outcome: str
    told: Any


def outcomes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *args: str
) -> dict[str, Outcome]:
    """Runs pytest in this process, and returns what came of each test, by its nodeid."""
    monkeypatch.setattr(cases, "_CASES", {})
    run = pytester.inline_run("-p", "no:cacheprovider", "--tb=short", *args)
    found: dict[str, Outcome] = {}
    for report in run.getreports("pytest_runtest_logreport"):
        if report.when == "call" or not report.passed:
            assert report.nodeid not in found, f"{report.nodeid} is reported twice"
            found[report.nodeid] = outcome_of(report)
    return found


_NOTES_OUTCOMES = """
import json
import os

from case_suites import outcome_of

_found = []

def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        _found.append([report.nodeid, *outcome_of(report)])

def pytest_unconfigure(config):
    if os.getppid() == int(os.environ["NOTES_OUTCOMES_FOR"]):  # not in processes of xdist
        with open("outcomes.json", "w") as file:
            json.dump(_found, file)
"""


def outcomes_apart(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *args: str
) -> dict[str, Outcome]:
    """As `outcomes`, in a process of its own, in which no test before has loaded anything."""
    pytester.makepyfile(notes_outcomes=_NOTES_OUTCOMES)
    monkeypatch.setenv("NOTES_OUTCOMES_FOR", str(os.getpid()))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    file = pytester.path / "outcomes.json"
    file.unlink(missing_ok=True)
    options = ("-p", "no:cacheprovider", "-p", "notes_outcomes", "--tb=short")
    pytester.runpytest_subprocess(*options, *args)
    found: dict[str, Outcome] = {}
    for nodeid, outcome, told in json.loads(file.read_text(encoding="utf-8")):
        assert nodeid not in found, f"{nodeid} is reported twice"
        found[nodeid] = Outcome(outcome, told)
    return found


def outcome_of(report: pytest.TestReport) -> Outcome:
    """Returns what came of a test."""
    outcome = f"x{report.outcome}" if hasattr(report, "wasxfail") else report.outcome
    return Outcome(outcome, _told(report))


def _told(report: pytest.TestReport) -> object:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr
    text = re.sub(r"^\[gw\d\] .*\n?", "", report.longreprtext)  # which process of xdist it was
    return re.sub(r"0x[0-9a-f]+", "0x", text)
