"""Copies: values, types, who waits for what, how long they take, whose devices they touch."""

import copy
import pickle
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.errors import UnsupportedError
from kernbench.memory import UninitialisedReadError, dtypes
from kernbench.process.access import AccessError, OwnershipError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.engine import GraphEngine

PLACES: Final = [
    ("cpu", "cpu"),
    ("cpu", "cuda"),
    ("cuda", "cpu"),
    ("cuda", "cuda"),
    ("cuda:1", "cuda:2"),
]
PCIE_PS_PER_BYTE: Final = 20
LATENCY_PS: Final = 2_000_000
DISPATCH_PS: Final = 2_000_000


@pytest.mark.parametrize(("source", "target"), PLACES)
def test_copies_broadcast_and_convert(ctx: RuntimeContext, source: str, target: str) -> None:
    src = torch.tensor([1.75, -2.0, 300.0], device=source)
    out = torch.empty(2, 3, dtype=torch.int16, device=target)
    assert out.copy_(src) is out
    assert out.tolist() == [[1, -2, 300]] * 2
    out.T[1:].copy_(torch.tensor([[7], [8]], device=source))
    assert out.tolist() == [[1, 7, 8], [1, 7, 8]]
    moved = src.to(target, torch.bfloat16)
    assert (moved.dtype, moved.device.type) == (torch.bfloat16, target.split(":", maxsplit=1)[0])
    assert moved.tolist() == [1.75, -2.0, 300.0]
    assert src.T.to(target, copy=True).untyped_storage() is not src.untyped_storage()
    with pytest.raises(RuntimeError, match=r"The shape \[3\] cannot be broadcast to \[2\]"):
        out[:, 0].copy_(src)
    with pytest.raises(RuntimeError, match=r"The shape \[1, 2, 3\] cannot be broadcast"):
        out.copy_(torch.ones(1, 2, 3, device=source))


def test_conversions(device: str) -> None:
    x = torch.tensor([0.0, 1.5, -2.5], device=device)
    for method, dtype in {
        "double": dtypes.float64,
        "half": dtypes.float16,
        "bfloat16": dtypes.bfloat16,
        "long": dtypes.int64,
        "int": dtypes.int32,
        "short": dtypes.int16,
        "char": dtypes.int8,
        "bool": dtypes.bool_,
    }.items():
        found = getattr(x, method)()
        assert found.dtype is dtype
        expected = x.numpy().astype(dtype.numpy)
        np.testing.assert_array_equal(found.numpy(), expected)
    assert x.float() is x
    assert x.to(x.dtype) is x.to(device) is x.contiguous() is x
    assert x.abs().byte().dtype is torch.uint8
    assert x.type(torch.int64).dtype is x.type_as(x.long()).dtype is torch.int64
    assert x.to(x.long()).dtype is torch.int64
    assert x.to(device, torch.float32, False, True) is not x
    with pytest.raises(TypeError, match=r"must be Tensor or int or bool or str or torch\.device"):
        x.to(1.5)  # type: ignore[arg-type]


def test_clones_are_apart_and_keep_the_layout(device: str) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    y, z = x.T.clone(), x.T.contiguous()
    assert (y.stride(), z.stride()) == ((1, 3), (2, 1))
    x.zero_()
    assert y.tolist() == z.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copy.deepcopy(y).tolist() == y.tolist()
    copy.copy(y).zero_()
    assert y.sum().item() == 0
    with pytest.raises(UnsupportedError, match="tensors cannot be pickled"):
        pickle.dumps(y)


def test_pageable_memory_is_taken_at_the_call_and_the_host_waits(ctx: RuntimeContext) -> None:
    host = ctx.main.host
    values = np.zeros(1000, np.float32)
    x = torch.from_numpy(values).cuda()
    assert host.clock == DISPATCH_PS + 4000 * PCIE_PS_PER_BYTE + LATENCY_PS
    values[:] = 1
    assert x.sum().item() == 0


