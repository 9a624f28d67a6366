"""What the plugin does without the names of pytest that are not public."""

import re
from pathlib import Path

import pytest
from case_suites import CASES

from kernbench.testing import internals

pytest_plugins = ["pytester"]

GONE = """
import sys
import types

# Modules of another version of pytest: what has imported from the present ones goes on.
for name in ("skipping", "junitxml", "_code.code", "assertion"):
    sys.modules["_pytest." + name] = types.ModuleType("_pytest." + name)
"""

TESTS = """
@pytest.mark.parametrize("how", ["", "fails"])
def test_it(request, world_batch, how):
    world_batch.run(request, case="ends", world_size=2, how=how)

@pytest.mark.skip(reason="never")
def test_skipped(request, world_batch): pass

def test_kernbench(kernbench):
    kernbench.spawn(lambda rank: None, nprocs=2)
"""


def test_one_module_has_what_is_not_public() -> None:
    room = Path(internals.__file__).parent
    private = re.compile(r"^\s*(from|import) _pytest\b", re.MULTILINE)
    files = [file.name for file in room.rglob("*.py") if private.search(file.read_text())]
    assert files == ["internals.py"]


def test_this_pytest_has_all_of_it() -> None:
    assert internals.LOST == {}


@pytest.mark.parametrize("mode", ["inline", pytest.param("batch", marks=pytest.mark.slow)])
def test_what_is_lost_is_told_and_the_tests_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(internals.__file__).parents[2]))
    pytester.makepyfile(gone=GONE, test_suite=CASES + TESTS)
    result = pytester.runpytest_subprocess(
        "-p", "gone", "-p", "no:xdist", f"--kb-mode={mode}", "--junitxml=junit.xml"
    )
    told = [] if mode == "inline" else ["runs singly", "as Python does", "process of pytest"]
    told.append("has no system-err")
    result.assert_outcomes(passed=2, failed=1, skipped=1, warnings=len(told))
    for part in told:
        result.stdout.fnmatch_lines([f"*LostPartWarning: kernbench does not know *: *{part}*"])
