"""Megatron-Core's experts under the bridge: its own tests, routings, and the report of loads.

`megatron_moe.csv` has the tests of `tests/unit_tests/transformer/moe` of Megatron-LM, core_v0.16.1,
that ended on all of 8 ranks: what became of each, and why it did not pass. They run with
`--megatron FOLDER`, a checkout at that version, whose `megatron/training` can be imported.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.routing import Asked, overload, routing_of

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

HERE = Path(__file__).parent
LIST = HERE / "megatron_moe.csv"


def launched(ranks: int, *words: str, folder: Path, **env: str) -> str:
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(HERE.parents[1]), str(HERE), str(folder)])
    done = subprocess.run(
        [*command, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    with LIST.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["file"], []).append(row)
    return found


def test_each_test_that_does_not_pass_has_a_reason() -> None:
    rows = [row for rows in listed().values() for row in rows]
    assert {row["outcome"] for row in rows} <= {"passed", "skipped", "failed"}
    assert all(bool(row["why"]) == (row["outcome"] != "passed") for row in rows)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("data", ["on", "fake"])
def test_routers_choose_what_the_run_names_and_loads_have_layers(tmp_path: Path, data: str) -> None:
    program, out = str(HERE / "megatron_moe_layer.py"), tmp_path / "run.json"
    words = ("--data", data, "--routing", "W5", "--json", str(out), program)
    printed = launched(4, *words, "alltoall", "128", "8", folder=tmp_path)
    # The first call of the router, and the second.
    first, second = (routing_of("W5").choices(Asked(step, 1, 0, 128, 8, 2)) for step in (0, 1))
    lines = [line for line in printed.splitlines() if line.startswith("CHOSEN")]
    assert lines == [f"CHOSEN {second.counts.tolist()}"] * 4
    loads = {
        (row["layer"], row["direction"]): row["overload"]
        for row in json.loads(out.read_text())["moe"]
    }
    expected = pytest.approx(overload(first.counts.reshape(4, 2).sum(1)))
    assert loads[1, "forward"] == loads[1, "backward"] == expected


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alltoall", "allgather"])
def test_a_layer_without_numbers_takes_as_long_with_the_same_loads(
    tmp_path: Path, kind: str
) -> None:
    program, found = str(HERE / "megatron_moe_layer.py"), []
    for data in ("on", "fake"):
        out = tmp_path / data
        words = ("--data", data, "--routing", "W5", "--json", str(out), program)
        # Maps of so many choices are more than the numbers that are kept.
        printed = launched(4, *words, kind, "4096", "64", folder=tmp_path)
        (time,) = [line for line in printed.splitlines() if line.startswith("simulated time")]
        found.append((time.partition(",")[0], json.loads(out.read_text())["moe"]))
    assert found[0] == found[1]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("data", ["off", "fake"])
def test_a_dispatcher_that_nothing_is_said_to_names_the_way_out(tmp_path: Path, data: str) -> None:
    program = str(HERE / "megatron_moe_layer.py")
    with pytest.raises(AssertionError) as caught:
        launched(4, "--data", data, program, "allgather", "128", "8", folder=tmp_path)
    assert "MoEAllGatherTokenDispatcher of layer 1 reads how many rows" in str(caught.value)
    assert "hint: --data fake --routing NAME|FILE" in str(caught.value)


@pytest.mark.torch
@pytest.mark.at_length
@pytest.mark.parametrize("file", listed())
def test_megatrons_own_tests(file: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--megatron")
    if given is None:
        pytest.skip("--megatron FOLDER names a checkout of Megatron-LM")
    path = f"tests/unit_tests/transformer/moe/{file}"
    rows = listed()[file]
    names = [f"{path}::{row['test']}" for row in rows]
    plugin = ("-m", "pytest", "-p", "megatron_moe_plugin", "--noconftest", "-q")
    launched(8, *plugin, *names, folder=Path(given), OUTCOMES=str(tmp_path))
    expected = {row["test"]: row["outcome"] for row in rows}
    for rank in range(8):
        lines = [json.loads(line) for line in (tmp_path / str(rank)).read_text().splitlines()]
        found = {name.partition("::")[2]: outcome for name, outcome, _ in lines}
        worse = {name for name, outcome in expected.items() if outcome == "passed"}
        assert {name for name in worse if found.get(name) != "passed"} == set()
