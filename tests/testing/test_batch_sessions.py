"""Batches and pools in sessions of pytest: what runs when, and in how many processes."""

import os
from collections import Counter
from pathlib import Path

import pytest
from case_suites import CASES

from kernbench.testing import cases, modes
from kernbench.testing.batches import Batched
from kernbench.testing.claims import claim
from kernbench.workers.worker import Worker

pytest_plugins = ["pytester"]

NUMBERED = (
    CASES
    + """
@pytest.mark.parametrize("number", range(8))
def test_it(request, world_batch, number):
    how = "fails" if number == 1 else str(number)
    world_batch.run(request, case="ends", world_size=2, how=how)
"""
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the worker processes that were started, in their order."""
    numbers: list[int] = []
    start = Worker.__init__

    def init(worker: Worker, *args: object, **kwargs: object) -> None:
        start(worker, *args, **kwargs)  # type: ignore[arg-type]
        numbers.append(worker.pid)

    monkeypatch.setattr(Worker, "__init__", init)
    return numbers


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(cases, "_CASES", {})
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", "3")
    pytester.makepyfile(test_numbered=NUMBERED)
    return pytester


def runs() -> list[str]:
    file = Path("runs.txt")
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_batch_runs_when_the_first_of_its_tests_does(
    suite: pytest.Pytester, started: list[int]
) -> None:
    result = suite.runpytest_inprocess("-n0", "--kb-mode=batch", "-x")
    result.assert_outcomes(passed=1, failed=1)
    assert runs() == ["0", "fails", "2"]
    assert len(started) == 1
    assert gone(started[0])
    Path("runs.txt").unlink()
    cases._CASES.clear()
    result = suite.runpytest_inprocess("-n0", "--kb-mode=batch", "--lf")
    result.assert_outcomes(failed=1)
    assert runs() == ["fails"]


@pytest.mark.parametrize("args", [["--collect-only"], ["-k", "nothing"], ["--setup-plan"]])
def test_nothing_starts_without_a_test_that_is_executed(
    suite: pytest.Pytester, started: list[int], monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("a dry run")

    monkeypatch.setattr("kernbench.testing.dry_run.dry_run", never)
    suite.runpytest_inprocess("-n0", "--kb-mode=batch", "-p", "no:cacheprovider", *args)
    assert started == []
    assert runs() == []


SIZES = (
    CASES
    + """
from kernbench.testing.leaks import LeakError

@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("size", [2, 4])
def test_it(request, world_batch, size, number):
    pid = world_batch.run(request, case="total", world_size=size).worker_pid
    with open("runs.txt", "a") as file:
        print(pid, size, file=file)

def test_leaks(request, world_batch):
    with pytest.raises(LeakError):
        world_batch.run(request, case="leaks", world_size=4)

def test_after(request, world_batch):
    test_it(request, world_batch, 4, 0)
    test_it(request, world_batch, 2, 0)
"""
)


@pytest.mark.parametrize("most", ["2", pytest.param("1", marks=pytest.mark.at_length)])
def test_a_pool_keeps_a_process_for_each_world_size(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, started: list[int], most: str
) -> None:
    monkeypatch.setattr(cases, "_CASES", {})
    monkeypatch.setenv("KERNBENCH_MAX_PROCS", most)
    monkeypatch.setenv("KERNBENCH_POOL_TIMING", "1")
    pytester.makepyfile(test_sizes=SIZES)
    result = pytester.runpytest_inprocess(
        "-n0", "--kb-mode=pool", "-p", "no:cacheprovider", "-rP", "--tb=short"
    )
    result.assert_outcomes(passed=8)
    result.stdout.re_match_lines(
        [
            r"-+ Captured world stdout call -+",
            r"the total is 2\.0",
            r"-+ Captured stderr call -+",
            r"\[POOL-TIMING\] case=total world=2 wall_s=0\.\d+ sim_s=\S+ ok=True",
            r"\[POOL-TIMING\] case=leaks world=4 wall_s=0\.\d+ sim_s=\S+ ok=False",
        ]
    )
    used = [
        started.index(int(line.split()[0])) for line in Path("runs.txt").read_text().splitlines()
    ]
    # Those of size 2, of size 4, and a fresh one of size 4 after the leak.
    assert used == {"2": [0, 0, 0, 1, 1, 1, 2, 0], "1": [0, 0, 0, 1, 1, 1, 2, 3]}[most]
    assert all(gone(pid) for pid in started)


@pytest.mark.slow
def test_processes_of_xdist_share_batches(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(
        "-n2", "--kb-mode=batch", "--dist=each", "-p", "no:cacheprovider", "--junitxml=j.xml"
    )
    result.assert_outcomes(passed=14, failed=2)
    assert Counter(runs()) == Counter(["0", "fails", *"234567"])


@pytest.mark.slow
def test_the_batch_of_a_test_process_that_dies_is_taken_over(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The conftest is imported in this process, too, where the change must end with the test.
    monkeypatch.setattr(Batched, "_ask", Batched._ask)
    suite.makeconftest(
        """
        import os
        from kernbench.testing import batches

        plain = batches.Batched._ask

        def ask(self, request, op, **fields):
            # The first process of tests that runs a batch dies before its second case.
            if request.nodeid.endswith("[1]"):
                try:
                    os.close(os.open("died", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os._exit(1)
            return plain(self, request, op, **fields)

        batches.Batched._ask = ask
        """
    )
    result = suite.runpytest_inprocess(
        "-n2", "--kb-mode=batch", "--dist=each", "-p", "no:cacheprovider"
    )
    assert Path("died").exists()
    assert Counter(runs()) == Counter(["0", "fails", *"234567"])
    assert "crashed while running" in result.stdout.str()


def test_xdist_needs_a_process_for_each_of_its_own(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_MAX_PROCS", "1")
    result = suite.runpytest_inprocess("-n2", "--kb-mode=pool", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*KERNBENCH_MAX_PROCS=1 is too few for -n 2: in mode pool *"])


def test_the_shared_folder_is_removed(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kernbench.testing.worlds.folder_of", lambda name: tmp_path / "shared")
    seen = []

    class During:
        def pytest_runtest_teardown(self, item: pytest.Item) -> None:
            [batch] = (tmp_path / "shared").iterdir()
            seen.append(claim(batch))

    suite.inline_run("-n0", "--kb-mode=batch", "-k", "0 or 1", plugins=[During()])
    assert seen == [None, None]
    assert not (tmp_path / "shared").exists()


def test_the_folder_is_in_memory_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(modes, "_IN_MEMORY", tmp_path)
    monkeypatch.setattr(modes, "_ENOUGH", 1)
    assert modes.folder_of("x") == tmp_path / f"kernbench-x-{os.getpid()}"
    monkeypatch.setattr(modes, "_ENOUGH", 1 << 80)
    assert modes.folder_of("x").parent != tmp_path
