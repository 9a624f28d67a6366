"""A run as a value: what came of it, however it ended."""

from pathlib import Path

import pytest

from kernbench.errors import KernbenchError, UsageError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import RunSpec
from kernbench.scripts.failures import failure_of, report
from kernbench.scripts.running import Outcome, run_once

BENCH = """\
import sys

def worker(rank, torch):
    torch.zeros(4, device="cuda") + 1
    if torch.argv:
        raise ValueError("rank says no")

def run(ctx):
    ctx.results.append({"n": 1})
    if ctx.argv == ["exit"]:
        sys.exit("enough")
    if ctx.argv == ["leave"]:
        sys.exit(0)
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
    return 4
"""


@pytest.fixture
def bench(tmp_path: Path) -> str:
    file = tmp_path / "bench.py"
    file.write_text(BENCH)
    return str(file)


def _run(bench: str, *arguments: str) -> Outcome:
    return run_once(RunSpec(bench=bench, arguments=arguments))


def test_a_run_has_a_document_a_status_and_a_time(bench: str) -> None:
    outcome = _run(bench)
    assert (outcome.status, outcome.exit_code, outcome.error) == (4, 4, None)
    assert outcome.document == {
        "kernbench": 1,
        "run": "bench",
        "spec": outcome.spec.to_json(),
        "sim_ps": outcome.sim_ps,
        "results": [{"n": 1}],
    }
    assert outcome.context is not None
    records = outcome.context.engine.op_log.records
    assert outcome.sim_ps >= max([record.end for record in records], default=1) > 0


def test_leaving_with_0_is_no_failure(bench: str) -> None:
    outcome = _run(bench, "leave")
    assert (outcome.status, outcome.exit_code, outcome.error) == (0, 0, None)


def test_a_failure_is_kept_with_what_was_done_before(bench: str) -> None:
    outcome = _run(bench, "no")
    assert isinstance(outcome.error, SpawnException)
    assert outcome.status is None
    assert outcome.document["results"] == [{"n": 1}]
    assert "ValueError: rank says no" in report(outcome.error)
    failure = failure_of(outcome.error, outcome.spec)
    assert failure["errors"]["0"]["summary"] == "rank says no"
    assert failure["replay"]["command"] == outcome.spec.command()
    left = _run(bench, "exit")
    assert isinstance(left.error, SystemExit)
    assert report(left.error) == "enough"


def test_a_failure_before_there_is_a_machine_has_no_results(bench: str) -> None:
    for spec in (RunSpec(bench="nothing"), RunSpec(bench=bench, overrides=("system.x=1",))):
        outcome = run_once(spec)
        assert isinstance(outcome.error, UsageError)
        assert (outcome.context, outcome.sim_ps) == (None, 0)
        assert "results" not in outcome.document
        assert report(outcome.error).startswith("kernbench: [F")


def test_a_report_ends_with_the_command_that_explains_its_codes() -> None:
    assert report(KernbenchError("no", code="C14")).splitlines() == [
        "KernbenchError: [C14] no",
        "explain: kernbench explain C14",
    ]
    assert report(SystemExit(3)) == "the program has ended with exit code 3"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (
            '{"n": 1, "x": [1, {"y": {1, 2}}]}',
            "ctx.results[0]['x'][1]['y']: expected a plain value, got set",
        ),
        ('{"n": numpy.float32(1)}', "ctx.results[0]['n']: expected a plain value, got float32"),
        ("{(1, 2): 3}", "ctx.results[0]: expected a plain value, got a key of type tuple"),
        ("ring", "ctx.results: expected plain values, got one that holds itself"),
    ],
)
@pytest.mark.parametrize("failing", [False, True])
def test_results_that_no_document_can_hold_are_a_mistake_of_the_program(
    tmp_path: Path, left: str, told: str, failing: bool
) -> None:
    file = tmp_path / "bench.py"
    file.write_text(
        "import numpy\nring = {}\nring['ring'] = ring\n"
        f"def run(ctx):\n    ctx.results += [{left}, {{'n': 2}}]\n"
        + ("    raise ValueError('no')\n" if failing else "")
    )
    outcome = run_once(RunSpec(bench=str(file)))
    assert isinstance(outcome.error, ValueError if failing else UsageError)
    assert failing or told in str(outcome.error)
    assert outcome.document["results"] == [{"n": 2}]
