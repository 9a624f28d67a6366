"""`kernbench run --hash-seeds`: a process for each hash seed, and what is told of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec

PROGRAM = """\
import kernbench.torch as torch
import kernbench.torch.distributed as dist

SIZES = {"weight": 8, "bias": 4}


def worker(rank):
    dist.init_process_group("nccl")
    for name in NAMES:
        dist.all_reduce(torch.ones(SIZES[name], device="cuda"))
    if rank == 0:
        print("ran")


def run(ctx):
    ctx.multiprocessing.spawn(worker, nprocs=2)
"""
"""With `NAMES`; the order of the set of both names differs between the hash seeds 1 and 2."""


@pytest.fixture
def told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a program that iterates over `names`; returns the exit code and both outputs."""

    def run(names: str, hash_seeds: int = 2, explore: int = 0, **output: Any) -> Any:
        bench = tmp_path / "seeds.py"
        bench.write_text(PROGRAM.replace("NAMES", names))
        status = run_bench(RunSpec(bench=str(bench)), Output(**output), explore, hash_seeds)
        out, err = capfd.readouterr()
        return status, out, err.replace(str(tmp_path), "")

    return run


def test_r11_a_set_of_strings(told: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    line = '/seeds.py:10:9: dist.all_reduce(torch.ones(SIZES[name], device="cuda"))'
    status, out, err = told("set(SIZES)", json=file)
    assert (status, out) == (1, "ran\n"), "only the first run prints"
    assert err == (
        "kernbench: the failure is in /out.json\n"
        "HashSeedError: [R11] ranks 0 and 1 would not make the same calls on hardware, where each "
        "rank has its own hash seed\n"
        "  rank 0 with hash seed 1: all_reduce #1 of group WORLD: "
        f"all_reduce([4], torch.float32, sum), at {line}\n"
        "  rank 1 with hash seed 2: all_reduce #1 of group WORLD: "
        f"all_reduce([8], torch.float32, sum), at {line}\n"
        "  hint: sort what is iterated over, `for name in sorted(names)`, or take a list or a dict "
        "instead of a set; PYTHONHASHSEED=2 kernbench run /seeds.py --seed 0 runs the second one "
        "again\n"
        "replay: kernbench run /seeds.py --hash-seeds 2 --seed 0\n"
        "explain: kernbench explain R11\n"
    )
    document = json.loads(file.read_text())
    assert document["failure"]["code"] == "R11"
    assert document["failure"]["replay"]["command"].endswith("seeds.py --hash-seeds 2 --seed 0")
    assert document["spec"]["bench"].endswith("seeds.py")


def test_what_keeps_its_order_agrees(told: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    said = "kernbench: hash seeds: all 2 agree\n"
    assert told("sorted(set(SIZES))", json=file) == (0, "ran\n", said)
    assert "failure" not in json.loads(file.read_text())
    assert told("SIZES", quiet=True) == (0, "ran\n", "")


def test_a_failure_of_the_first_run_is_told_as_it_is(told: Any) -> None:
    status, out, err = told("(['weight', 'bias'][rank],)", hash_seeds=3)
    assert (status, out) == (1, "ran\n"), "once"
    assert err.count("[C3]") == 1
    assert err.endswith(
        "replay: kernbench run /seeds.py --hash-seeds 3 --seed 0\nexplain: kernbench explain C3\n"
    )


def test_a_failure_under_another_seed_is_told(told: Any) -> None:
    names = "SIZES if next(iter({'weight', 'bias'})) == 'bias' else 1 / 0"
    status, _, err = told(names)
    assert status == 1
    assert "rank 1 with hash seed 2 makes no such call\n" in err
    assert "in the run with hash seed 2: rank 0 failed: ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("hash_seeds", "explore", "said"),
    [
        (1, 0, "--hash-seeds takes 2 seeds or more"),
        (2, 2, "--hash-seeds and --explore: expected one of them"),
    ],
)
def test_too_few_seeds_and_schedules_at_once_are_refused(
    told: Any, hash_seeds: int, explore: int, said: str
) -> None:
    status, out, err = told("SIZES", hash_seeds=hash_seeds, explore=explore)
    assert (status, out) == (2, "")
    assert err == f"kernbench: {said}\n"
