"""Searches for garbage: none while modules load, and usual ones among what a program makes."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "kernbench")

SCRIPT = """
import gc
import weakref


class Ring:
    def __init__(self):
        self.me = self


kept = weakref.ref(Ring())
gc.collect()
print(gc.isenabled(), gc.get_freeze_count() > 10_000, kept() is None)
"""
BENCH = f"{SCRIPT}\n\ndef run(ctx):\n    print(gc.isenabled())\n"
TESTS = """
import gc


def test_searches():
    assert gc.isenabled()
    assert not gc.get_freeze_count()
"""


def said(*words: str) -> str:
    """Returns what `kernbench WORDS` prints."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("text", [SCRIPT, BENCH], ids=["script", "bench"])
def test_a_program_has_its_garbage_searched_and_no_modules(tmp_path: Path, text: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    lines = said("run", "--quiet", str(file)).splitlines()
    assert lines == ["True True True", *["True"] * text.count("def run")]


def test_the_process_of_a_hash_seed_is_as_any_other(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(SCRIPT)
    assert "True True True" in said("run", "--hash-seeds", "2", str(file)).splitlines()


def test_who_has_switched_the_search_off_keeps_it_off(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    code = "import gc; gc.disable(); from kernbench.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--quiet", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False False True\n"


def test_tests_are_searched_whole(tmp_path: Path) -> None:
    file = tmp_path / "test_searches.py"
    file.write_text(TESTS)
    assert "1 passed" in said("test", str(file), "--", "-p", "no:cacheprovider")
