"""A run as one value: what it takes, where it goes, what builds on it."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from run_specs import run_specs

import kernbench.torch as torch
from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.ranks.schedules import Schedule
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.engines import make_engine, spec_of
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import Kernbench
from kernbench.topology import Topology


def _told(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


# A value


@given(spec=run_specs())
def test_json_and_pickle_give_it_back(spec: RunSpec) -> None:
    document = json.loads(json.dumps(spec.to_json()))
    assert document == spec.to_json()
    for again in (RunSpec.from_json(document), pickle.loads(pickle.dumps(spec))):
        assert again == spec
        assert hash(again) == hash(spec)
        assert again.to_json() == document


def test_json_has_all_fields_and_a_version() -> None:
    assert RunSpec().to_json() == {
        "version": 2,
        "topology": "sip8",
        "ccl": None,
        "overrides": [],
        "devices": "all",
        "default_device": "cuda",
        "data": True,
        "fidelity": "kernel",
        "record": "summary",
        "shadow": False,
        "collapse": "off",
        "roles": None,
        "witnesses": None,
        "seed": 0,
        "eager_limit": 0,
        "watchdog_s": 30.0,
        "max_time_ps": 0,
        "step_budget": 0,
        "group_limit": 4096,
        "class_limit": 4096,
        "schedule": None,
        "routing": None,
        "bench": None,
        "arguments": [],
        "nproc_per_node": None,
        "as_torch": False,
        "pytorch": None,
    }
    assert RunSpec.from_json({"version": 2}) == RunSpec()
    assert RunSpec(pytorch=PytorchRun()).to_json()["pytorch"] == {
        "nodes": 1,
        "as_module": False,
        "fake": False,
        "same_ranks": False,
        "witnesses": None,
        "check_replicas": False,
        "races": "error",
    }


def test_version_1_which_had_all_fields_in_one_place_is_read() -> None:
    flat: dict[str, Any] = {"version": 1, "pytorch": True, "nodes": 2, "witnesses": [3]}
    assert RunSpec.from_json({**flat, "data": "fake", "seed": 3}) == RunSpec(
        seed=3, data=False, pytorch=PytorchRun(nodes=2, witnesses=(3,), fake=True)
    )
    assert RunSpec.from_json({"version": 1, "pytorch": False, "nodes": 1, "races": "error"}) == (
        RunSpec()
    )
    assert "nodes: expected one of" in _told(
        lambda: RunSpec.from_json({**flat, "version": 2, "pytorch": None})
    )


def test_what_only_a_program_of_pytorch_has_stands_with_it() -> None:
    told = _told(lambda: RunSpec(data="fake"))  # type: ignore[arg-type]
    assert "data: expected true or false, got 'fake' [F2]" in told
    assert "kernbench torchrun --data fake" in told
    told = _told(lambda: RunSpec(pytorch=PytorchRun(fake=True)))
    assert "pytorch.fake: expected false with data, whose values can be read, got true [F3]" in told
    told = _told(lambda: RunSpec(pytorch=True))  # type: ignore[arg-type]
    assert "pytorch: expected a PytorchRun or None, got True [F2]" in told
    assert "PytorchRun: 1 problem\n  nodes: expected an integer from 1, got 0 [F3]" in _told(
        lambda: PytorchRun(nodes=0)
    )
    wrong = {"version": 2, "seed": -1, "pytorch": {"nodes": 0, "races": "later"}}
    assert _told(lambda: RunSpec.from_json(wrong)) == (
        "RunSpec: 3 problems\n"
        "  pytorch.nodes: expected an integer from 1, got 0 [F3]\n"
        "  pytorch.races: expected one of error, warn, got 'later' [F2]\n"
        "  seed: expected an integer from 0, got -1 [F3]"
    )
    told = _told(lambda: RunSpec.from_json({"version": 2, "pytorch": {"racse": "warn"}}))
    assert "pytorch.racse: expected one of nodes, as_module, fake" in told
    assert "did you mean `races`?" in told


def test_it_is_a_value() -> None:
    spec = RunSpec(seed=3)
    assert {spec: "a"}[RunSpec(seed=3)] == "a"
    assert dataclasses.replace(spec, seed=0) == RunSpec()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 4  # type: ignore[misc]
    with pytest.raises(ConfigError, match="seed: expected an integer from 0, got -1"):
        dataclasses.replace(spec, seed=-1)


def test_values_that_stand_for_plain_ones_become_plain(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "topology": tmp_path / "m.yaml",
        "ccl": Path("ccl.yaml"),
        "overrides": ["system.sips.count=2"],
        "devices": range(2),
        "seed": np.int64(7),
        "watchdog_s": 3,
        "schedule": [2, 1],
        "arguments": ["-e", "1K"],
    }
    spec = RunSpec(**given)
    assert spec == RunSpec(
        topology=str(tmp_path / "m.yaml"),
        ccl="ccl.yaml",
        overrides=("system.sips.count=2",),
        devices=(0, 1),
        seed=7,
        watchdog_s=3.0,
        schedule=(2, 1),
        arguments=("-e", "1K"),
    )
    assert type(spec.seed) is int
    assert type(spec.watchdog_s) is float
    json.dumps(spec.to_json())


def test_overrides_go_to_the_file_that_has_their_first_key() -> None:
    texts = ("defaults.n_slots=2", "system.sips.count=2", "queues.q.n_slots=3", "system.name=x")
    spec = RunSpec(overrides=(*texts, "algorithms.a.n_elem=4"))
    assert spec.machine_overrides == ("system.sips.count=2", "system.name=x")
    assert spec.ccl_overrides == (
        "defaults.n_slots=2",
        "queues.q.n_slots=3",
        "algorithms.a.n_elem=4",
    )


def test_its_name_is_that_of_the_bench() -> None:
    assert [RunSpec(bench=bench).name for bench in ("a/b.py", "ccl", None)] == ["b", "ccl", ""]


def test_importing_it_imports_nothing_heavy() -> None:
    """The command line has its defaults from it, before it knows what it is asked for."""
    code = "import kernbench.run_spec as r, sys; r.RunSpec()\n"
    code += "print([m for m in ('numpy', 'yaml', 'networkx', 'greenlet') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert found.stdout == "[]\n"


# Mistakes


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("topology", "", "a file, the name of a shipped machine, or None, got ''"),
        ("topology", 8, "a file, the name of a shipped machine, or None, got 8"),
        ("ccl", b"a", "a file or None, got b'a'"),
        ("overrides", "system.a=1", "texts, got 'system.a=1'"),
        ("overrides", [1], "texts, got [1]"),
        ("devices", "none", "all, or different integers from 0, got 'none'"),
        ("devices", (), "all, or different integers from 0, got ()"),
        ("devices", (0, 0), "all, or different integers from 0, got (0, 0)"),
        ("devices", 3, "all, or different integers from 0, got 3"),
        ("data", 1, "true or false, got 1"),
        ("data", "off", "true or false, got 'off'"),
        ("fidelity", "exact", "one of tile, kernel, functional, got 'exact'"),
        ("record", True, "one of full, summary, none, got True"),
        ("seed", -1, "an integer from 0, got -1"),
        ("seed", 1.0, "an integer from 0, got 1.0"),
        ("seed", True, "an integer from 0, got True"),
        ("eager_limit", "4 KiB", "an integer from 0, got '4 KiB'"),
        ("watchdog_s", -0.5, "seconds from 0, got -0.5"),
        ("watchdog_s", float("nan"), "seconds from 0, got nan"),
        ("watchdog_s", float("inf"), "seconds from 0, got inf"),
        ("watchdog_s", "30", "seconds from 0, got '30'"),
        ("watchdog_s", None, "seconds from 0, got None"),
        ("step_budget", None, "an integer from 0, got None"),
        ("group_limit", -3, "an integer from 0, got -3"),
        ("schedule", (), "integers from 1, or None, got ()"),
        ("schedule", (1, 0), "integers from 1, or None, got (1, 0)"),
        ("schedule", "2.1", "integers from 1, or None, got '2.1'"),
        ("bench", "", "a file, the name of a shipped bench, or None, got ''"),
        ("arguments", "-e 1K", "texts, got '-e 1K'"),
        ("arguments", {"-e": "1K"}, "texts, got {'-e': '1K'}"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object, said: str) -> None:
    expected = f"RunSpec: 1 problem\n  {field}: expected {said} [F"
    assert expected in _told(lambda: RunSpec.from_fields({field: value}))
    assert expected in _told(lambda: RunSpec.from_json({"version": 2, field: value}))


def test_all_wrong_values_are_told_at_once() -> None:
    wrong = {"seed": -1, "data": None, "overrides": ["system.a"]}
    roots = "expected dotted.field=value, the field beginning with one of "
    roots += "system, defaults, algorithms, queues"
    assert _told(lambda: RunSpec.from_fields(wrong)) == (
        "RunSpec: 3 problems\n"
        "  data: expected true or false, got None [F2]\n"
        "  seed: expected an integer from 0, got -1 [F3]\n"
        f"  --set system.a: {roots} [F2]"
    )


def test_overrides_that_belong_nowhere() -> None:
    told = _told(lambda: RunSpec(overrides=("sistem.sips.count=4", "system.sips.count", "=3")))
    roots = "expected dotted.field=value, the field beginning with one of "
    roots += "system, defaults, algorithms, queues"
    assert told == (
        "RunSpec: 3 problems\n"
        f"  --set sistem.sips.count=4: {roots} [F1]\n"
        "      did you mean `system`?\n"
        f"  --set system.sips.count: {roots} [F2]\n"
        f"  --set =3: {roots} [F1]"
    )


def test_an_unknown_field_has_a_suggestion(kernbench: Kernbench) -> None:
    told = _told(lambda: RunSpec.from_json({"version": 2, "fidelty": "tile", "x": 1}))
    names = ", ".join(field.name for field in dataclasses.fields(RunSpec))
    assert f"fidelty: expected one of {names}, got an unknown field [F1]" in told
    assert "did you mean `fidelity`?" in told
    assert "x: expected one of" in told
    assert "did you mean `seed`?" in _told(lambda: kernbench.context(sed=1))


@pytest.mark.parametrize("version", [None, 3, "1", True, 1.0])
def test_another_version_is_refused(version: object) -> None:
    told = _told(lambda: RunSpec.from_json({"version": version}))
    assert f"version: expected 2, got {version!r} [F2]" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON: Expecting value: line 1 column 1 (char 0) [F10]"),
        ("{,", "not JSON: Expecting property name"),
        ("[" * 100_000, "not JSON: "),
        ('{"version": 1, "seed": ' + "9" * 5000 + "}", "not JSON: "),
        ('{"version": 1, "seed": 1, "seed": 2}', "seed: expected once [F6]"),
        ("[]", "specification: expected a mapping with version, topology, "),
        ("{}", "version: expected 2, got None [F2]"),
        ('{"kernbench": 1, "results": []}', "specification: expected a mapping with version"),
        ('{"version": 1, "seed": -1, "watchdog_s": NaN}', "seed: expected an integer from 0"),
        ('{"version": 1, "overrides": ["a"]}', "--set a: expected dotted.field=value"),
    ],
)
def test_files_that_hold_none(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    told = _told(lambda: RunSpec.from_file(file))
    assert f"{file}: " in told.splitlines()[0]
    assert said in told


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_bytes(b'{"version": \xff}')
    assert "expected UTF-8, got byte 0xff" in _told(
        lambda: RunSpec.from_file(tmp_path / "runs.json")
    )
    told = _told(lambda: RunSpec.from_file(tmp_path / "run.json"))
    assert "no such file" in told
    assert "did you mean `runs.json`?" in told
    assert "got a folder" in _told(lambda: RunSpec.from_file(tmp_path))


def test_a_file_holds_one_alone_or_with_results(tmp_path: Path) -> None:
    spec = RunSpec(seed=5, arguments=("ä",))
    file = tmp_path / "run.json"
    for document in (spec.to_json(), {"kernbench": 1, "spec": spec.to_json(), "results": [{}]}):
        file.write_text(json.dumps(document))
        assert RunSpec.from_file(file) == RunSpec.from_file(str(file)) == spec


def test_what_code_made_has_no_command() -> None:
    assert "bench: expected text: a command names it" in _told(RunSpec().command)
    spec = RunSpec(bench="b.py", topology=None)
    assert "topology: expected text: a command names it" in _told(spec.command)


# What it builds


def test_a_context_is_what_it_says() -> None:
    spec = RunSpec(
        topology="torus4x4",
        overrides=("system.sips.count=4", "system.sips.network.shape=[2, 2]"),
        devices=(2, 0),
        data=False,
        fidelity="tile",
        record="full",
        arguments=("a",),
        schedule=(2, 1),
    )
    ctx = RuntimeContext(spec)
    engine = ctx.engine
    assert ctx.spec == spec
    assert (engine.topology.name, engine.topology.world_size) == ("torus4x4", 4)
    assert (engine.enable_data, engine.fidelity, engine.op_log.detail) == (False, "tile", "full")
    assert (ctx.devices, ctx.argv) == ([2, 0], ["a"])
    assert ctx.schedule is not None
    assert ctx.schedule.picks == (2, 1)


def test_without_one_it_is_the_usual_run() -> None:
    ctx = RuntimeContext()
    assert ctx.spec == RunSpec()
    assert ctx.engine.topology.name == "sip8"
    assert ctx.schedule is None


def test_equal_ones_give_equal_runs(kernbench: Kernbench) -> None:
    found = []

    def worker(rank: int) -> None:
        found.append(torch.rand(3, device="cuda").sum().item())

    spec = RunSpec(seed=4, topology="h200x8")
    times = []
    for again in (spec, pickle.loads(pickle.dumps(spec)), RunSpec.from_json(spec.to_json())):
        with kernbench.context_of(again) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
        times.append(ctx.engine.loop.now)
    assert found[:2] == found[2:4] == found[4:]
    assert len(set(times)) == 1
    kernbench.spawn(worker, nprocs=2, seed=5)
    assert found[6:] != found[:2]


def test_an_engine_that_is_given_has_no_file(topology: Callable[[str], Topology]) -> None:
    engine = GraphEngine(topology("torus4x4"), enable_data=False, fidelity="tile", record="none")
    ctx = RuntimeContext(engine=engine)
    assert ctx.engine is engine
    assert ctx.spec == RunSpec(topology=None, data=False, fidelity="tile", record="none")
    texts = ("system.sips.count=4", "defaults.n_slots=2")
    spec = spec_of(engine, RunSpec(overrides=texts, seed=3, devices=(1,)))
    assert spec == dataclasses.replace(
        ctx.spec, overrides=("defaults.n_slots=2",), seed=3, devices=(1,)
    )
    assert RuntimeContext(spec, engine=engine).devices == [1]
    assert "RunSpec(topology=None): expected a file" in _told(lambda: make_engine(spec))


def test_a_specification_that_the_engine_contradicts(topology: Callable[[str], Topology]) -> None:
    engine = GraphEngine(topology("sip8"), enable_data=False)
    spec = RunSpec(overrides=("system.sips.count=4",), fidelity="tile", seed=9)
    assert _told(lambda: RuntimeContext(spec, engine=engine)) == (
        "RuntimeContext(spec, engine=): the specification differs from the engine\n"
        "  topology: expected None, got 'sip8'\n"
        "  overrides: expected (), got ('system.sips.count=4',)\n"
        "  data: expected False, got True\n"
        "  fidelity: expected 'kernel', got 'tile'\n"
        "  hint: give the specification alone, or spec_of(engine, spec) with the engine"
    )


def test_what_is_no_specification(topology: Callable[[str], Topology]) -> None:
    engine: Any = GraphEngine(topology("sip8"))
    assert _told(lambda: RuntimeContext(engine)) == (
        "RuntimeContext(spec): expected a RunSpec, got GraphEngine\n"
        "  hint: an engine goes by its name, RuntimeContext(engine=engine); the machine as YAML "
        "gives it is engine.topology.spec"
    )
    machine: Any = topology("sip8")
    assert "expected a GraphEngine, got Topology" in _told(lambda: RuntimeContext(engine=machine))
    told = _told(lambda: RuntimeContext(RunSpec(), schedule=Schedule((1,))))
    assert "got None in the specification, (1,) in the schedule" in told


def test_a_failure_says_which_run_it_is_of(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        raise ValueError(rank)

    spec = RunSpec(seed=7, data=False)
    ctx = kernbench.context_of(spec)
    with pytest.raises(torch.multiprocessing.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert caught.value.spec == spec
