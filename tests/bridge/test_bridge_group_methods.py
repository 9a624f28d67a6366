"""Methods of `ProcessGroup`, called as PyTorch's own signatures have it."""

import inspect
import re
from typing import Any

import pytest
from bridge_devices import on_ranks

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
