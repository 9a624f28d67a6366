"""Streams, events and the host that runs ahead."""

from itertools import pairwise
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.errors import KernbenchError, NoDataError, UnsupportedError
from kernbench.process.access import AccessError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench


def test_the_host_runs_ahead_and_a_read_waits(kernbench: Kernbench) -> None:
    ctx = kernbench.context("h200x8")
    with ctx:
        host = ctx.main.host
        x = torch.ones((2048, 2048), device="cuda", dtype=torch.bfloat16)
        before = host.clock
        y = x @ x
        assert host.clock == before + ctx.main.dispatches["recorded"]
        assert y[0, 0].item() == 2048
        assert host.clock > before + 20 * 10**6


def test_a_full_launch_queue_blocks_the_host(kernbench: Kernbench) -> None:
    ctx = kernbench.context(overrides=["system.host.launch_queue=2"], data=False)
    with ctx:
        x = torch.ones((1 << 24,), device="cuda")
        for _ in range(8):
            x = x + 1
        assert ctx.main.host.waited > 0


def test_events_time_what_lies_between_them(kernbench: Kernbench) -> None:
    with kernbench.context("h200x8", data=False):
        x = torch.ones((8192, 8192), dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        x @ x
        end.record()
        assert not end.query()
        end.synchronize()
        assert end.query()
        # Measured on an H200: 1.400 ms.
        assert start.elapsed_time(end) == pytest.approx(1.400, rel=0.1)


@pytest.mark.parametrize("event_us", [0, 5])
def test_a_pair_of_events_reads_what_recording_one_takes(
    kernbench: Kernbench, event_us: int
) -> None:
    with kernbench.context("h200x8", data=False, overrides=[f"system.sip.event={event_us} us"]):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.Event().record()  # orders streams, and takes nothing
        for event in (start, end):
            event.record()
        torch.cuda.synchronize()
        # The host takes longer to issue the second than the device to record the first.
        assert start.elapsed_time(end) == pytest.approx(0.0057)
        x = torch.ones((8192, 8192), device="cuda")
        torch.cuda.synchronize()
        for _ in range(8):
            x @ x
        start.record()
        torch.cuda.Event().record()
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) == pytest.approx(event_us / 1000)


def test_events_without_timing_and_unrecorded_ones_are_refused(kernbench: Kernbench) -> None:
    with kernbench.context():
        plain, timed = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
        with pytest.raises(KernbenchError, match="enable_timing=True"):
            plain.elapsed_time(timed)
        with pytest.raises(KernbenchError, match="have been recorded"):
            timed.elapsed_time(timed)
        with pytest.raises(UnsupportedError, match="priorities"):
            torch.cuda.Stream(priority=-1)


def test_streams_of_a_device_overlap_only_where_engines_allow(kernbench: Kernbench) -> None:
    """Two kernels on two streams take turns; a copy beside a kernel does not wait for it."""
    with kernbench.context(record="full") as ctx:
        side = torch.cuda.Stream()
        x = torch.ones((1 << 22,), device="cuda")
        torch.cuda.synchronize()
        x + 1
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            y = torch.ones((1 << 22,), device="cuda")
        y2 = x * 2
        torch.cuda.current_stream().wait_stream(side)
        (y + y2).numpy()
        spans = sorted(
            (record.start, record.end)
            for record in ctx.engine.op_log.records
            if record.category == "compute"
        )
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_using_a_tensor_of_another_stream_without_order_is_a_race(kernbench: Kernbench) -> None:
    with kernbench.context():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = torch.ones(4, device="cuda")
        with pytest.raises(AccessError, match="was waited for") as caught:
            x + 1
        assert caught.value.code == "M10"
        torch.cuda.current_stream().wait_stream(side)
        assert (x + 1).tolist() == [2.0] * 4


def test_the_same_program_takes_the_same_time_without_data(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        x = torch.ones((256, 256), device="cuda")
        for _ in range(rank + 1):
            x = x @ x
        torch.distributed.all_reduce(x)
        torch.cuda.synchronize()

    on = kernbench.spawn(worker, nprocs=4)
    off = kernbench.spawn(worker, nprocs=4, data=False)
    assert on.engine.loop.now == off.engine.loop.now > 0


def test_reads_without_data_name_the_dial(kernbench: Kernbench) -> None:
    with kernbench.context(data=False):
        x = torch.ones(4, device="cuda")
        with pytest.raises(NoDataError, match="data is off"):
            x.numpy()


def test_functional_fidelity_takes_no_time(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        x = torch.full((5,), float(rank), device="cuda")
        torch.distributed.all_reduce(x)
        assert x.tolist() == [3.0] * 5

    ctx = kernbench.spawn(worker, nprocs=3, fidelity="functional")
    assert ctx.engine.loop.now == 0


def test_device_names_and_memory(kernbench: Kernbench) -> None:
    with kernbench.context("h200x8") as ctx:
        assert torch.cuda.device_count() == 8
        assert torch.cuda.get_device_properties(3).multi_processor_count == 132
        free, total = torch.cuda.mem_get_info("cuda:1")
        x = torch.zeros(1 << 20, device="cuda:1")
        assert torch.cuda.memory_allocated(1) == 4 << 20
        assert torch.cuda.mem_get_info(1) == (free - (4 << 20), total)
        del x
        assert torch.cuda.memory_allocated(1) == 0
        assert torch.cuda.max_memory_allocated(1) == 4 << 20
        torch.cuda.set_device("cuda:2")
        assert torch.cuda.current_device() == 2
        assert str(torch.zeros(1, device="cuda").device) == "cuda:2"
        with pytest.raises(KernbenchError, match="cuda:8, which does not exist"):
            torch.cuda.set_device(8)
        assert ctx.cuda.is_available()


def test_factories_use_the_host_on_main_and_the_sip_in_a_worker(kernbench: Kernbench) -> None:
    devices = {}

    def worker(rank: int) -> None:
        devices[rank] = str(torch.zeros(1).device)

    with kernbench.context() as ctx:
        assert str(torch.zeros(1).device) == "cpu"
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert devices == {0: "cuda:0", 1: "cuda:1", 2: "cuda:2"}


def test_a_loop_of_looks_comes_to_its_end(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        x = torch.ones((1 << 16,), device="cuda")
        work = torch.distributed.all_reduce(x, async_op=True)
        assert work is not None
        looks = 0
        while not work.is_completed():
            looks += 1
        work.wait()
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            looks += 1
        assert looks > 0

    kernbench.spawn(worker, nprocs=2)


def test_record_stream_checks_its_arguments(ctx: RuntimeContext) -> None:
    stream = torch.cuda.Stream()
    x: Any = torch.ones(2, device="cuda")
    assert x.record_stream(stream) is None
    with pytest.raises(TypeError, match=r"record_stream\(\): argument 'stream' must be "):
        x.record_stream(1)
    with pytest.raises(NotImplementedError, match="tensors of a device"):
        torch.ones(2, device="cpu").record_stream(stream)


def test_memory_given_back_early_is_not_overwritten(ctx: RuntimeContext) -> None:
    side = torch.cuda.Stream()
    x = torch.ones(64, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    del x
    torch.full((64,), 7.0, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    assert y.tolist() == [2.0] * 64
