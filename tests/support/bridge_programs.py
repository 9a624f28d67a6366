"""Programs of `tests/bridge/programs`: which there are, and their runs on simulated devices."""

import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

BRIDGE = Path(__file__).parents[1] / "bridge"
RESULTS = BRIDGE / "results"


class Program(NamedTuple):
    """A function of a file of programs.

    Attributes:
        file: Name of the file, without suffix.
        name: Name of the function, without `run_`.
    """

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"


def programs() -> list[Program]:
    """Returns all programs, without importing them: they import torch."""
    return [
        Program(path.stem, name)
        for path in sorted((BRIDGE / "programs").glob("*.py"))
        for name in re.findall(r"^def run_(\w+)", path.read_text(), re.MULTILINE)
    ]


@cache
def load(file: str) -> ModuleType:
    """Imports a file of programs."""
    spec = importlib.util.spec_from_file_location(
        f"bridge_programs_{file}", BRIDGE / "programs" / f"{file}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_arrays(values: dict[str, Any]) -> dict[str, Any]:
    """Returns tensors as arrays of NumPy; those of 16 bits as float32."""
    found = {}
    for name, value in values.items():
        host = value.detach().cpu()
        found[name] = (host.float() if host.dtype.itemsize == 2 else host).numpy().copy()
    return found


class Ran(NamedTuple):
    """What a run on simulated devices gave.

    Attributes:
        results: Arrays by `RANK/NAME`.
        time_ps: Simulated time at the end.
        late: Number of events that came late.
    """

    results: dict[str, Any]
    time_ps: int
    late: int


def run_simulated(program: Program) -> Ran:
    """Runs a program on simulated devices, in this process."""
    import torch
    import torch.distributed as dist

    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    module, results = load(program.file), {}

    def worker(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=module.RANKS)
        torch.cuda.set_device(rank)
        found = getattr(module, f"run_{program.name}")(torch.device("cuda", rank))
        for name, value in as_arrays(found).items():
            results[f"{rank}/{name}"] = value
        dist.destroy_process_group()

    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "1")
    engine = GraphEngine(
        load_topology("h200x8").topology_obj, enable_data=False, moves_at_call=True
    )
    with RuntimeContext(engine=engine, quiet=True), bridged(data=True):
        torch.multiprocessing.spawn(worker, nprocs=module.RANKS)
    return Ran(dict(sorted(results.items())), engine.loop.now, engine.loop.late_calls)
