"""What a library chooses for products of matrices: by hand, in general, and as measured."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hw.library import Library
from kernbench.topology import Topology, load_topology
from kernbench.topology.spec import LibrarySpec, TilesSpec
from kernbench.units import Bytes, FlopRate, Ps

# sip8: 32 PEs, 2 TFLOP/s of bf16 each, 1.6 TB/s of HBM, launch 1 us. SRAM: 4 cubes together.
LAUNCH = 1_000_000


def library_of(topology: Callable[[str], Topology], **changes: Any) -> Library:
    sip = topology("sip8").machine.system.sip
    tiles = TilesSpec({"bf16": FlopRate(2 * 10**12)}, 8, ((32, 32), (64, 64)))
    spec = replace(LibrarySpec(Ps(0), Bytes(0), 1, (tiles,)), **changes)
    return Library(replace(sip, pe=replace(sip.pe, gemm=replace(sip.pe.gemm, library=spec))))


def tile_ps(a: int, b: int, k: int) -> int:
    """A tile at 2 FLOP a picosecond, with 8 multiply-adds for each operand of a step."""
    return (a * b + 8 * (a + b)) * k


@pytest.mark.parametrize(
    ("m", "n", "k", "parts", "tile", "waves"),
    [
        (128, 256, 1000, 1, 32, 1),  # 32 small tiles: one wave, where 8 large ones use 8 PEs
        (256, 512, 1000, 1, 64, 1),  # 32 large tiles: one wave, where 128 small ones are four
        (256, 513, 1000, 1, 32, 5),  # two waves of large tiles take longer than five of small ones
        (64, 64, 1000, 1, 32, 1),
        (1024, 1024, 1000, 1, 64, 8),
    ],
)
def test_the_fastest_choice_counts(
    topology: Callable[[str], Topology],
    m: int,
    n: int,
    k: int,
    parts: int,
    tile: int,
    waves: int,
) -> None:
    other = 96 - tile
    others = -(-(-(-m // other) * -(-n // other)) // 32)
    best = waves * tile_ps(tile, tile, k)
    assert best < others * tile_ps(other, other, k)
    assert library_of(topology).matmul("bf16", m, n, k, 0) == LAUNCH + best


def test_a_long_sum_is_split_if_pes_are_idle(topology: Callable[[str], Topology]) -> None:
    library, whole = library_of(topology, split_k=2), library_of(topology)
    sram = 4 * topology("sip8").machine.system.sip.cube.sram.bandwidth.per_second
    adding = LAUNCH - (-5 * 64 * 64 * 4 * 10**12 // sram)  # two parts written and read, one sum
    halves = LAUNCH + tile_ps(32, 32, 50_000) + adding
    assert library.matmul("bf16", 64, 64, 100_000, 0) == halves
    assert halves < whole.matmul("bf16", 64, 64, 100_000, 0)
    # A short sum is not worth the second kernel, nor one whose tiles fill the PEs.
    for sizes in ((64, 64, 100), (1024, 1024, 10_000)):
        assert library.matmul("bf16", *sizes, 0) == whole.matmul("bf16", *sizes, 0)


def test_start_and_traffic(topology: Callable[[str], Topology]) -> None:
    library = library_of(topology, start=Ps(2_000_000), write_back=Bytes(800_000))
    assert library.matmul("bf16", 16, 16, 16, 1_600_000) == LAUNCH + 2_000_000 + 1_500_000
    assert library.matmul("bf16", 16, 16, 16, 400_000) == LAUNCH + 2_000_000 + 500_000


def test_a_tile_lies_either_way(topology: Callable[[str], Topology]) -> None:
    flat = TilesSpec({"bf16": FlopRate(2 * 10**12)}, 0, ((16, 256),))
    library = library_of(topology, kernels=(flat,))
    for m, n in ((16, 8192), (8192, 16)):
        assert library.matmul("bf16", m, n, 100, 0) == LAUNCH + 16 * 256 * 100


def test_a_batch_fills_the_pes_together(topology: Callable[[str], Topology]) -> None:
    library = library_of(topology)
    one = library.matmul("bf16", 64, 64, 1000, 0)
    assert library.matmul("bf16", 64, 64, 1000, 0, 8) == one == LAUNCH + tile_ps(32, 32, 1000)
    assert library.matmul("bf16", 64, 64, 1000, 0, 9) > one


def test_a_product_with_a_vector_need_not_fill_tiles(
    topology: Callable[[str], Topology],
) -> None:
    # 128 GFLOP/s of maths on each of 32 PEs: 4.096 multiply-adds a picosecond.
    library = library_of(topology)
    assert library.matmul("bf16", 1, 1, 4_096_000, 0) == LAUNCH + 1_000_000


def test_without_a_list_there_is_one_tile(topology: Callable[[str], Topology]) -> None:
    sip = topology("sip8").machine.system.sip
    assert sip.pe.gemm.library is None
    usual, library = Library(sip), library_of(topology)
    for sizes in ((64, 64, 64), (100, 3000, 17)):
        assert library.matmul("fp32", *sizes, 999) == usual.matmul("fp32", *sizes, 999)
        assert library.matmul("bf16", *sizes, 999) != usual.matmul("bf16", *sizes, 999)


H200 = Library(load_topology("h200x8").topology_obj.machine.system.sip)


@given(
    st.sampled_from(["bf16", "fp32", "fp64"]),
    st.tuples(*[st.integers(1, 5000)] * 4),
    st.integers(0, 3),
    st.integers(1, 3000),
)
def test_more_work_is_never_faster(
    dtype: str, sizes: tuple[int, int, int, int], which: int, more: int
) -> None:
    def time(m: int, n: int, k: int, batch: int) -> int:
        return H200.matmul(dtype, m, n, k, 2 * batch * (m * k + n * k + m * n), batch)

    larger = list(sizes)
    larger[which] += more
    assert time(*larger) >= time(*sizes)
    m, n, k, batch = sizes
    assert time(n, m, k, batch) == time(m, n, k, batch) or dtype == "fp64"
