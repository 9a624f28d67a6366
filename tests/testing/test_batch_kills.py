"""Kills of the process of a batch at any moment of its writing: nothing lost, torn or twice."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from kernbench.testing.batches import Batched, batches_of
from kernbench.testing.cases import CaseRequest
from kernbench.testing.claims import outcome

CASES = 3

MODULE = '''
import os
import signal
import sys

from kernbench.testing import dist_case
from kernbench.testing.result_files import ResultsFile

moment = int(os.environ["SUITE_KILL_AT"])
plain = ResultsFile.add

def add(self, result):
    """Writes, and ends the process at one of the calls of C."""
    def counted(frame, event, argument):
        global moment
        if event in {"c_call", "c_return"}:
            moment -= 1
            if moment == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(counted)
    plain(self, result)
    sys.setprofile(None)
    with open("calls.txt", "w") as file:
        print(moment, file=file)

ResultsFile.add = add

@dist_case
def noted(ctx, rank, number):
    if rank == 0:
        with open("runs.txt", "a") as file:
            print(number, file=file)
'''


def requests_of(file: Path) -> list[CaseRequest]:
    return [
        CaseRequest(
            nodeid=f"t.py::test[{number}]",
            case="noted",
            module="noted_cases",
            file=str(file),
            world_size=2,
            seed=0,
            kwargs={"number": number},
        )
        for number in range(CASES)
    ]


def batched(requests: list[CaseRequest], folder: Path, moment: int) -> Batched:
    environment = {**os.environ, "SUITE_KILL_AT": str(moment)}
    return Batched(lambda: requests, environment, folder, size=CASES, timeout_s=60.0)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        (0, 1),
        pytest.param(1, 90, marks=pytest.mark.at_length),
    ],
)
def test_kills_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kills: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "noted_cases.py"
    file.write_text(MODULE)
    requests = requests_of(file)
    [batch] = batches_of(requests, CASES)
    whole = batched(requests, tmp_path / "whole", 10**6)
    assert all(whole.run(request).ok for request in requests)
    whole.close()
    moments = 10**6 - int(Path("calls.txt").read_text())

    ended: list[str] = []
    pick = random.Random(seed)
    for kill in range(kills):
        Path("runs.txt").unlink()
        folder = tmp_path / str(kill)
        killed = batched(requests, folder, pick.randint(1, moments))
        results = [killed.run(request) for request in requests]
        killed.close()
        recorded, end = outcome(folder / batch.name)
        ended.append(end.reason)
        assert [(result.nodeid, result.ok) for result in results] == [
            (request.nodeid, True) for request in requests
        ]
        names = [request.nodeid for request in requests]
        assert list(recorded) == names[: len(recorded)]
        # Each ran once; only the one that was being written may have run for a second time.
        runs = Counter(int(line) for line in Path("runs.txt").read_text().splitlines())
        assert runs.pop(len(recorded), 1) in {1, 2}
        assert runs == Counter(number for number in range(CASES) if number != len(recorded))
    assert set(ended) == {"the worker has ended before its answer, killed by SIGKILL"}


@pytest.mark.slow
def test_a_process_that_dies_between_batches_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "noted_cases.py"
    file.write_text(MODULE)
    first, second, _ = requests_of(file)
    environment = {**os.environ, "SUITE_KILL_AT": "0"}
    two = Batched(lambda: [first, second], environment, tmp_path / "two", size=1, timeout_s=60.0)
    assert two.run(first).ok
    worker = two._worker
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert two.run(second).ok
    two.close()
    assert Path("runs.txt").read_text() == "0\n1\n"
    assert "BATCH-RETRY" not in capsys.readouterr().err
