"""Every collective, message and barrier of `torch.distributed`."""

import torch
import torch.distributed as dist

RANKS = 4


def _own(device, *shape):
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count).reshape(shape) * 0.5 + 10.0 * dist.get_rank() + 1).to(device)


def _empties(device, *shape):
    return [torch.zeros(shape, device=device) for _ in range(dist.get_world_size())]


def run_sync(device):
    x = _own(device, 3, 2)
    dist.all_reduce(x)
    y = _own(device, 5)
    dist.broadcast(y, src=2)
    z = _own(device, 4)
    dist.reduce(z, dst=1)
    z = z if dist.get_rank() == 1 else torch.zeros(4)
    whole = torch.zeros(4 * 3, device=device)
    dist.all_gather_into_tensor(whole, _own(device, 3))
    part = torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(part, _own(device, 8))
    strided = _own(device, 4, 6).t()
    dist.all_reduce(strided)
    return {
        "all_reduce": x,
        "broadcast": y,
        "reduce": z,
        "gathered": whole,
        "part": part,
        "strided": strided,
    }


def run_async(device):
    x, y, whole = _own(device, 300), _own(device, 7), torch.zeros(28, device=device)
    first = dist.all_reduce(x, async_op=True)
    second = dist.broadcast(y, src=3, async_op=True)
    second.wait()
    third = dist.all_gather_into_tensor(whole, y * dist.get_rank(), async_op=True)
    first.wait()
    doubled = x * 2
    third.wait()
    future = dist.all_reduce(y, async_op=True).get_future()
    future.wait()
    then = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] / 4).wait()
    return {"x": x, "y": y, "whole": whole, "doubled": doubled, "then": then}


def run_lists(device):
    rank = dist.get_rank()
    parts = _empties(device, 3)
    dist.all_gather(parts, _own(device, 3))
    uneven = [torch.zeros(i + 1, device=device) for i in range(4)]
    if device.type == "cpu":  # gloo gathers equal sizes only
        for i, one in enumerate(uneven):
            one.copy_(torch.arange(i + 1) + 10 * i)
    else:
        dist.all_gather(uneven, (torch.arange(rank + 1) + 10.0 * rank).to(device))
    out = torch.zeros(2, device=device)
    dist.reduce_scatter(out, [_own(device, 2) * (i + 1) for i in range(4)])
    got = _empties(device, 2)
    dist.all_to_all(got, [_own(device, 2) + 100 * i for i in range(4)])
    return {
        "parts": torch.cat(parts),
        "uneven": torch.cat(uneven),
        "scattered": out,
        "got": torch.cat(got),
    }


def run_all_to_all_single(device):
    rank = dist.get_rank()
    even = torch.zeros(8, device=device)
    dist.all_to_all_single(even, _own(device, 8))
    sends = [(rank + i) % 3 for i in range(4)]
    takes = [(rank + i) % 3 for i in range(4)]
    out = torch.zeros(sum(takes), 2, device=device)
    work = dist.all_to_all_single(out, _own(device, sum(sends), 2), takes, sends, async_op=True)
    work.wait()
    return {"even": even, "uneven": out}


def run_coalesced(device):
    x, y = _own(device, 4), _own(device, 2, 3)
    if device.type == "cpu":
        dist.all_reduce(x)
        dist.all_reduce(y)
    else:
        with dist.distributed_c10d._coalescing_manager(device=device):
            dist.all_reduce(x)
            dist.all_reduce(y)
    a, b = torch.zeros(16, device=device), torch.zeros(24, device=device)
    c, d = torch.zeros(1, device=device), torch.zeros(2, device=device)
    if device.type == "cpu":
        dist.all_gather_into_tensor(a, _own(device, 4))
        dist.all_gather_into_tensor(b, _own(device, 6))
        dist.reduce_scatter_tensor(c, _own(device, 4))
        dist.reduce_scatter_tensor(d, _own(device, 8))
    else:
        with dist.distributed_c10d._coalescing_manager(device=device, async_ops=True) as works:
            dist.all_gather_into_tensor(a, _own(device, 4))
            dist.all_gather_into_tensor(b, _own(device, 6))
        works.wait()
        with dist.distributed_c10d._coalescing_manager(device=device):
            dist.reduce_scatter_tensor(c, _own(device, 4))
            dist.reduce_scatter_tensor(d, _own(device, 8))
    return {"x": x, "y": y, "a": a, "b": b, "c": c, "d": d}


def run_objects(device):
    rank = dist.get_rank()
    everyone = [None] * 4
    dist.all_gather_object(everyone, {"rank": rank, "name": "r" * rank})
    shared = ["hello", 3, {"k": 4}] if rank == 1 else [None, None, None]
    dist.broadcast_object_list(shared, src=1)
    mine = [None]
    dist.scatter_object_list(mine, [i * 11 for i in range(4)] if rank == 0 else None, src=0)
    at_two = [None] * 4 if rank == 2 else None
    dist.gather_object((rank, "x"), at_two, dst=2)
    assert shared == ["hello", 3, {"k": 4}]
    assert at_two is None or at_two == [(i, "x") for i in range(4)]
    assert [len(one["name"]) for one in everyone] == [0, 1, 2, 3]
    if rank == 0:
        dist.send_object_list([{"to": 3}], dst=3)
    box = [None]
    if rank == 3:
        dist.recv_object_list(box, src=0)
        assert box == [{"to": 3}]
    return {"mine": torch.tensor(mine)}


