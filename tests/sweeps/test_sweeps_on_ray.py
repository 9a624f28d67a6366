"""Sweeps on Ray: with a driver that is none, and with Ray itself."""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import grid_of

from kernbench.errors import UsageError
from kernbench.sweeps import on_ray
from kernbench.sweeps.executors import executor_of
from kernbench.sweeps.local import Local
from kernbench.sweeps.on_ray import OnRay
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import Files, Sweep

FAKE = "fake_ray"


def numbers(records: Iterable[Record]) -> list[int]:
    return sorted(record.sim_ps for record in records)


def test_records_come_back_with_their_runs(tmp_path: Path) -> None:
    runs = grid_of(tmp_path)
    records = list(OnRay(driver=FAKE, timeout_s=7.0)(iter(runs)))
    assert sorted(int(record.run.varied["-n"]) for record in records) == [0, 1, 2, 3]
    assert all(record.run in runs for record in records)
    assert all(record.results[0]["limit_s"] == 7.0 for record in records)


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_tasks_are_under_way_than_asked_for(jobs: int, tmp_path: Path) -> None:
    taken: list[Run] = []

    def noted() -> Iterator[Run]:
        for run in grid_of(tmp_path, range(9)):
            taken.append(run)
            yield run

    records = OnRay(driver=FAKE, jobs=jobs)(noted())
    first = next(records)
    assert len(taken) == jobs
    assert first.results[0]["most"] == jobs
    records.close()


@pytest.mark.parametrize(
    ("behaviour", "facts"),
    [
        ("dies", ["exit code 1", "the raylet is gone"]),
        ("fails", ["RuntimeError: no cluster"]),
    ],
)
def test_a_ray_that_goes_ends_the_sweep_and_loses_nothing(
    behaviour: str, facts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, files = grid_of(tmp_path, [0, 1, 5, 2, 6]), Files(json=tmp_path / "found.json")
    monkeypatch.setenv("KERNBENCH_FAKE_RAY", behaviour)
    with (
        Sweep(runs, files) as sweep,
        pytest.raises(UsageError, match="Ray has gone before the end of the sweep") as caught,
    ):
        list(sweep.run(OnRay(driver=FAKE, jobs=1)))
    assert all(fact in str(caught.value) for fact in facts)
    assert "--resume goes on from there" in str(caught.value)
    monkeypatch.setenv("KERNBENCH_FAKE_RAY", "")
    with Sweep(runs, files, resume=True) as sweep:
        assert sweep.done == 3
        assert numbers(sweep.run(OnRay(driver=FAKE, jobs=1))) == [2, 6]
        assert numbers(sweep.records()) == [0, 1, 2, 5, 6]


def test_a_run_that_has_lost_its_worker_twice_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_FAKE_RAY", "loses")
    records = {r.run.varied["-n"]: r for r in OnRay(driver=FAKE)(iter(grid_of(tmp_path)))}
    assert [records[n].ok for n in "0123"] == [True, True, False, True]
    lost = records["2"]
    assert lost.failure is not None
    assert lost.failure["class"] == "RunDiedError"
    assert lost.failure["facts"] == ["NodeDiedError: a", "NodeDiedError: b"]
    assert "has ended twice while the run took place" in lost.report


def test_a_ray_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_FAKE_RAY", "refuses")
    with pytest.raises(UsageError, match=r"Ray cannot be started here\n  no room"):
        list(OnRay(driver=FAKE)(iter(grid_of(tmp_path))))


def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=rf"Ray at 127.0.0.1:{port} cannot be reached"):
        list(OnRay(f"127.0.0.1:{port}", driver=FAKE)(iter(grid_of(tmp_path))))


def test_ray_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install ray"):
        executor_of("ray", None, None, None)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="only Ray has one"):
        executor_of("local", "auto", None, None)
    with pytest.raises(UsageError, match="expected an integer from 1, got 0"):
        executor_of("local", None, 0, None)
    with pytest.raises(UsageError, match="expected local or ray, got 'slurm'"):
        executor_of("slurm", None, None, None)  # type: ignore[arg-type]
    assert executor_of("local", None, None, None) == Local(1, None)


