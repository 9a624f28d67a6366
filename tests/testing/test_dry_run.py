"""A dry run knows which cases tests will ask for, and leaves no trace."""

import json

import pytest
from case_suites import CASES, SUITE

from kernbench.testing import cases

pytest_plugins = ["pytester"]

NOTE = """
import json
import os
import random
import warnings

import pytest

from kernbench.testing import dry_run
from kernbench.testing.environments import raw_environment
from kernbench.testing.knobs import Knobs
from kernbench.testing.worlds import Recorder

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    before = dict(os.environ), os.getcwd(), random.getstate()
    asked = dry_run.dry_run(session.items, Recorder(Knobs(), raw_environment()), warnings.filters)
    assert before == (dict(os.environ), os.getcwd(), random.getstate())
    noted = [[r.nodeid.partition("::")[2], r.case, r.world_size, r.kwargs] for r in asked]
    with open("asked.json", "w") as file:
        json.dump(noted, file)
"""


def dry(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, suite: str, *args: str
) -> tuple[pytest.RunResult, list[list[object]]]:
    """Returns what pytest prints, and what tests will ask for; no test is executed."""
    monkeypatch.setattr(cases, "_CASES", {})
    pytester.makeconftest(NOTE)
    pytester.makepyfile(test_suite=suite)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n0", "--setup-plan", *args)
    return result, json.loads((pytester.path / "asked.json").read_text())


def test_what_tests_will_ask_for_is_known_in_their_order(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked = dry(pytester, monkeypatch, SUITE)
    assert asked == [
        ["test_passes", "total", 2, {}],
        ["test_parameters[1.0-2]", "total", 2, {"value": 1.0}],
        ["test_parameters[1.0-4]", "total", 4, {"value": 1.0}],
        ["test_parameters[2.0-2]", "total", 2, {"value": 2.0}],
        ["test_fails_as_expected", "fails", 2, {}],
        ["test_passes_unexpectedly", "total", 2, {}],
        ["test_fails", "fails", 2, {}],
        ["test_differs", "differs", 4, {}],
        ["test_leaks", "leaks", 2, {}],
        ["test_waits_for_ever", "waits", 2, {}],
        ["test_skips_in_the_case", "skips", 2, {}],
        ["TestMethods::test_method", "total", 2, {}],
        ["test_runs_twice", "total", 2, {}],
        ["test_runs_twice#1", "fails", 2, {"told": "the second time"}],
        ["test_without_the_variable", "variable", 2, {"expected": None}],
        ["test_in_the_folder_as_before", "folder", 2, {"expected": str(pytester.path)}],
    ]


def test_only_what_is_selected_is_looked_at(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked = dry(pytester, monkeypatch, SUITE, "-k", "Methods or twice")
    assert [name for name, *_ in asked] == [
        "TestMethods::test_method",
        "test_runs_twice",
        "test_runs_twice#1",
    ]


TRACES = (
    CASES
    + """
import asyncio
import pathlib
import random
import warnings

def test_environment(request, world_batch):
    os.environ["SUITE_VARIABLE"] = "1"
    os.environ.pop("SUITE_OTHER", None)
    world_batch.run(request, case="variable", world_size=2, expected="1")

def test_folder(request, world_batch):
    os.chdir(os.sep)
    world_batch.run(request, case="total", world_size=2)

def test_chance(request, world_batch):
    world_batch.run(request, case="total", world_size=2, value=random.random())

def test_prints(request, world_batch):
    print("before the case")
    warnings.warn("before the case")
    world_batch.run(request, case="total", world_size=2)

@pytest.mark.usefixtures("tmp_path")
def test_another_fixture(request, world_batch):
    world_batch.run(request, case="total", world_size=2)

def test_by_name(request, world_batch):
    request.getfixturevalue("tmp_path")
    world_batch.run(request, case="total", world_size=2)

def test_attribute(request, world_batch):
    world_batch.run(request, case="total", world_size=2, value=request.keywords["value"])

async def test_async(request, world_batch):
    world_batch.run(request, case="total", world_size=2)

def test_exits(request, world_batch):
    pytest.fail("before the case")

@pytest.mark.skipif("no_such_name")
def test_a_marker_that_cannot_be_evaluated(request, world_batch):
    world_batch.run(request, case="total", world_size=2)
"""
)


def test_what_bodies_change_is_undone_and_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUITE_OTHER", "as it was")
    result, asked = dry(pytester, monkeypatch, TRACES, "-Werror")
    assert [name for name, *_ in asked] == ["test_environment", "test_folder", "test_chance"]
    result.stdout.fnmatch_lines(
        [
            "*DryRunWarning: test_suite.py::test_environment: its body changes the environment "
            "variable SUITE_OTHER, the environment variable SUITE_VARIABLE before its case is run*",
            "*DryRunWarning: test_suite.py::test_folder: its body changes the current folder *",
        ]
    )
    result.stdout.no_fnmatch_line("before the case")


@pytest.mark.parametrize("end", ["KeyboardInterrupt", "SystemExit", "pytest.exit.Exception"])
def test_what_ends_the_session_ends_a_dry_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(cases, "_CASES", {})
    pytester.makepyfile(CASES + f"def test_it(request, world_batch): raise {end}('enough')")
    reached = []

    class After:
        def pytest_runtest_call(self, item: pytest.Item) -> None:
            reached.append(item)

    result = pytester.inline_run("-n0", "--kb-mode=batch", plugins=[After()], no_reraise_ctrlc=True)
    assert reached == []
    assert result.ret != 0
