"""What gloo has, collective by reduction by type, is what PyTorch's own gloo has."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

CALLS = Path(__file__).with_name("backend_calls.py")


@pytest.fixture(scope="module")
def of_gloo(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What PyTorch's own gloo gives, by rank: the calls, and the parameters of FSDP2."""
    folder = tmp_path_factory.mktemp("gloo")
    subprocess.run([sys.executable, CALLS, folder], check=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def _simulated(rank: int, folder: str, name: str) -> Any:
    import torch.distributed as dist

    sys.path.insert(0, folder)
    import backend_calls

    dist.init_process_group("gloo")
    found = getattr(backend_calls, name)()
    dist.destroy_process_group()
    return found


KINDS = ("ReductionError", "CollectiveArgumentError", "UnsupportedError", "ValueError", "TypeError")


def test_each_collective_reduction_and_type_is_as_with_pytorchs_gloo(of_gloo: list[Any]) -> None:
    from kernbench.bridge.tensors.storages import DTYPES

    simulated = {str(dtype).removeprefix("torch.") for dtype in DTYPES}
    ran = kernbench.torchrun_spawn(_simulated, nprocs=2, args=(str(CALLS.parent), "calls"))
    for ours, (theirs, _) in zip(ran.returned, of_gloo, strict=True):
        assert ours.keys() == theirs.keys()
        for call, told in ours.items():
            if told.startswith("refused"):
                assert told.split(": ")[1] in KINDS, (call, told)
                refused = theirs[call].startswith("refused")
                assert refused or call.rpartition("/")[2] not in simulated, (call, told)
            else:
                assert told == theirs[call], call


def test_fsdp2_on_a_mesh_of_hosts(of_gloo: list[Any]) -> None:
    ran = kernbench.torchrun_spawn(_simulated, nprocs=2, args=(str(CALLS.parent), "fully_sharded"))
    for ours, (_, theirs) in zip(ran.returned, of_gloo, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(its, rel=1e-4, abs=1e-6)
