"""Tests that use the fixture `kernbench` in worker processes end there as they do in this one."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from pathlib import Path

def note(text):
    with Path("notes.txt").open("a") as file:
        file.write(text + "\\n")

@pytest.fixture(scope="session")
def whole():
    note("whole up")
    yield
    note("whole down")

@pytest.fixture(scope="module")
def opened(request, whole):
    note(f"up {request.module.__name__}")
    yield
    note(f"down {request.module.__name__}")
"""

MANY = """
import os, sys, warnings
import pytest
import kernbench.torch as torch

def worker(rank, expected):
    assert torch.ones(3).sum().item() == expected

def test_plain(opened): pass
def test_passes(kernbench, opened, record_property, tmp_path, worker_id="master"):
    record_property("where", [1, "2"])
    (tmp_path / "file").write_text("x")
    kernbench.spawn(worker, nprocs=2, args=(3.0,))
def test_fails(kernbench, capfd):
    print("swallowed")
    os.system("echo read by the test")
    assert "read by the test" in capfd.readouterr().out
    print("said before the failure")
    os.write(1, b"x" * 100_000)
    kernbench.spawn(worker, nprocs=2, args=(7.0,))
def test_plain_between(opened): pass
@pytest.mark.parametrize("x", [1, 2, 3], ids=["\\x00\\ud800", "a::b[c]", "\\u00e9"])
def test_odd_names(kernbench, x): assert x != 2, "two"
def test_skips(kernbench): pytest.skip("not today")
@pytest.mark.skipif("sys.version_info > (3,)", reason="too new")
def test_marked(kernbench): raise AssertionError
@pytest.mark.xfail(reason="known")
def test_known(kernbench): raise AssertionError
@pytest.mark.xfail(strict=True)
def test_mended(kernbench): pass
def test_warns(kernbench): warnings.warn("said by a test")
def test_leaves(kernbench):
    loop = kernbench.context().engine.loop
    loop.at(10, loop.owner(1), lambda: None)
@pytest.fixture
def broken(kernbench): raise OSError("no set-up")
def test_set_up(broken): pass
class TestOfAClass:
    def test_it(self, kernbench): pass
"""

ANOTHER = """
import pytest
@pytest.fixture(scope="module")
def falls(opened):
    yield
    raise OSError("no tear-down")
def test_it(kernbench, falls): pass
def test_plain(): pass
"""

Told = dict[tuple[str, str], tuple[Any, ...]]


def told(pytester: pytest.Pytester, *arguments: str) -> tuple[Told, list[str]]:
    """Returns what each step of each test came to, and what fixtures noted."""
    notes = pytester.path / "notes.txt"
    notes.write_text("", encoding="utf-8")
    run = pytester.inline_run("-p", "no:cacheprovider", "-Wdefault", *arguments)
    found: Told = {}
    for report in run.getreports("pytest_runtest_logreport"):
        why = re.sub(r"0x\w+", "0x", report.longreprtext) if report.longrepr else ""
        properties = [pair for pair in report.user_properties if not pair[0].startswith("kb_")]
        sections = [(name, text.strip()[-60:]) for name, text in report.sections]
        found[report.nodeid, report.when] = (report.outcome, why, str(properties), sections)
    for warning in run.getcalls("pytest_warning_recorded"):
        message = warning.warning_message
        found[warning.nodeid, "warning"] = (
            message.category,
            str(message.message),
            message.lineno,
            warning.location,
        )
    return found, notes.read_text(encoding="utf-8").splitlines()


def prepared(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_many=MANY, test_other=ANOTHER)


def test_reports_are_those_of_this_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(pytester)
    inline, notes = told(pytester)
    assert len(inline) > 40
    pool, split = told(pytester, "--kb-mode=pool")
    assert "no tear-down" in inline["test_other.py::test_plain", "teardown"][1]
    assert pool == inline, [each for each in inline if inline[each] != pool.get(each)]
    # One of a wider scope is set up in each process that needs it.
    again = ["whole up", "up test_many", "down test_many", "whole down", "whole up", "whole down"]
    assert sorted(split) == sorted([*notes, *again])


DEADLY = """
import ctypes, os
import kernbench.torch.distributed as dist

def test_before(kernbench): pass
def test_ends(kernbench):
    os.write(2, b"last words")
    os._exit(7)
def test_after(kernbench): pass
def test_hangs_in_c(kernbench):
    def worker(rank):
        dist.init_process_group("nccl")
        if rank == 0:
            ctypes.CDLL(None).sleep(1000)
        dist.barrier()
    kernbench.spawn(worker, nprocs=2)
def test_forks(kernbench):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
def test_not_a_worker(): pass
def test_last(kernbench): pass
"""