def run_groups(device):
    rank = dist.get_rank()
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine = odd if rank % 2 else even
    x = _own(device, 3)
    dist.all_reduce(x, group=mine)
    half, halves = dist.new_subgroups(2)
    y = _own(device, 2)
    dist.broadcast(y, group_src=1, group=half)
    pair, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    z = torch.zeros(6, device=device)
    dist.all_gather_into_tensor(z, _own(device, 3), group=pair)
    local = dist.new_group(
        [rank, (rank + 2) % 4][:: 1 if rank < 2 else -1], use_local_synchronization=True
    )
    w = _own(device, 1)
    dist.all_reduce(w, group=local)
    assert len(halves) == 2
    assert dist.get_process_group_ranks(mine) == [rank % 2, rank % 2 + 2]
    assert dist.get_group_rank(mine, rank) == rank // 2
    return {"x": x, "y": y, "z": z, "w": w}


def run_point_to_point(device):
    rank = dist.get_rank()
    x, y = _own(device, 4), torch.zeros(4, device=device)
    if rank % 2 == 0:
        dist.send(x, rank + 1)
        dist.recv(y, rank + 1)
    else:
        dist.recv(y, rank - 1)
        dist.send(x, rank - 1)
    z = torch.zeros(2, 3, device=device)
    works = [
        dist.isend(_own(device, 2, 3), (rank + 1) % 4),
        dist.irecv(z, (rank - 1) % 4),
    ]
    for work in works:
        work.wait()
    return {"y": y, "z": z}


def run_any_source(device):
    rank = dist.get_rank()
    found = torch.zeros(4)
    if rank == 0:
        for _ in range(3):
            one = torch.zeros(2)
            sender = dist.recv(one)
            found[sender] = one.sum()
    else:
        dist.send(torch.full((2,), 5.0 + rank), 0)
    dist.barrier()
    return {"found": found}


def run_batches(device):
    rank = dist.get_rank()
    right, left = (rank + 1) % 4, (rank - 1) % 4
    a, b = torch.zeros(3, device=device), torch.zeros(3, device=device)
    mine = _own(device, 3)
    messages = [
        dist.P2POp(dist.isend, mine, right),
        dist.P2POp(dist.isend, mine * 2, left),
        dist.P2POp(dist.irecv, a, left),
        dist.P2POp(dist.irecv, b, right),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    itself = torch.zeros(3, device=device)
    if device.type == "cpu":  # gloo sends nothing to the rank itself
        itself.copy_(mine)
    else:
        loop = [dist.P2POp(dist.isend, mine, rank), dist.P2POp(dist.irecv, itself, rank)]
        for work in dist.batch_isend_irecv(loop):
            work.wait()
    return {"a": a, "b": b, "itself": itself}


def run_scatter_gather(device):
    rank = dist.get_rank()
    mine = torch.zeros(2, device=device)
    dist.scatter(mine, [_own(device, 2) * i for i in range(4)] if rank == 1 else None, src=1)
    all_here = _empties(device, 2) if rank == 3 else None
    dist.gather(mine + rank, all_here, dst=3)
    return {"mine": mine, "all": torch.cat(all_here) if all_here else torch.zeros(8)}


def run_reduce_ops(device):
    found = {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        x = _own(device, 3)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        found[name] = x
    for name in ("BAND", "BOR", "BXOR"):
        i = torch.tensor([dist.get_rank() + 4, 7 << dist.get_rank()])
        if device.type == "cuda":  # NCCL has no bitwise reductions
            dist.all_reduce(i, getattr(dist.ReduceOp, name))
        else:
            dist.all_reduce(i, getattr(dist.ReduceOp, name))
        found[name] = i
    x = _own(device, 3)
    if device.type == "cuda":
        dist.all_reduce(x, dist.ReduceOp.AVG)
    else:
        dist.all_reduce(x)
        x /= 4
    found["AVG"] = x
    return found


def run_barriers(device):
    dist.barrier()
    x = _own(device, 2)
    work = dist.barrier(async_op=True)
    work.wait()
    cpu = dist.new_group(backend="gloo")
    dist.monitored_barrier(cpu)
    dist.all_reduce(x)
    return {"x": x}


def run_dtypes(device):
    rank, found = dist.get_rank(), {}
    for dtype in (
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.int8,
        torch.complex64,
    ):
        x = (torch.arange(4) + rank).to(dtype).to(device)
        if dtype.is_complex:
            x = x * (1 + 2j)
        dist.all_reduce(x)
        y = (torch.arange(4) + rank).to(dtype).to(device)
        dist.broadcast(y, src=1)
        found[f"{dtype}_sum"], found[f"{dtype}_broadcast"] = x, y
    flags = torch.tensor([rank == 1, True, False, rank > 1])
    if device.type == "cpu":
        as_int = flags.int()
        dist.all_reduce(as_int, dist.ReduceOp.MAX)
        found["bool"] = as_int.bool()
    else:
        flags = flags.to(device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        found["bool"] = flags
    parts = [torch.zeros(2, dtype=torch.complex64, device=device) for _ in range(4)]
    dist.all_gather(parts, torch.full((2,), 1j * rank + 2, dtype=torch.complex64, device=device))
    found["complex_gather"] = torch.cat(parts)
    return found


def run_unequal_ranks(device):
    rank = dist.get_rank()
    x = _own(device, 16, 16) / 100
    for _ in range(rank * 3):  # some ranks come late
        x = torch.tanh(x @ x)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(x, group=groups[rank // 2])
    if rank == 2:
        x = x + float(x.sum()) * 0.001
    dist.all_reduce(x)
    return {"x": x}