# Ray itself

BENCH = """\
import os, sys
import helper

def run(ctx):
    number = int(ctx.argv[-1])
    print("run", number)
    if number == 1:
        raise ValueError("one")
    if number == 2:
        os._exit(7)
    if number == 4:
        import time
        while True:
            time.sleep(0.05)
    ctx.results.append({"n": number, "twice": helper.twice(number)})
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "helper.py").write_text("def twice(n): return 2 * n\n")
    (tmp_path / "pyproject.toml").write_text("")
    from kernbench.run_spec import RunSpec
    from kernbench.sweeps import grid

    axis = grid.axis("arg", "-n", map(str, range(6)), "-n")
    return grid.grid(RunSpec(bench="bench.py", watchdog_s=0.0), [axis])


def plain(records: Iterable[Record]) -> dict[str, Any]:
    found = {record.run.key: {**record.to_json(), "wall_s": 0} for record in records}
    plain: dict[str, Any] = json.loads(json.dumps(dict(sorted(found.items()))))
    return plain


@pytest.mark.ray
def test_records_are_those_of_this_machine(runs: list[Run]) -> None:
    pytest.importorskip("ray")
    here = plain(Local(2, 3.0)(iter(runs)))
    there = plain(OnRay(jobs=2, timeout_s=3.0)(iter(runs)))
    assert there == here
    assert [value["ok"] for value in map(here.get, (run.key for run in runs)) if value] == [
        *(True, False, False, True, False, True)
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray on this machine that is no child of the sweep."""
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    store = "--object-store-memory=100000000"
    ray = Path(sys.executable).with_name("ray")
    # Ray listens on every interface, so it has a secret; the sweep reads it from the environment.
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    process = subprocess.Popen(
        [str(ray), "start", *words, store],
        env={**os.environ, **secret, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    around = pytest.MonkeyPatch()
    for name, value in secret.items():
        around.setenv(name, value)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        around.undo()
        os.kill(process.pid, signal.SIGTERM)  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.mark.ray
def test_a_cluster_gets_the_files_of_the_folder(runs: list[Run], cluster: str) -> None:
    few = [run for run in runs if run.varied["-n"] in "035"]
    records = plain(OnRay(cluster, jobs=2)(iter(few)))
    assert records == plain(Local(1)(iter(few)))


@pytest.mark.ray
def test_a_cluster_without_the_files_is_refused(
    runs: list[Run], cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    other = [Run(runs[0].spec, {}, "0" * 32)]
    with pytest.raises(UsageError, match=r"has other files than this machine\n.*below the working"):
        list(OnRay(cluster)(iter(other)))


@pytest.mark.ray
def test_a_ray_that_is_killed_midway_is_told(runs: list[Run], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    files = Files(json=tmp_path / "found.json")
    others = [run for run in runs if run.varied["-n"] != "4"]
    hangs = [run for run in runs if run.varied["-n"] == "4"]
    with Sweep([*others, *hangs], files) as sweep:
        records = sweep.run(OnRay(jobs=1))
        assert len([next(records) for _ in others]) == len(others)
        for pid in _raylets_below(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(UsageError, match="Ray has gone before the end of the sweep"):
            next(records)
    with Sweep([*others, *hangs], files, resume=True) as sweep:
        assert sweep.done == len(others)


def _raylets_below(pid: int) -> list[int]:
    """Returns the processes called raylet among the descendants of a process."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        name, rest = re.fullmatch(r"\d+ \((.*)\) (.*)", text.strip(), re.S).groups()  # type: ignore[union-attr]
        parents[int(entry.name)], names[int(entry.name)] = int(rest.split()[1]), name

    def below(child: int) -> bool:
        while child > 1:
            child = parents.get(child, 0)
            if child == pid:
                return True
        return False

    return [each for each, name in names.items() if name == "raylet" and below(each)]
