"""No shipped machine computes or moves more than its own file says that it can."""

import math

import pytest
from inferred_machines import INFERRED, inferred

from kernbench.attention.bands import EVERYTHING, bands
from kernbench.attention.rows import in_order
from kernbench.calibration.shares import with_shares
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library
from kernbench.kernels import convolutions
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import Layout, channels_last, row_major
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import dtypes
from kernbench.topology import load_topology, shipped_machines
from kernbench.topology.spec import KERNELS, SystemSpec
from kernbench.units import PS_PER_S

ALL = sorted(shipped_machines())
GPUS = [name for name in ALL if load_topology(name).topology_obj.machine.system.sip.pe.attention]

PEAKS = {
    # TFLOP/s of bf16 without sparsity, TB/s, capacity in GB: NVIDIA's and AMD's datasheets
    "a100x8": (312, 2.04, 80),
    "h100x8": (989, 3.35, 80),
    "h200x8": (989, 4.8, 141),
    "b200x8": (2250, 8, 180),
    "gb200_nvl72": (2500, 8, 186),
    "mi300x8": (1307, 5.3, 192),
}


def system_of(name: str) -> SystemSpec:
    return load_topology(name).topology_obj.machine.system


def peak(system: SystemSpec, dtype: str) -> float:
    """The most that all PEs multiply, in FLOP a second."""
    gemm, pes = system.sip.pe.gemm, math.prod(system.sip.cubes.shape) * system.sip.cube.pes
    kernels = () if gemm.library is None else gemm.library.kernels
    rates = [tiles.rate[dtype] for tiles in kernels if dtype in tiles.rate]
    return max([gemm.rate[dtype], *rates]).per_second * pes


@pytest.mark.parametrize("name", ALL)
def test_no_product_is_faster_than_the_engines(name: str) -> None:
    system = system_of(name)
    library = Library(system.sip)
    for dtype in system.sip.pe.gemm.rate:
        for n in (1024, 4096, 16384):
            ps = library.matmul(dtype, n, n, n, 0)
            assert 2 * n**3 * PS_PER_S / ps <= peak(system, dtype)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_no_attention_is_faster_than_the_engines(name: str, direction: Direction) -> None:
    system, width, rows, heads = system_of(name), 128, 16384, 32
    library = Library(system.sip)
    seen = bands(in_order(rows), in_order(rows), EVERYTHING)
    products = 2 if direction == "forward" else 5
    flop = products * 2 * heads * rows * rows * width
    for backend in ("flash", "cudnn", "efficient"):
        shape = Shape(1, heads, heads, width, width)
        ps = library.attention(backend, direction, "bf16", shape, (seen,), 0)
        assert flop * PS_PER_S / ps <= peak(system, "bf16")


@pytest.mark.parametrize("name", GPUS)
def test_no_convolution_is_faster_than_the_engines(name: str) -> None:
    system = system_of(name)
    library = Library(system.sip)

    def image(*shape: int) -> Layout:
        return channels_last(row_major(Layout(shape, shape, dtypes.bfloat16)))

    for window in (1, 3):
        images, weight = image(256, 512, 64, 64), image(512, 512, window, window)
        which = Convolution(images, weight, images, (1, 1), 1, tf32=True)
        flop = 2 * 256 * 64 * 64 * 512 * 512 * window**2
        for ps in (
            convolutions.forward_ps(library, which),
            convolutions.backward_ps(library, which, weight=False),
            convolutions.backward_ps(library, which, data=False),
        ):
            assert flop * PS_PER_S / ps <= peak(system, "bf16")


@pytest.mark.parametrize("name", ALL)
def test_no_kernel_moves_more_than_the_memory(name: str) -> None:
    system, nbytes = system_of(name), 1 << 30
    library = Library(system.sip)
    cubes = math.prod(system.sip.cubes.shape)
    most = cubes * system.sip.cube.hbm.bandwidth.per_second
    for kernel in KERNELS:
        ps = streamed_ps(library, library.kernel(kernel), nbytes)
        assert nbytes * PS_PER_S / ps <= most


@pytest.mark.parametrize("name", PEAKS)
def test_a_machine_of_a_product_has_the_peaks_of_its_datasheet(name: str) -> None:
    system = system_of(name)
    tflops, terabytes, capacity = PEAKS[name]
    assert 0.995 * tflops < peak(system, "bf16") / 1e12 < 1.005 * tflops
    assert 0.9 * terabytes < system.sip.cube.hbm.bandwidth.per_second / 1e12 <= terabytes
    assert system.sip.cube.hbm.capacity == capacity * 10**9


@pytest.mark.parametrize("name", INFERRED)
def test_what_nobody_measured_is_as_on_the_calibrated_machine(name: str) -> None:
    """`python tests/topology/inferred_machines.py` writes it anew."""
    assert shipped_machines()[name].read_text() == inferred(name)
    system = system_of(name)
    assert with_shares(system, system_of("h200x8")) == system
