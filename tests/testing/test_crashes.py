"""A case that ends its process is named, and takes nobody else's result with it."""

import errno
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from case_suites import CASES

from kernbench.testing import cases, worker
from kernbench.testing.cases import CaseRequest

pytest_plugins = ["pytester"]

TESTS = """
@pytest.mark.parametrize("how", {hows})
def test_it(request, world_batch, how):
    world_batch.run(request, case="ends", world_size=2, how=how)
"""


def run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    hows: Sequence[str],
    *args: str,
) -> tuple[pytest.RunResult, dict[str, str], list[str]]:
    """Runs a test for each way to end; returns the reports of failures, and the runs of cases."""
    monkeypatch.setattr(cases, "_CASES", {})
    pytester.makepyfile(test_ends=CASES + TESTS.format(hows=list(hows)))
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-n0", "--junitxml=junit.xml", *args
    )
    told = {}
    for test in ElementTree.parse(pytester.path / "junit.xml").iter("testcase"):
        failure = test.find("failure")
        error = "" if failure is None else str(failure.text)
        told[test.attrib["name"].removeprefix("test_it[").removesuffix("]")] = error
    return result, told, Path("runs.txt").read_text().splitlines()


def ways(runs: list[str]) -> list[str]:
    return [line.split(" ", 1)[1] for line in runs]


def processes(runs: list[str]) -> list[str]:
    return [line.split(" ", 1)[0] for line in runs]


def test_cases_without_a_result_run_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hows = ["", "fails", "exit", "SIGSEGV", "only in company"]
    _, told, runs = run(pytester, monkeypatch, hows, "--kb-mode=batch")
    assert [how for how, error in told.items() if error] == ["fails", "exit", "SIGSEGV"]
    assert (
        "test_it[exit]: no result of case ends: the worker has ended before its answer, exit code 7"
        in told["exit"]
    )
    assert "killed by SIGSEGV" in told["SIGSEGV"]
    assert re.search(r"--- the end of its standard error ---\nE +last words on error", told["exit"])
    # What was recorded was not tried again, and the rest had a process each.
    assert ways(runs) == ["", "fails", "exit", "exit", "SIGSEGV", "only in company"]
    assert len(set(processes(runs))) == 4
    document = ElementTree.parse(pytester.path / "junit.xml")
    assert len(document.findall(".//testcase//property[@name='kb_sim_s']")) == len(hows)
    # That of a test which passes stands in the file alone.
    errors = "".join(each.text or "" for each in document.iter("system-err"))
    reasons = dict(re.findall(r"\[BATCH-RETRY\] world=2 job=\S+\[(.*)\] reason=(.*)", errors))
    before = "not run, as test_ends.py::test_it[{}] ended the batch before: "
    exited = "the worker has ended before its answer, exit code 7"
    assert reasons["exit"] == exited
    assert reasons["SIGSEGV"] == before.format("exit") + exited
    assert reasons["only in company"] == before.format("exit") + exited


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def deep():\n    raise ValueError('only there')\n\ndeep()\n", "ValueError: only there"),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", "Skipped: no"),
        ("", "UsageError: no case is called 'c'"),
    ],
)
def test_an_import_that_fails_in_the_worker_shows_the_users_frames(
    tmp_path: Path, source: str, told: str
) -> None:
    file = tmp_path / "cannot_import.py"
    file.write_text(source)
    request = CaseRequest(
        nodeid="t.py::t", case="c", module=file.stem, file=str(file), world_size=2, seed=0
    )
    answer = worker.run(request.to_json())
    assert not answer["ok"]
    first = f"the worker process cannot import {file}, which registers case c: {told}"
    assert answer["error"].startswith(first)
    assert "kernbench/" not in answer["error"]
    assert ('cannot_import.py", line 2, in deep' in answer["error"]) is ("deep" in source)


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        pytest.param(how, mode, marks=pytest.mark.slow if mode == seen else pytest.mark.at_length)
        for how, seen in (
            ("SIGKILL", "batch"),
            ("hang", "pool"),
            ("hang in C", "pool"),
            ("destroys the results", "batch"),
        )
        for mode in ("pool", "batch")
    ],
)
def test_each_way_to_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str, how: str
) -> None:
    monkeypatch.setenv("KERNBENCH_POOL_TIMEOUT_SEC", "8")
    hows = ["", "fails", how, " "]
    _, told, runs = run(pytester, monkeypatch, hows, f"--kb-mode={mode}")
    assert {each for each, error in told.items() if error} == {"fails", how}
    why = {
        "SIGKILL": "killed by SIGKILL",
        "hang": "[K5] code ran on past the watchdog's 4 s of wall time",
        "hang in C": "no answer in 8 s of wall time",
        "destroys the results": "exit code 7",
    }
    assert why[how] in told[how]
    if how.startswith("hang"):
        assert re.search(r'test_ends.py", line \d+,? in ends', told[how]), "where it hangs"
    if how == "destroys the results" and mode == "batch":
        # Nothing is known of the batch, so all of it runs again.
        assert ways(runs) == ["", "fails", how, "", "fails", how, " "]
    elif how == "hang":
        assert ways(runs) == ["", "fails", how, " "], "a failure like others, in the process itself"
    else:
        assert ways(runs) == ["", "fails", how, how, " "]


@pytest.mark.slow
def test_without_retry_all_candidates_are_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_RETRY", "0")
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", "4")
    hows = ["", "fails", "exit", "a", "b"]
    _, told, runs = run(pytester, monkeypatch, hows, "--kb-mode=batch", "--deselect=nobody")
    assert ways(runs) == ["", "fails", "exit", "b"]
    assert [how for how, error in told.items() if error] == ["fails", "exit", "a"]
    for how in ["exit", "a"]:
        named = re.findall(r"^E +test_ends\.py::test_it\[(.*)\]$", told[how], re.MULTILINE)
        assert named == ["exit", "a"]
        assert "ended early: the worker has ended before its answer, exit code 7" in told[how]


def test_a_process_that_cannot_be_started_fails_its_batch_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", "2")
    start, tried = subprocess.Popen, []

    def popen(*args: Any, **kwargs: Any) -> Any:
        tried.append(args)
        # The process that starts ahead, that of the first batch, and that of its first case alone.
        if len(tried) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return start(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    _, told, runs = run(pytester, monkeypatch, ["a", "b", "c", "d"], "--kb-mode=batch")
    assert ways(runs) == ["b", "c", "d"]
    assert [how for how, error in told.items() if error] == ["a"]
    assert "cannot be started: [Errno 24] Too many open files" in told["a"]


def test_a_pool_tries_a_case_once_more_if_its_process_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hows = ["a", "only once", "fails", "b", "exit", "c"]
    _, told, runs = run(pytester, monkeypatch, hows, "--kb-mode=pool")
    assert [how for how, error in told.items() if error] == ["fails", "exit"]
    assert "exit code 7" in told["exit"]
    assert ways(runs) == ["a", "only once", "only once", "fails", "b", "exit", "exit", "c"]
    numbers = processes(runs)
    assert [numbers.index(number) for number in numbers] == [0, 0, 2, 2, 2, 2, 6, 7]
    retries = {
        test.attrib["name"]: re.findall(r"\[POOL-\S+ world=2 job=.* attempt=\d reason=died", text)
        for test in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
        if (text := test.findtext("system-err") or "")
    }
    assert {name: len(lines) for name, lines in retries.items() if lines} == {
        "test_it[only once]": 1,
        "test_it[exit]": 2,
    }