def test_pinned_memory_is_read_when_the_copy_executes(ctx: RuntimeContext) -> None:
    torch.cuda.Stream()  # from now on commands run when the loop does
    pinned = torch.zeros(1000, pin_memory=True)
    assert pinned.is_pinned()
    x = pinned.cuda(non_blocking=True)
    assert ctx.main.host.clock == DISPATCH_PS, "the host ran on"
    pinned.numpy()[0] = 5  # behind the back of the tracking: the copy sees it
    with pytest.raises(AccessError) as caught:
        pinned.fill_(1)
    lines = str(caught.value).splitlines()
    assert lines[0] == ("[C14] main wrote a tensor before Memcpy HtoD on it was waited for")
    assert lines[1].endswith("pinned.fill_(1)")
    assert lines[2].startswith("  Memcpy HtoD was issued at ")
    assert lines[2].endswith("x = pinned.cuda(non_blocking=True)")
    assert lines[3:] == [
        "  Memcpy HtoD runs on the default stream",
        "  tensor [1000] torch.float32, bytes 0..4000 of 4000: write after read",
        "  hint: let the host wait first: synchronize() of the device, the stream, or an event",
    ]
    torch.cuda.synchronize()
    pinned.fill_(1)
    assert x.sum().item() == 5


def test_other_parts_of_a_staging_buffer_may_be_written_meanwhile(ctx: RuntimeContext) -> None:
    staging = torch.zeros(2, 8, pin_memory=True)
    out = torch.empty(2, 8, device="cuda")
    for piece in range(2):
        staging[piece].fill_(piece + 1)
        out[piece].copy_(staging[piece], non_blocking=True)
    columns = torch.zeros(4, 2, pin_memory=True)
    held = columns[:, 0].cuda(non_blocking=True)
    columns[:, 1].fill_(3)  # interleaved, yet apart
    with pytest.raises(AccessError, match="C14"):
        columns[2:].fill_(0)
    assert out.sum(1).tolist() == [8, 16]
    assert held.sum().item() == 0


def test_pinned_memory_is_not_read_before_a_copy_into_it_is_waited_for(
    ctx: RuntimeContext,
) -> None:
    x = torch.ones(4, device="cuda")
    host = x.to("cpu", non_blocking=True)
    assert host.is_pinned()
    with pytest.raises(AccessError, match="C15") as caught:
        host.tolist()
    assert "main read a tensor before Memcpy DtoH on it was waited for" in str(caught.value)
    with pytest.raises(AccessError, match="C15"):
        _ = host + 1
    with pytest.raises(AccessError, match="C14"):
        host.zero_()
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [1] * 4
    pageable = torch.zeros(4)
    pageable.copy_(x, non_blocking=True)  # the host waits: only pinned memory can be written later
    assert pageable.tolist() == [1] * 4


def test_pinning(ctx: RuntimeContext) -> None:
    x = torch.arange(3.0)
    assert not x.is_pinned()
    assert x.pin_memory().is_pinned()
    assert x.pin_memory().tolist() == [0, 1, 2]
    pinned = torch.zeros(1, pin_memory=True)
    assert pinned.pin_memory() is pinned
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()


def test_copying_to_the_host_waits_for_its_source_alone(
    ctx_without_data: RuntimeContext,
) -> None:
    host = ctx_without_data.main.host
    x = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy = torch.ones(1 << 26, device="cuda")
        for _ in range(20):
            busy = busy + busy
    x.cpu()
    behind = host.clock
    side.synchronize()
    assert host.clock > behind + 1_000_000


def test_between_devices_over_the_links(ctx: RuntimeContext) -> None:
    n = 1 << 20
    x = torch.arange(n, dtype=torch.float32, device="cuda:0")
    torch.cuda.synchronize(0)
    begin = ctx.main.host.clock
    y = x.to("cuda:4")
    x.zero_()  # behind the copy, in the same stream
    z = y + 1  # on cuda:4, behind it too
    torch.cuda.synchronize(4)
    # 4 MiB at 50 GB/s are 83.9 us; four hops of 100 ns; two dispatches; a kernel.
    took_us = (ctx.main.host.clock - begin) / 1e6
    assert 84 < took_us < 105
    assert z[-1].item() == n
    assert x[-1].item() == 0
    near = x.to("cuda:1")
    begin = ctx.main.host.clock
    torch.cuda.synchronize(1)
    assert (ctx.main.host.clock - begin) / 1e6 < took_us
    assert near.device.index == 1


