"""The file of results: as a whole after each case, whenever its writer is killed."""

import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kernbench.testing.result_files import ResultsError, ResultsFile, read_results
from kernbench.testing.results import CaseResult

CASES = 16


def made(number: int) -> CaseResult:
    return CaseResult(
        nodeid=f"t.py::test[{number}]",
        ok=number % 3 > 0,
        error="" if number % 3 else "[Rank 1] ünequal",
        ranks_failed=() if number % 3 else (1,),
        sim_ps=number * 10**13 + 1,
        leaks=("a group, made at t.py:3",) if number % 5 == 0 else (),
        output="x\n" * number,
        worker_pid=7,
    )


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    file = ResultsFile(tmp_path / "r.json")
    for number in range(CASES):
        file.add(made(number))
        assert list(read_results(tmp_path / "r.json").values()) == [
            made(n) for n in range(number + 1)
        ]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_file_goes_on_in_another_process(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "r.json").add(made(0))
    ResultsFile(tmp_path / "r.json").add(made(1))
    assert list(read_results(tmp_path / "r.json").values()) == [made(0), made(1)]


def test_each_result_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    plain = CaseResult.to_json

    def counted(result: CaseResult) -> dict[str, Any]:
        encoded.append(result)
        return plain(result)

    monkeypatch.setattr(CaseResult, "to_json", counted)
    file = ResultsFile(tmp_path / "r.json")
    for number in range(CASES):
        file.add(made(number))
    assert len(encoded) == CASES


@pytest.mark.parametrize(
    "text", ["", "[", '[{"nodeid": "a"}]', '{"a": 1}', "[1]", "7", '[{"nodeid": 1', "\0" * 50]
)
def test_what_is_no_list_of_results_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"r\.json: expected a list of results"):
        read_results(path)


def test_no_file_holds_no_results(tmp_path: Path) -> None:
    assert read_results(tmp_path / "r.json") == {}


def _write_until(path: Path, told: int, moment: int) -> int:
    """Writes all results, and a byte to `told` after each; kills this process at a call of C.

    Returns the number of calls if there are fewer.
    """
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in {"c_call", "c_return"}:
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    file = ResultsFile(path)
    sys.setprofile(counted)
    try:
        for number in range(CASES):
            file.add(made(number))
            os.write(told, b".")
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [20, pytest.param(250, marks=pytest.mark.at_length)])
def test_kills_at_any_moment_leave_a_whole_file(tmp_path: Path, kills: int) -> None:
    """What the writer has said before it was killed is there; nothing is torn, nothing twice."""
    with open(os.devnull, "wb") as nothing:
        moments = _write_until(tmp_path / "all.json", nothing.fileno(), 0)
    pick = random.Random(kills)
    for kill in range(kills):
        path = tmp_path / f"{kill}.json"
        reader, writer = os.pipe()
        moment = pick.randint(1, moments)
        child = os.fork()
        if child == 0:
            _write_until(path, writer, moment)
            os._exit(0)
        os.close(writer)
        said = 0
        while data := os.read(reader, 100):
            said += len(data)
        os.close(reader)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        found = list(read_results(path).values())
        assert len(found) in {said, said + 1}
        assert found == [made(number) for number in range(len(found))]
        assert len(json.loads(path.read_bytes())) == len(found) if found else not path.exists()
