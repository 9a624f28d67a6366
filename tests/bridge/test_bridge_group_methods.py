"""Methods of `ProcessGroup`, called as PyTorch's own signatures have it."""

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.errors import KernbenchError, UnsupportedError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


def test_every_method_takes_the_names_of_pytorch() -> None:
    from kernbench.bridge.distributed.process_group import SimProcessGroup

    checked = 0
    for name, method in vars(SimProcessGroup).items():
        said = getattr(getattr(dist.ProcessGroup, name, None), "__doc__", None) or ""
        first = re.search(rf"{name}\(self: [^,)]*(.*)\) ->", said)
        if name.startswith("_") or not callable(method) or first is None:
            continue
        wanted = [each for each in re.findall(r"(\w+): ", first.group(1)) if "arg" not in each]
        got = list(inspect.signature(method).parameters)[1:]
        assert got[: len(wanted)] == wanted, name
        checked += 1
    assert checked > 20


def test_methods_take_options_by_name_and_short_forms() -> None:
    def worker(rank: int) -> list[Any]:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        group, found = dist.group.WORLD, []
        x = torch.full((2,), float(rank + 1), device="cuda")
        group.allreduce([x], opts=dist.AllreduceOptions()).wait()
        found.append(x.tolist())
        group.allreduce(x, dist.ReduceOp.MAX).wait()
        group.allreduce(x, op=dist.ReduceOp.SUM).wait()
        found.append(x.tolist())
        y = torch.full((1,), float(rank), device="cuda")
        group.broadcast(y, 1).wait()
        found.append(y.tolist())
        z = torch.full((1,), float(rank), device="cuda")
        group.broadcast(tensors=[z], opts=dist.BroadcastOptions()).wait()
        found.append(z.tolist())
        out = [torch.zeros(1, device="cuda") for _ in range(2)]
        mine = torch.full((1,), float(rank), device="cuda")
        group.gather(output_tensors=[out] if rank else [], input_tensors=[mine], opts=_of(1)).wait()
        found.append([each.item() for each in out] if rank else [0.0, 1.0])
        group.scatter(
            output_tensors=[mine], input_tensors=[out] if rank else [], opts=_at(1)
        ).wait()
        found.append(mine.tolist())
        group.reduce(x, 0, dist.ReduceOp.SUM).wait()
        group.barrier(opts=dist.BarrierOptions()).wait()
        if rank:
            group.recv(tensors=[x], srcRank=0, tag=0).wait()
        else:
            group.send(tensors=[x], dstRank=1, tag=0).wait()
        found.append(x.tolist())
        return found

    first, second = on_ranks(worker, 2)
    assert first == [[3.0] * 2, [6.0] * 2, [1.0], [0.0], [0.0, 1.0], [0.0], [12.0] * 2]
    assert second == [*first[:5], [1.0], [12.0] * 2]


def _of(root: int) -> Any:
    options = dist.GatherOptions()
    options.rootRank = root
    return options


def _at(root: int) -> Any:
    options = dist.ScatterOptions()
    options.rootRank = root
    return options


def test_a_sum_of_multiples_has_its_factor() -> None:
    def worker(rank: int) -> list[Any]:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        x = torch.full((2,), float(rank + 1), device="cuda")
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        part = torch.zeros(1, device="cuda")
        factor = torch.tensor([4.0], device="cuda")
        dist.reduce_scatter_single(part, x, dist._make_nccl_premul_sum(factor))
        with pytest.raises(KernbenchError, match="needs a factor"):
            dist.group.WORLD.allreduce([x], dist.ReduceOp.PREMUL_SUM)
        return [x.tolist(), part.tolist()]

    assert on_ranks(worker, 2) == [[[1.5, 1.5], [12.0]]] * 2


def test_a_sum_of_multiples_needs_no_numbers() -> None:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, dist._make_nccl_premul_sum(torch.tensor([4.0], device="cuda")))
        return tuple(x.shape)

    assert on_ranks(worker, 2, data=False) == [(2,), (2,)]


@pytest.mark.filterwarnings("error")
def test_a_timeout_may_be_set() -> None:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        return None

    on_ranks(worker, 2)


def test_a_group_is_split_into_parts() -> None:
    def worker(rank: int) -> list[Any]:
        torch.cuda.set_device(rank)
        address = {"world_size": 4, "init_method": "tcp://x:1", "rank": rank}
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **address)
        part = dist.split_group(split_ranks=[[0, 2], [3]])
        if part is None:
            return []
        x = torch.full((1,), float(rank), device="cuda")
        dist.all_reduce(x, group=part)
        again = dist.split_group(part, [[0]]) if rank != 3 else None
        found = [x.item(), dist.get_process_group_ranks(part), again is None]
        dist.destroy_process_group()
        return found

    both = [0, 2]
    assert on_ranks(worker, 4) == [[2.0, both, False], [], [2.0, both, True], [3.0, [3], True]]


def test_a_group_that_cannot_be_split_is_refused_as_by_pytorch() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        address = {"world_size": 2, "init_method": "tcp://x:1", "rank": rank}
        dist.init_process_group("nccl", **address)
        with pytest.raises(RuntimeError, match="No device associated"):
            dist.split_group(split_ranks=[[0], [1]])
        dist.destroy_process_group()
        dist.init_process_group("gloo", device_id=torch.device("cuda", rank), **address)
        with pytest.raises(RuntimeError, match="does not support splitting"):
            dist.split_group(split_ranks=[[0], [1]])

    on_ranks(worker, 2)


def test_mixed_precision_of_ddp_is_refused_by_name() -> None:
    from torch.nn.parallel.distributed import DistributedDataParallel, _MixedPrecision

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=1, init_method="tcp://x:1")
        precision = _MixedPrecision(param_dtype=torch.bfloat16)
        with pytest.raises(UnsupportedError, match="mixed_precision"):
            DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), mixed_precision=precision)

    on_ranks(worker, 1)
