"""What a run of ranks leaves behind in the process: nothing."""

import gc
from collections import Counter
from typing import Any

import pytest

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

_FIRST = 3
"""Runs after which all that is made once, such as caches, is there."""

_MORE = 20


def _trains(rank: int) -> None:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(rank)
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    for _ in range(2):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
    host = dist.new_group([0, 1], backend="gloo")
    dist.all_reduce(torch.ones(2), group=host)
    functional.all_reduce(torch.ones(2, device="cuda"), "sum", dist.group.WORLD)  # nobody waits
    if rank:
        dist.destroy_process_group()


def _there() -> Counter[str]:
    gc.collect()
    return Counter(str(type(each)) for each in gc.get_objects())


@pytest.mark.parametrize("data", [True, False])
def test_no_object_of_a_run_is_kept(data: Any) -> None:
    def run(times: int) -> Counter[str]:
        for _ in range(times):
            kernbench.torchrun_spawn(_trains, nprocs=2, data=data)
        return _there()

    run(_FIRST)
    before = _there()
    kept = {kind: count for kind, count in (run(_MORE) - before).items() if count >= _MORE}
    assert not kept