def test_a_test_that_kills_its_process_fails_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_POOL_TIMEOUT_SEC", "1")
    pytester.makepyfile(test_deadly=DEADLY)
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:xdist", "--kb-mode=batch", "--junitxml=junit.xml"
    )
    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_deadly.py::test_ends: exit code 7: the worker process has ended *",
            "*Captured stderr*",
            "last words",
            "*Captured stderr of the worker process*",
            '*test_deadly.py", line * in worker',
            "FAILED test_deadly.py::test_ends - exit code 7: *",
            "FAILED test_deadly.py::test_hangs_in_c - no answer in 1 s *",
        ]
    )
    text = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert 'failures="2"' in text
    assert re.search(r"<system-err>.*in worker", text, re.DOTALL)


SELECTIONS = [
    ["-n", "2", "--dist=loadfile"],
    ["-x", "-p", "no:xdist"],
    ["--import-mode=importlib", "-p", "no:capture", "-p", "no:xdist", "-k", "not fails"],
    ["test_other.py::test_it", "test_many.py::TestOfAClass"],
]


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS, ids=" ".join)
def test_selections_end_as_in_this_process(
    pytester: pytest.Pytester, selection: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", "3")
    prepared(pytester)

    def ended(mode: str) -> dict[str, str]:
        file = pytester.path / f"{mode}.xml"
        arguments = ["-p", "no:cacheprovider", "-Wdefault", f"--kb-mode={mode}"]
        pytester.runpytest_inprocess(*arguments, f"--junitxml={file}", *selection)
        cases = ElementTree.parse(file).iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}": " ".join(
                sorted(e.tag for e in case if e.tag != "properties")
            )
            for case in cases
        }

    inline = ended("inline")
    assert inline
    assert ended("batch") == inline


@pytest.mark.slow
def test_a_run_after_failures_takes_those_alone(pytester: pytest.Pytester) -> None:
    prepared(pytester)
    arguments = ["--kb-mode=pool", "-p", "no:xdist", "-Wdefault"]
    pytester.runpytest_inprocess(*arguments).assert_outcomes(
        passed=10, failed=3, errors=3, skipped=2, xfailed=1, warnings=1
    )
    again = pytester.runpytest_inprocess(*arguments, "--lf")
    again.assert_outcomes(passed=2, failed=3, errors=2)


@pytest.mark.slow
def test_coverage_has_what_ran_in_workers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makepyfile(
        covered="def ran():\n    return 1\n",
        test_it="import covered\ndef test_it(kernbench): covered.ran()\n",
    )
    result = pytester.runpytest_subprocess("--kb-mode=pool", "--cov=covered")
    result.stdout.fnmatch_lines(["covered.py * 100%"])


def test_nothing_starts_for_a_list_and_nothing_for_a_debugger(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no process is needed")

    monkeypatch.setattr("kernbench.workers.worker.Worker.__init__", refuse)
    pytester.makepyfile("def test_it(kernbench): pass\ndef test_plain(): pass\n")
    arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "--kb-mode=pool"]
    listed = pytester.runpytest_inprocess(*arguments, "--collect-only")
    listed.stdout.fnmatch_lines(["*2 tests collected*"])
    pytester.runpytest_inprocess(*arguments, "-k", "plain").assert_outcomes(passed=1, deselected=1)
    debugged = pytester.runpytest_inprocess(*arguments, "--pdb")
    assert debugged.ret == pytest.ExitCode.USAGE_ERROR
    debugged.stderr.fnmatch_lines(
        ["*--pdb needs --kb-mode=inline: with pool, tests run in worker*"]
    )
    shown = pytester.runpytest_inprocess(*arguments, "--setup-show")
    shown.stdout.fnmatch_lines(["*SETUP    F kernbench*"])


@pytest.mark.slow
def test_a_process_that_does_not_come_up_is_tried_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import os
        from pathlib import Path
        started = Path("started.txt")
        started.write_text(started.read_text() + "x" if started.exists() else "x")
        if len(started.read_text()) in {2, 4, 5}:
            os.write(2, b"not today")
            os._exit(3)
        """
    )
    pytester.makepyfile(
        """
        import os
        def test_first(kernbench): os._exit(1)
        def test_second(kernbench): pass
        """
    )
    arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "--kb-mode=pool", "--kb-summary"]
    result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_*::test_second: exit code 3: no worker process has come up for this test",
            "retries: 2",
        ]
    )
