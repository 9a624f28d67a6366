"""Library kernels and engines of a PE against their closed forms."""

from collections.abc import Callable

import pytest

from kernbench.des import EventLoop
from kernbench.hw.device import Device
from kernbench.hw.library import Library
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.memory import Space
from kernbench.topology import Topology


@pytest.fixture
def library(topology: Callable[[str], Topology]) -> Library:
    return Library(topology("sip8").machine.system.sip)


# sip8: 4 cubes of 8 PEs, 400 GB/s of HBM a cube, 128 GFLOP/s of maths a PE, launch 1 us.


def test_elementwise_takes_the_slower_of_memory_and_engines(library: Library) -> None:
    assert library.elementwise(1_600_000, 10) == 1_000_000 + 1_000_000  # 1.6 TB/s
    assert library.elementwise(10, 4_096_000) == 1_000_000 + 1_000_000  # 4.096 TFLOP/s
    assert library.elementwise(0, 0) == 1_000_000
    assert library.elementwise(1, 0) == 1_000_001  # less than a picosecond is one


@pytest.mark.parametrize(
    ("m", "n", "waves"),
    [(1, 1, 1), (64, 64 * 32, 1), (64, 64 * 32 + 1, 2), (512, 256, 1), (512, 320, 2), (0, 64, 0)],
)
def test_matmul_counts_waves_of_output_tiles(library: Library, m: int, n: int, waves: int) -> None:
    k = 1000
    tile = 2 * 64 * 64 * k // 2  # picoseconds at 2 TFLOP/s
    assert library.matmul("bf16", m, n, k, 0) == 1_000_000 + waves * tile


def test_a_thin_matmul_is_bound_by_memory(library: Library) -> None:
    nbytes = 8 * (1 << 20)
    time = library.matmul("bf16", 1, 64, 64, nbytes)
    assert time == 1_000_000 + -(-nbytes * 10**12 // (1600 * 10**9))


def test_rates_differ_by_type(library: Library) -> None:
    times = {name: library.matmul(name, 64, 64, 4096, 0) - 1_000_000 for name in ("fp32", "fp8")}
    assert times["fp32"] == 8 * times["fp8"]


def test_engines_of_a_pe_work_side_by_side_and_one_thing_at_a_time() -> None:
    pe = PeTimeline(0, 2, later)
    assert pe.issue() == 2
    first = pe.load(pe.book_port(10), 20, 100)
    assert first == 2 + 20 + 100  # the DMA engine is slower than the port
    assert pe.issue() == 4  # the program did not wait
    second = pe.load(pe.book_port(50), 20, 100)
    assert second == 2 + 10 + 50 + 100  # behind the first at the port
    assert pe.math(second, 7) == second + 7
    assert pe.math(0, 7) == second + 14
    assert pe.gemm(first, 9) == first + 9
    assert pe.clock == 4
    assert pe.store(second, pe.book_port(1), 20, 100) == second + 20 + 100
    assert pe.fence() == second + 120
    assert pe.receive(10, 5, 1) == second + 126


def test_durations_of_a_pe_are_its_rates(topology: Callable[[str], Topology]) -> None:
    system = topology("sip8").machine.system
    costs = PeCosts(system.sip.pe, system.sip.cube)
    assert costs.dma(200) == 1000
    assert costs.math(128) == 1000
    assert costs.gemm("fp32", 10, 20, 30) == 2 * 10 * 20 * 30 * 2
    assert [costs.memory(space).latency for space in (Space.TCM, Space.SRAM, Space.HBM)] == [
        5_000,
        40_000,
        200_000,
    ]


def test_a_device_has_the_hbm_of_all_its_cubes_and_pcie(
    topology: Callable[[str], Topology],
) -> None:
    device = Device(3, topology("sip8"), {})
    assert device.hbm.capacity == 4 * (8 << 30)
    assert device.hbm.name == "sip3.hbm"
    assert device.pcie_ps(50_000) == 1_000_000
    fifos = (device.compute, device.to_device, device.to_host)
    before = [fifo.shared for fifo in fifos]
    device.share(EventLoop())
    assert (before, [fifo.shared for fifo in fifos]) == ([False] * 3, [True] * 3)


def test_devices_that_are_alike_share_what_was_asked(
    changed_topology: Callable[..., Topology],
) -> None:
    slow = {"which": [2, 5], "sip": {"pe": {"math": "64 GFLOP/s"}}}
    libraries: dict[int, Library] = {}
    devices = [Device(index, changed_topology("sip8", slow), libraries) for index in range(8)]
    assert len(libraries) == 2
    assert {id(devices[index].library) for index in (0, 1, 3, 4, 6, 7)} == {id(libraries[0])}
    assert devices[2].library is devices[5].library is libraries[1]
    times = [device.library.elementwise(8, 1 << 20) for device in devices]
    assert [time > times[0] for time in times] == [index in {2, 5} for index in range(8)]