def test_between_devices_without_time(topology: Any) -> None:
    engine = GraphEngine(topology("sip8"), fidelity="functional")
    with RuntimeContext(engine=engine) as ctx:
        x = torch.ones(3, device="cuda:0").to("cuda:3")
        assert x.tolist() == [1, 1, 1]
        assert ctx.main.host.clock == 0


def test_a_rank_uses_its_own_device(ctx: RuntimeContext) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(2)
        if rank == 1:
            x.to("cuda:0")

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    error = caught.value.errors[1]
    assert isinstance(error, OwnershipError)
    lines = str(error).splitlines()
    assert lines[0] == "[M14] rank 1 used cuda:0, the device of rank 0"
    assert lines[1].endswith('x.to("cuda:0")')
    assert lines[2:] == [
        "  rank 1 has cuda:1",
        "  hint: use cuda:1: torch.cuda.set_device(LOCAL_RANK), then device='cuda'; ranks exchange "
        "data through torch.distributed, and a model over several devices needs a rank for each",
    ]


def test_a_rank_uses_its_own_tensors(ctx: RuntimeContext) -> None:
    kept: list[torch.Tensor] = []

    def worker(rank: int) -> None:
        if rank == 0:
            kept.append(torch.ones(2))
        else:
            ctx.main.engine  # noqa: B018 - another rank's turn
            _ = kept[0] + 1

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    lines = str(caught.value.errors[1]).splitlines()
    assert lines[0] == "[M14] rank 1 used a tensor of rank 0"
    assert lines[1].endswith("_ = kept[0] + 1")
    assert lines[2] == "  tensor [2] torch.float32 on cuda:0"
    assert lines[3].startswith("  allocated at ")
    assert lines[3].endswith("kept.append(torch.ones(2))")
    hint = "a rank uses its own device; ranks exchange data through torch.distributed"
    assert lines[4] == f"  hint: {hint}"


def test_streams_that_are_not_ordered_race(ctx: RuntimeContext) -> None:
    x = torch.ones(8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    with pytest.raises(AccessError) as caught:
        _ = y + 1
    assert "[M10] main read a tensor before aten::add on it was waited for" in str(caught.value)
    torch.cuda.current_stream().wait_stream(side)
    assert (y + 1).tolist() == [3] * 8


def test_a_write_must_wait_for_readers_of_other_streams(ctx: RuntimeContext) -> None:
    x = torch.ones(8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = x[:4] + 1
    x[4:].zero_()  # nobody reads this part
    with pytest.raises(AccessError, match=r"\[M10\] main wrote a tensor before aten::add"):
        x.zero_()
    torch.cuda.synchronize()
    x.zero_()


def test_copies_of_unwritten_memory(ctx: RuntimeContext) -> None:
    x = torch.empty(3, device="cuda")
    with pytest.raises(UninitialisedReadError) as caught:
        x.cpu()
    lines = str(caught.value).splitlines()
    assert lines[0] == "[M5] 3 of 3 elements of tensor [3] torch.float32 were never written"
    assert lines[1] == "  first unwritten element 0, last 2 (of the tensor as read, shape (3,))"
    assert lines[2].startswith("  allocated at ")
    assert lines[2].endswith('x = torch.empty(3, device="cuda")')
    assert lines[3] == "  nothing was issued that writes to it"
    assert lines[4].startswith("  read by the host at ")
    assert lines[5] == (
        "  hint: write them first, or make the tensor with zeros() instead of empty()"
    )
    assert torch.zeros(1, device="cuda").item() == 0, "the stream goes on"
    with pytest.raises(UninitialisedReadError):
        torch.empty(3).cuda()


def test_without_data(ctx_without_data: RuntimeContext) -> None:
    x = torch.zeros(4, 4)
    y = x.cuda().half().to("cuda:1").cpu()
    assert (y.dtype, y.device.type, y.shape) == (torch.float16, "cpu", (4, 4))
    assert x.pin_memory().to("cuda", non_blocking=True).T.clone().stride() == (1, 4)
    x.copy_(x.cuda())
    assert ctx_without_data.main.host.clock > 0
