"""`torch.distributed.rpc` begins and ends; what calls another rank by it is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

import kernbench
from kernbench.errors import UnsupportedError
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _run(function: Callable[..., Any], ranks: int = 2) -> list[Any]:
    return kernbench.torchrun_spawn(function, nprocs=ranks, data=False).returned


def begins_and_ends(rank: int) -> Any:
    import torch.distributed as dist
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://localhost:29501")
    found = []
    for turn in range(2):
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            rpc.get_worker_info()
        name = f"worker{rank}:{turn}"
        rpc.init_rpc(name, rpc.BackendType.TENSORPIPE, rank, 2, options if turn else None)
        with pytest.raises(RuntimeError, match="already initialized"):
            rpc.init_rpc(name, rank=rank, world_size=2)
        mine, other = rpc.get_worker_info(), rpc.get_worker_info(f"worker{1 - rank}:{turn}")
        found.append([(each.name, each.id) for each in (mine, other)])
        if not turn:
            dist.init_process_group("gloo")
        x = torch.ones(2)
        dist.all_reduce(x)
        found.append(x.tolist())
        rpc.shutdown()
    return found


def test_it_begins_and_ends_beside_groups() -> None:
    for rank, found in enumerate(_run(begins_and_ends)):
        names = [[(f"worker{each}:{turn}", each) for each in (rank, 1 - rank)] for turn in range(2)]
        assert found == [names[0], [2, 2], names[1], [2, 2]]


def calls(rank: int) -> None:
    from torch.distributed import rpc

    def annotated(reference: "rpc.RRef[int]") -> rpc.RRef[int]:
        return reference

    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    assert not isinstance(annotated, rpc.RRef)
    for name in ("rpc_sync", "rpc_async", "remote"):
        for owner in (rpc, rpc.api):
            with pytest.raises(UnsupportedError, match=f"torch.distributed.rpc.{name} is not"):
                getattr(owner, name)("worker0", torch.add, args=(1, 2))
    with pytest.raises(UnsupportedError, match=r"rpc\.RRef is not simulated"):
        rpc.RRef(1)
    rpc.shutdown(graceful=False)


def test_what_calls_another_rank_is_refused_by_name() -> None:
    _run(calls)


def one_does_not_come(rank: int) -> None:
    from torch.distributed import rpc

    if rank:
        rpc.init_rpc("worker", rank=rank, world_size=2)


def one_name(rank: int) -> None:
    from torch.distributed import rpc

    rpc.init_rpc("worker", rank=rank, world_size=2)


def bad_name(rank: int) -> None:
    from torch.distributed import rpc

    rpc.init_rpc(f"worker {rank}", rank=rank, world_size=2)


def some_ranks(rank: int) -> None:
    from torch.distributed import rpc

    rpc.init_rpc("worker", rank=0, world_size=1)


@pytest.mark.parametrize(
    ("worker", "text"),
    [
        (one_does_not_come, "waits for 'rpc_prefix_0/name/0' in a store"),
        (one_name, "RPC worker name worker is not unique"),
        (bad_name, "Worker name must match"),
        (some_ranks, "init_rpc.world_size=1. in a run of 2 ranks is not simulated"),
    ],
)
def test_mistakes(worker: Callable[[int], None], text: str) -> None:
    with pytest.raises(SpawnException, match=text):
        _run(worker)
