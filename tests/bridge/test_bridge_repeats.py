"""A thousand spawns of PyTorch's ranks in one interpreter: no crash, and nothing is left over."""

import gc
import logging
import resource
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.at_length,
    pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning"),
]

SPAWNS = 1000
PER_CONTEXT = 20
GROWTH_KIB = 64 * 1024
"""What the process may grow by after the first spawns: the allocator's noise."""


def step(rank: int, kind: int, sums: list[float]) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2 + kind % 3, init_method="env://")
    torch.manual_seed(0)
    given = torch.ones(2, 4, device="cuda")
    if kind % 4 == 3:
        total = torch.ones(8, device="cuda") * (rank + 1)
        dist.all_reduce(total)
        parts = torch.empty(8 * dist.get_world_size(), device="cuda")
        dist.all_gather_into_tensor(parts, total)
        objects: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(objects, {"rank": rank})
        assert [each["rank"] for each in objects] == list(range(len(objects)))
        sums.append(parts.sum().item())
    else:
        net = torch.nn.Linear(4, 4, device="cuda")
        model: Any = fully_shard(net) if kind % 4 == 1 else DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        sums.append(loss.item())
    dist.destroy_process_group()


def resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.INFO)  # pytest would keep every line that PyTorch logs
    yield
    logging.disable(logging.NOTSET)


def test_a_thousand_spawns_leave_nothing_behind_and_give_the_same() -> None:
    from kernbench.bridge.running import bridged
    from kernbench.bridge.tensors.storages import STORAGES

    spec = RunSpec(topology="h200x8", pytorch=PytorchRun(), watchdog_s=60.0)
    seen: dict[int, list[float]] = {}
    threads = after_warm_up = 0
    for begun in range(0, SPAWNS, PER_CONTEXT):
        with RuntimeContext(spec, quiet=True), bridged(data=True) as run:
            for number in range(begun, begun + PER_CONTEXT):
                kind = number % 12
                sums: list[float] = []
                run.run(step, (kind, sums), 2 + kind % 3)
                assert seen.setdefault(kind, sums) == sums
        assert not STORAGES
        gc.collect()
        if begun == 5 * PER_CONTEXT:
            threads, after_warm_up = threading.active_count(), resident_kib()
    assert threading.active_count() <= threads
    assert resident_kib() - after_warm_up < GROWTH_KIB
