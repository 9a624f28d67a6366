"""Who runs a batch when several test processes need it: one, and another if that one dies."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernbench.testing import claims
from kernbench.testing.claims import Claim, Ended, claim, outcome
from kernbench.testing.result_files import ResultsError, ResultsFile
from kernbench.testing.results import CaseResult

A, B = (CaseResult(nodeid=name, ok=True) for name in "ab")


def held_by(folder: Path, pid: int, started: str, number: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"claim.{number}").write_text(json.dumps([pid, started]))


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_the_first_has_the_right_and_the_next_looks_up(tmp_path: Path) -> None:
    mine = claim(tmp_path / "b")
    assert mine == Claim(tmp_path / "b", 0)
    ResultsFile(mine.results).add(A)
    mine.end(Ended("killed", "last words"))
    assert claim(tmp_path / "b") is None
    assert outcome(tmp_path / "b") == ({"a": A}, Ended("killed", "last words"))


def test_the_right_of_a_dead_process_passes_on_with_its_results(tmp_path: Path) -> None:
    held_by(tmp_path, ended_process(), "1")
    ResultsFile(tmp_path / "results.0.json").add(A)
    mine = claim(tmp_path)
    assert mine == Claim(tmp_path, 1)
    assert outcome(tmp_path)[0] == {"a": A}
    ResultsFile(mine.results).add(B)
    ResultsFile(mine.results).add(CaseResult(nodeid="a", ok=False))
    mine.end(Ended())
    assert outcome(tmp_path) == ({"a": A, "b": B}, Ended())
    assert claim(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_later_process_of_the_same_number_has_no_right(tmp_path: Path) -> None:
    held_by(tmp_path, os.getpid(), "1")
    assert claim(tmp_path) == Claim(tmp_path, 1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE)
    held_by(tmp_path, process.pid, claims._started(process.pid))
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert claim(tmp_path) == Claim(tmp_path, 1)
    process.wait()
    process.stdout.close()


def test_others_wait_while_a_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = claim(tmp_path)
    assert mine is not None
    waits = []

    def waited(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 10:
            mine.end(Ended())

    monkeypatch.setattr(time, "sleep", waited)
    assert claim(tmp_path) is None
    assert len(waits) == 10
    assert max(waits) == 0.05


def test_a_right_whose_end_cannot_be_told_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = claim(tmp_path)
    assert mine is not None

    def full(path: Path, text: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(claims, "write_whole", full)
    with pytest.raises(OSError, match="no space"):
        mine.end(Ended())
    assert claim(tmp_path) == Claim(tmp_path, 0)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        claim(tmp_path / "file" / "b")


def test_results_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    assert mine is not None
    mine.results.write_text("[{")
    with pytest.raises(ResultsError):
        outcome(tmp_path)


RACE = """
import sys
from pathlib import Path
from kernbench.testing.claims import Ended, claim
for number in range(40):
    mine = claim(Path(sys.argv[1]) / str(number))
    if mine is not None:
        print(number, mine.number)
        mine.end(Ended())
"""


@pytest.mark.slow
def test_of_many_processes_one_has_the_right(tmp_path: Path) -> None:
    for number in range(40):
        held_by(tmp_path / str(number), 2**22 + 1, "1")  # above the largest number of a process
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    lines = [line for racer in racers for line in racer.communicate()[0].splitlines()]
    assert sorted(lines) == sorted(f"{number} 1" for number in range(40))
