"""Several processes: jobs are shared out, the dead are replaced, and what is done is never lost."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kernbench.workers.crew import Answer, Crew, Job
from kernbench.workers.failing import PoolDied, PoolTimeout
from kernbench.workers.worker import Worker

pytestmark = pytest.mark.usefixtures("short_waits")

HANDLERS = "worker_handlers"


def job(code: str, name: object = "", timeout_s: float | None = 60.0, **names: Any) -> Job:
    return Job(str(name), "execute", {"code": dedent(code), **names}, timeout_s)


def where(name: object = "") -> Job:
    return job("import os; answer = {'pid': os.getpid()}", name)


DIE = "import os; os._exit(3)"


def crew(size: int = 1, **options: Any) -> Crew:
    return Crew(HANDLERS, size, **{"echo": False, **options})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that crews have started."""
    workers: list[Worker] = []

    class Noted(Worker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            workers.append(self)

    monkeypatch.setattr("kernbench.workers.crew.Worker", Noted)
    return workers


def names(answers: Iterable[Answer]) -> list[str]:
    return [answer.job.name for answer in answers]


def test_one_worker_does_all_jobs_in_their_order(started: list[Worker]) -> None:
    with crew() as one:
        answers = list(one.run(where(number) for number in range(20)))
        again = list(one.run([where()]))
    assert names(answers) == [str(number) for number in range(20)]
    assert len(started) == 1
    assert {answer.pid for answer in (*answers, *again)} == {started[0].pid}
    assert all(answer.response and answer.response["pid"] == answer.pid for answer in answers)
    assert all((answer.error, answer.tries) == (None, 1) for answer in answers)


def test_no_jobs_start_nothing(started: list[Worker]) -> None:
    with crew(3) as idle:
        assert list(idle.run([])) == []
    assert started == []


def test_there_are_no_more_workers_than_jobs(started: list[Worker]) -> None:
    with crew(8) as many:
        assert len(list(many.run([where(), where()]))) == 2
    assert len(started) == 2


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    pipes = [str(tmp_path / name) for name in "ab"]
    for pipe in pipes:
        os.mkfifo(pipe)
    # Opening one end of a named pipe waits for the other end, so neither could end alone.
    first = job("open(a, 'w').close(); open(b).close()", a=pipes[0], b=pipes[1])
    second = job("open(a).close(); open(b, 'w').close()", a=pipes[0], b=pipes[1])
    with crew(2) as two:
        answers = list(two.run([first, second]))
    assert len({answer.pid for answer in answers}) == 2


def test_answers_come_as_they_are_there_and_a_free_worker_has_the_next_job(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = job("open(gate).close()", "slow", gate=str(gate))
    seen = []
    with crew(2) as two:
        for answer in two.run([slow, *(where(number) for number in range(5))]):
            seen.append(answer.job.name)
            if answer.job.name == "4":
                gate.open("w").close()
    assert seen == ["0", "1", "2", "3", "4", "slow"]


def test_many_workers(started: list[Worker]) -> None:
    with crew(12) as many:
        answers = list(many.run(where(number) for number in range(60)))
    assert sorted(names(answers), key=int) == [str(number) for number in range(60)]
    assert {answer.pid for answer in answers} <= {worker.pid for worker in started}
    assert len(started) == 12
    assert not any(worker.alive for worker in started)


def test_jobs_are_taken_when_there_is_a_worker_for_them() -> None:
    taken = 0

    def jobs() -> Iterator[Job]:
        nonlocal taken
        for number in range(10):
            taken += 1
            yield where(number)

    with crew(2) as two:
        for done, _ in enumerate(two.run(jobs())):
            assert taken <= done + 2


def test_a_failed_case_is_an_answer_and_keeps_its_worker(started: list[Worker]) -> None:
    with crew() as one:
        failed, fine = one.run([job("1 / 0"), where()])
    assert (failed.error, failed.tries) == (None, 1)
    assert failed.response is not None
    assert "ZeroDivisionError" in failed.response["error"]
    assert failed.pid == fine.pid
    assert len(started) == 1


def test_a_death_is_tried_once_more_in_a_fresh_process(
    started: list[Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    with crew(label="world=8") as one:
        fine, died, after = one.run([where("a"), job(DIE, "b"), where("c")])
    assert [answer.tries for answer in (fine, died, after)] == [1, 2, 1]
    assert isinstance(died.error, PoolDied)
    assert died.error.facts == ("exit code 3",)
    assert died.response is None
    pids = [worker.pid for worker in started]
    assert [fine.pid, died.pid, after.pid] == pids
    assert capsys.readouterr().err == (
        "[POOL-RETRY] world=8 job=b attempt=1 reason=died\n"
        "[POOL-RETRY-FAIL] world=8 job=b attempt=2 reason=died\n"
    )


ONCE = """
import os
try:
    os.mkdir(there)
except FileExistsError:
    answer = {"second": True}
else:
    HARM
"""


@pytest.mark.parametrize(
    ("harm", "reason"), [("os._exit(3)", "died"), ("while True: pass", "timeout")]
)
def test_the_second_try_may_do_it(
    harm: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = job(ONCE.replace("HARM", harm), "it", 0.3, there=str(tmp_path / "there"))
    with crew() as one:
        (answer,) = one.run([again])
    assert (answer.error, answer.tries) == (None, 2)
    assert answer.response is not None
    assert answer.response["second"] is True
    assert capsys.readouterr().err == f"[POOL-RETRY] job=it attempt=1 reason={reason}\n"


@pytest.mark.parametrize("retries", [0, 2])
def test_the_number_of_tries_may_be_given(retries: int, capsys: pytest.CaptureFixture[str]) -> None:
    with crew(retries=retries) as one:
        (answer,) = one.run([job(DIE)])
    assert answer.tries == retries + 1
    assert capsys.readouterr().err.count("[POOL-RETRY") == (retries + 1 if retries else 0)


def test_a_late_answer_harms_no_other() -> None:
    hang = job("while True: pass", "hang", 0.1)
    with crew(2, retries=0) as two:
        list(two.run([where(), where()]))  # both are up
        answers = list(two.run([hang, *(where(number) for number in range(5))]))
    errors = {answer.job.name: answer.error for answer in answers}
    assert isinstance(errors.pop("hang"), PoolTimeout)
    assert errors == dict.fromkeys(["0", "1", "2", "3", "4"])


def test_a_worker_that_died_idle_costs_no_try(started: list[Worker]) -> None:
    with crew(retries=0) as one:
        list(one.run([where()]))
        started[0]._signal(9)
        started[0]._process.wait()
        (answer,) = one.run([where()])
    assert answer.error is None
    assert answer.pid == started[1].pid


def test_processes_that_cannot_start_fail_their_jobs_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with crew(3) as three:
        monkeypatch.setattr("sys.executable", "/not/there/python")
        answers = list(three.run(where(number) for number in range(4)))
        monkeypatch.undo()
        (later,) = three.run([where()])
    assert names(answers) == ["0", "1", "2", "3"]
    for answer in answers:
        assert isinstance(answer.error, PoolDied)
        assert "/not/there/python" in str(answer.error)
        assert (answer.pid, answer.tries) == (0, 2)
    assert later.error is None


def test_who_stops_to_iterate_gives_up_what_runs(started: list[Worker]) -> None:
    forever = [job("while True: pass") for _ in range(2)]
    with crew(3) as three:
        for answer in three.run([where("a"), *forever]):
            assert answer.job.name == "a"
            break
        assert sum(worker.alive for worker in started) == 1
        assert names(three.run([where("b"), where("c")])) in (["b", "c"], ["c", "b"])


def test_a_run_ends_when_another_one_begins(started: list[Worker]) -> None:
    with crew(2) as two:
        former = two.run([where("a"), job("while True: pass"), where("never")])
        assert next(former).job.name == "a"
        assert names(two.run([where("b")])) == ["b"]
        assert list(former) == []
        assert names(two.run([where("c")])) == ["c"]


def test_a_run_ends_when_its_crew_is_closed(started: list[Worker]) -> None:
    two = crew(2)
    run = two.run([where("a"), job("while True: pass"), where("never")])
    assert next(run).job.name == "a"
    two.close()
    assert list(run) == []
    assert not any(worker.alive for worker in started)
    two.close()


def test_jobs_that_raise_end_the_run(started: list[Worker]) -> None:
    def jobs() -> Iterator[Job]:
        yield job("while True: pass")
        raise LookupError("no more")

    with crew(2) as two:
        with pytest.raises(LookupError, match="no more"):
            list(two.run(jobs()))
        assert not any(worker.alive for worker in started)


def test_discarded_workers_are_not_asked_again(started: list[Worker]) -> None:
    with crew(2) as two:
        list(two.run([where(), where()]))
        two.discard()
        assert not any(worker.alive for worker in started)
        (answer,) = two.run([where()])
    assert answer.pid == started[2].pid
    assert started[0]._process.returncode == 0


def test_large_requests_and_answers_of_many(started: list[Worker]) -> None:
    code = "answer = {'text': text}"
    texts = [str(number) * (1 << 20) for number in range(6)]
    with crew(3) as three:
        answers = list(three.run(job(code, number, text=t) for number, t in enumerate(texts)))
    for answer in answers:
        assert answer.response is not None
        assert answer.response["text"] == texts[int(answer.job.name)]


def test_what_workers_print_is_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    with crew(2, echo=True, environment={**os.environ, "WHO": "me"}) as two:
        list(two.run([job("import os; print(os.environ['WHO'])")]))
        assert capsys.readouterr().err == "me\n"
