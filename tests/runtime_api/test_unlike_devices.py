"""Devices that differ: each takes the time that it takes on a machine of its kind alone."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.memory.allocator import OutOfMemoryError
from kernbench.process.process import current_process
from kernbench.runtime_api.model_memory import check_model_fits, model_memory
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.dials import Fidelity
from kernbench.testing import Kernbench

SLOW: Final[dict[str, Any]] = {
    "launch": "7 us",
    "cube": {"pes": 3, "hbm": {"bandwidth": "90 GB/s", "latency": "700 ns"}},
    "pe": {
        "issue": "9 ns",
        "dma": "30 GB/s",
        "math": "20 GFLOP/s",
        "gemm": {"rate": {"fp32": "0.2 TFLOP/s"}, "tile": [32, 64]},
        "tcm": {"latency": "90 ns"},
    },
}


def changed(*entries: dict[str, Any]) -> list[str]:
    return [f"system.sips.changed={json.dumps(entries)}"]


def of_all(sip: dict[str, Any], place: str = "system.sip") -> list[str]:
    """Returns overrides that change `system.sip` itself."""
    found = []
    for key, value in sip.items():
        inside = isinstance(value, dict)
        found += of_all(value, f"{place}.{key}") if inside else [f"{place}.{key}={value}"]
    return found


ONE: Final = changed({"which": [1], "sip": SLOW})
EVERY: Final = of_all(SLOW)


@tl.jit
def double(x: tl.Pointer, n: int, block: tl.constexpr) -> None:
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * 2, mask=mask)


@tl.jit
def relay(x: tl.Pointer, n: int, block: tl.constexpr) -> None:
    """Each program hands its block to the next: messages within and between cubes."""
    pid, count = tl.program_id(0), tl.num_programs(0)
    tl.send(tl.load(x + pid * block + tl.arange(0, block)), (pid + 1) % count)
    tl.store(x + pid * block + tl.arange(0, block), tl.recv((pid + count - 1) % count))


def a_kernel() -> None:
    x = torch.ones(10_000, device="cuda")
    for _ in range(2):
        double[tl.cdiv(10_000, 256),](x, 10_000, 256)


def a_kernel_with_messages() -> None:
    relay[12,](torch.ones(12 * 64, device="cuda"), 12 * 64, 64)


def a_product() -> None:
    x = torch.ones(300, 200, device="cuda")
    x @ x.t()


def products() -> None:
    x = torch.ones(5, 70, 90, device="cuda")
    torch.bmm(x, x.transpose(1, 2).contiguous())


def elementwise() -> None:
    torch.exp(torch.ones(1 << 18, device="cuda")).sum()


WORKS: Final = [a_kernel, a_kernel_with_messages, a_product, products, elementwise]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_each_device_takes_its_own_time(
    kernbench: Kernbench, work: Callable[[], None], fidelity: Fidelity
) -> None:
    def times(overrides: list[str]) -> list[int]:
        ends = [0] * 3

        def worker(rank: int) -> None:
            work()
            torch.cuda.synchronize()
            ends[rank] = current_process().host.clock

        kernbench.spawn(worker, nprocs=3, overrides=overrides, fidelity=fidelity)
        return ends

    usual, slow, mixed = times([]), times(EVERY), times(ONE)
    assert usual[0] == usual[1] == usual[2] < slow[0] == slow[1] == slow[2]
    assert mixed == [usual[0], slow[1], usual[2]]


@pytest.mark.parametrize(("source", "target", "like"), [(1, 2, EVERY), (2, 1, [])])
def test_a_copy_leaves_at_the_rate_of_its_source(
    kernbench: Kernbench, source: int, target: int, like: list[str]
) -> None:
    def time(overrides: list[str]) -> int:
        with kernbench.context(overrides=overrides):
            torch.ones(1 << 20, device=f"cuda:{source}").to(f"cuda:{target}")
            torch.cuda.synchronize(target)
            return current_process().host.clock

    assert time(ONE) == time(like)
    assert time(EVERY) != time([])


@pytest.mark.parametrize("data", [True, False])
def test_numbers_are_right_on_unlike_devices(kernbench: Kernbench, data: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((777,), float(rank), device="cuda")
        double[tl.cdiv(777, 256),](x, 777, 256)
        dist.all_reduce(x)
        if data:
            assert x.tolist() == [2.0 * (0 + 1 + 2 + 3)] * 777

    kernbench.spawn(worker, nprocs=4, overrides=ONE, data=data)


SMALL: Final = changed({"which": [2], "sip": {"cube": {"hbm": {"capacity": "1 MiB"}}}})


def test_only_the_small_device_is_out_of_memory(kernbench: Kernbench) -> None:
    """Four cubes of 1 MiB are 4 MiB; what to raise is named where it stands."""
    with kernbench.context(overrides=SMALL):
        assert torch.cuda.mem_get_info(2)[1] == 4 << 20
        assert torch.cuda.mem_get_info(1)[1] == 32 << 30
        torch.empty(2 << 20, device="cuda:1")
        with pytest.raises(OutOfMemoryError, match=r"sip2\.hbm is out of memory") as caught:
            torch.empty(2 << 20, device="cuda:2")
    assert str(caught.value).endswith(
        "or raise system.sips.changed[0].sip.cube.hbm.capacity in the topology file"
    )


def test_a_model_fits_where_there_is_room(kernbench: Kernbench) -> None:
    def build(rank: int) -> Any:
        return torch.nn.Linear(1024, 1024, bias=False), None

    ctx = kernbench.context(overrides=SMALL)
    assert [each.capacity for each in model_memory(ctx, build, 4)] == [
        32 << 30, 32 << 30, 4 << 20, 32 << 30,
    ]  # fmt: skip
    assert len(check_model_fits(ctx, build, 2)) == 2
    with pytest.raises(OutOfMemoryError) as caught:
        check_model_fits(ctx, build, 4)
    told = str(caught.value)
    assert "the model of rank 2 does not fit its device cuda:2: it needs 8 MiB" in told
    assert "the device has 4 MiB of HBM" in told
    assert "neither" not in told
    assert "raise system.sips.changed[0].sip.cube.hbm.capacity in the topology file" in told


def test_a_tile_that_fits_one_device_only(kernbench: Kernbench) -> None:
    small = changed({"which": [1], "sip": {"pe": {"tcm": {"capacity": "2 KiB"}}}})

    def worker(rank: int) -> None:
        double[1,](torch.ones(1024, device="cuda"), 1024, 1024)

    ctx = kernbench.context(overrides=small)
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert str(caught.value).startswith(
        "rank 1 failed\nrank 1: OutOfMemoryError: [M8] tl.load: a tile of shape (1024,) "
        "does not fit into the TCM of its PE"
    )


def test_properties_are_the_devices_own(kernbench: Kernbench) -> None:
    cube = {"pes": 120, "sram": {"capacity": "50 MiB"}, "hbm": {"capacity": "80 GB"}}
    sip = {"cube": cube, "pe": {"tcm": {"capacity": "128 KiB"}}}
    with kernbench.context("h200x8", overrides=changed({"which": [3], "sip": sip})):
        usual, other = (torch.cuda.get_device_properties(index) for index in (2, 3))
        assert torch.cuda.get_device_name(3) == usual.name == other.name == "h200x8"
        assert (usual.multi_processor_count, other.multi_processor_count) == (132, 120)
        assert (usual.total_memory, other.total_memory) == (141 * 10**9, 80 * 10**9)
        assert (usual.L2_cache_size, other.L2_cache_size) == (60 << 20, 50 << 20)
        shared = [each.shared_memory_per_multiprocessor for each in (usual, other)]
        assert shared == [227 << 10, 128 << 10]
