"""Modules of PyTorch are imported when a program does, in a rank, and their names replaced then."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402 - after the check that it is there

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]

STARTS = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

heavy = {
    "torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy", "triton",
}
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
given = torch.full((4,), rank + 1.0, device="cuda")
dist.all_reduce(given)
messages = [
    dist.P2POp(dist.isend, given, 1 - rank),
    dist.P2POp(dist.irecv, torch.empty_like(given), 1 - rank),
]
for work in dist.batch_isend_irecv(messages):
    work.wait()
objects = [None, None]
dist.all_gather_object(objects, rank)
assert messages[1].tensor.tolist() == [3.0] * 4 and objects == [0, 1]
assert not heavy & set(sys.modules), heavy & set(sys.modules)
dist.destroy_process_group()
print("nothing else was imported")
"""

IN_RANKS = """
import faulthandler
import importlib
import sys

import torch

from kernbench.bridge.base.private import PIPELINE_STARTS
from kernbench.bridge.running import bridged
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext

faulthandler.enable()
PLACES = [
    ("torch.distributed.tensor._dispatch", "run_dtensor_rng_op"),
    ("torch.distributed.tensor._random", "OffsetBasedRNGTracker.__init__"),
    ("torch.distributed.checkpoint", "async_save"),
    (PIPELINE_STARTS.module, PIPELINE_STARTS.name()),
]


def is_replaced(place):
    value = sys.modules[place[0]]
    for name in place[1].split("."):
        value = getattr(value, name)
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(sys.argv[1])


def step(rank):
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    for name in ("torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo"):
        importlib.import_module(name)
    for module, _ in PLACES:
        importlib.import_module(module)
    assert all(map(is_replaced, PLACES)), [*map(is_replaced, PLACES)]
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cuda", (2,))
    given = distribute_tensor(torch.ones(4, device="cuda"), mesh, [Shard(0)])
    for _ in range(3):  # a second time, C++ asks for the logger of the thread
        given = given + given
    assert given.full_tensor().tolist() == [8.0] * 4
    dist.destroy_process_group()


assert not {module for module, _ in PLACES} & set(sys.modules)
spec = RunSpec(topology="h200x8", pytorch=PytorchRun(), watchdog_s=600.0)
with RuntimeContext(spec, quiet=True), bridged(data=True) as run:
    for _ in range(3):
        run.run(step, (), 2)  # its threads end
assert not any(map(is_replaced, PLACES)), [*map(is_replaced, PLACES)]
print("all ended")
"""


def said(*command: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_finds_nothing_imported_that_it_does_not_ask_for(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(STARTS)
    found = said("-m", "kernbench", "torchrun", "--nproc-per-node", "2", str(script))
    assert found.count("nothing else was imported") == 2


def test_what_ranks_import_first_is_replaced_and_ends_with_their_threads(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(IN_RANKS)
    assert said(str(script), str(ROOT / "kernbench")) == "all ended\n"


def test_this_pytorch_has_every_private_name() -> None:
    from kernbench.bridge.base.private import check_private_names

    check_private_names()


def test_a_module_that_lacks_a_private_name_is_refused_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernbench.bridge.base.private import check_private_names

    module: Any = ModuleType("torch.distributed.tensor._random")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(UsageError, match=r"_random\.OffsetBasedRNGTracker\._distribute_region"):
        check_private_names([module.__name__])
    module.OffsetBasedRNGTracker = SimpleNamespace(_distribute_region=None)
    check_private_names([module.__name__])


def test_what_ranks_leave_in_open_files_is_written_at_the_end(tmp_path: Path) -> None:
    opened = 'file = open(f"{__file__}.{rank}", "w")\n'
    (tmp_path / "neighbour.py").write_text(f'import os\nrank = os.environ["RANK"]\n{opened}')
    script = tmp_path / "program.py"
    script.write_text(
        f"import torch\nfrom neighbour import file as other, rank\n{opened}"
        'def write():\n    file.write("mine")\n    other.write("other")\nwrite()\n'
    )
    said("-m", "kernbench", "torchrun", "--nproc-per-node", "2", str(script))
    left = {path.name: path.read_text() for path in tmp_path.glob("*.py.*")}
    contents = {"program.py": "mine", "neighbour.py": "other"}
    assert left == {f"{name}.{rank}": contents[name] for name in contents for rank in range(2)}
