"""PyTorch's own tests of `torch.distributed`, of which a list says what becomes of each.

`torch_distributed_test.csv` has the tests of `DistributedTest` in the installed PyTorch: whether a
test passes, skips itself or fails, with which backend and how many ranks it was run, and why it
does not pass. What PyTorch's profiler records of a collective is not compared.
"""

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

pytestmark = [pytest.mark.torch, pytest.mark.at_length]

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("torch_distributed_test.csv")


def listed() -> list[dict[str, str]]:
    with LIST.open(newline="") as file:
        return list(csv.DictReader(file))


def passing() -> dict[tuple[str, str], list[str]]:
    """Returns the tests that pass, by backend and number of ranks."""
    found = defaultdict(list)
    for row in listed():
        if row["outcome"] == "passes":
            found[row["backend"], row["ranks"]].append(row["test"])
    return dict(sorted(found.items()))


def said(*words: str) -> list[Sequence[str]]:
    command = [sys.executable, "-m", "tests.bridge.torch_distributed_test", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_list_has_every_test_and_a_reason_for_each_that_does_not_pass() -> None:
    rows = listed()
    assert sorted(row["test"] for row in rows) == sorted(said("gloo", "4", "--names")[0])
    assert all(bool(row["why"]) == (row["outcome"] != "passes") for row in rows)
    assert {row["outcome"] for row in rows} == {"passes", "skips", "fails"}
    assert sum(row["outcome"] == "passes" for row in rows) >= 140


@pytest.mark.parametrize(("backend", "ranks"), passing())
def test_what_is_listed_as_passing_passes(backend: str, ranks: str) -> None:
    names = passing()[backend, ranks]
    found = said(backend, ranks, *names)
    assert sorted(name for name, _, _ in found) == sorted(names)
    assert [line for line in found if line[1] != "passes"] == []
