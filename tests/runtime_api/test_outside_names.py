"""Names that programs outside of this repository rely on, wherever the code behind them moves."""

import importlib
from pathlib import Path

import pytest

from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

_NAMES = {
    "kernbench.ccl.algorithms.ring_allreduce": ("all_reduce",),
    "kernbench.runtime_api.context": ("RuntimeContext",),
    "kernbench.runtime_api.multiprocessing": ("SpawnException", "_drain_pending", "spawn"),
    "kernbench.runtime_api.tensor": ("Tensor", "_HOST_READ_BARRIERS"),
    "kernbench.runtime_api.types": ("DeviceSelector",),
    "kernbench.sim_engine.engine": ("GraphEngine",),
    "kernbench.topology": ("load_topology",),
    "kernbench.tp": ("parallel_state", "layers", "kernels", "primitives", "mappings"),
}


def _engine(machine: str = "sip8") -> GraphEngine:
    return GraphEngine(load_topology(machine).topology_obj)


@pytest.mark.parametrize("module", _NAMES)
def test_the_names_of_a_module_are_there(module: str) -> None:
    there = importlib.import_module(module)

    assert [name for name in _NAMES[module] if not hasattr(there, name)] == []


def test_a_context_takes_the_machine_of_its_engine_as_yaml_gives_it() -> None:
    engine = _engine()
    ctx = RuntimeContext(
        engine=engine,
        target_device=DeviceSelector([1, 3]),
        correlation_id="bar",
        spec=engine.topology.spec,
    )

    assert list(ctx.devices) == [1, 3]
    assert ctx.spec.devices == (1, 3)
    assert "context bar of sip8" in repr(ctx)
    assert ctx.flight_record()["run"] == "bar"


def test_a_context_is_named_by_its_specification() -> None:
    assert RuntimeContext(RunSpec(bench="benches/ccl_allreduce.py")).correlation_id == (
        "ccl_allreduce"
    )


def test_the_machine_of_another_engine_is_refused() -> None:
    other = load_topology("h200x8").topology_obj.spec

    with pytest.raises(UsageError, match="got another machine"):
        RuntimeContext(engine=_engine(), spec=other)
    with pytest.raises(UsageError, match="there is no engine"):
        RuntimeContext(spec=other)


def test_devices_are_said_once() -> None:
    with pytest.raises(UsageError, match="the same devices in both"):
        RuntimeContext(RunSpec(devices=(0, 1)), target_device=DeviceSelector([2]))
    with pytest.raises(UsageError, match="expected a DeviceSelector, got list"):
        RuntimeContext(target_device=[0])  # type: ignore[arg-type]
    one = RuntimeContext(RunSpec(devices=(2,)), target_device=DeviceSelector(2))
    assert list(one.devices) == [2]


def test_a_ccl_file_of_the_working_directory_may_name_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ccl.yaml").write_text("""\
defaults:
  algorithm: mine
  buffer_kind: tcm
  backpressure: sleep
  n_slots: 4
  slot_size: 4096
  vc_chunk_size: 256
  ipcq_credit_size_bytes: 16
algorithms:
  mine:
    module: kernbench.ccl.algorithms.ring_allreduce
    topology: ring_1d
    buffer_kind: tcm
    n_elem: 8
""")
    monkeypatch.chdir(tmp_path)
    ctx = RuntimeContext(RunSpec())
    chosen: list[str] = []
    ctx.on_choice = chosen.append

    def worker(rank: int) -> None:
        ctx.distributed.init_process_group()
        x = ctx.full((1000,), float(rank))
        ctx.distributed.all_reduce(x)
        assert x[0].item() == 3

    ctx.multiprocessing.spawn(worker, nprocs=3)

    assert [line.split(": ")[1] for line in chosen] == ["mine"]
