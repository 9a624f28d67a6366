"""How long attention takes: by hand, against a count of all pairs, in general, and as measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.attention.bands import CAUSAL, EVERYTHING, Bands, Mask, bands
from kernbench.attention.rows import Segment, in_order, share
from kernbench.hw import attention
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library
from kernbench.topology import load_topology
from kernbench.topology.spec import AttentionSpec, LibrarySpec
from kernbench.units import Bytes, FlopRate, Ps

# sip8: 32 PEs, 2 TFLOP/s of bf16 and 128 GFLOP/s of maths each, 1.6 TB/s of HBM, launch 1 us.
LAUNCH, PES = 1_000_000, 32
TILE = 2 * 128 * 128 * (64 + 64) // 2 + 128 * 128 * 5 * 10**12 // (128 * 10**9)
"""A tile of 128 x 128, widths of 64: two products at 2 FLOP a picosecond, 5 operations a score."""

START, PROGRAM, ADDING = 3_000_000, 500_000, 4_000_000
FORWARD = AttentionSpec(
    "flash",
    "forward",
    Ps(START),
    Ps(PROGRAM),
    (32, 16),
    50,
    100,
    Ps(ADDING),
)
BACKWARD = replace(FORWARD, direction="backward", tile=(16, 32))
SIP8 = load_topology("sip8").topology_obj.machine.system.sip
USUAL = Library(SIP8)
OWN = Library(
    replace(SIP8, pe=replace(SIP8.pe, math=FlopRate(10**12), attention=(FORWARD, BACKWARD)))
)
"""Without and with kernels of attention in the machine file."""

SMALL = 2 * 32 * 16 * 2 + 32 * 16  # a tile of those for widths of 1, forward


def seen(queries: int, keys: int, mask: Mask = EVERYTHING) -> Bands:
    return bands(in_order(queries), in_order(keys), mask)


@pytest.mark.parametrize(
    ("queries", "mask", "heads", "tiles"),
    [
        (256, EVERYTHING, 16, 2),  # 32 programs of two tiles
        (256, CAUSAL, 16, 2),  # half of them have one
        (256, EVERYTHING, 17, 4),
        (256, CAUSAL, 17, 3),  # the last two wait for those with one
        (129, EVERYTHING, 16, 2),  # a tile with one row takes as long as a whole one
        (512, Mask(127, 0), 8, 2),  # a window: the diagonal and the tile before it
        (512, Mask(128, 0), 8, 3 - 1),
        (512, Mask(129, 0), 8, 3),
    ],
)
def test_programs_and_tiles(queries: int, mask: Mask, heads: int, tiles: int) -> None:
    shape = Shape(1, heads, heads, 64, 64)
    for backend in ("flash", "no such"):  # without an entry, all are alike
        time = USUAL.attention(
            backend, "forward", "bf16", shape, (seen(queries, queries, mask),), 0
        )
        assert time == LAUNCH + tiles * TILE


def test_backward_computes_five_products_and_its_traffic_comes_besides() -> None:
    shape, pattern = Shape(1, 16, 16, 64, 64), (seen(256, 256),)
    products, scores = 2 * 128 * 128 * 64 * 5 // 2, 640_000
    time = USUAL.attention("flash", "backward", "bf16", shape, pattern, 0)
    assert time == LAUNCH + 2 * (products + scores)
    more = USUAL.attention("flash", "backward", "bf16", shape, pattern, 1_600_000)
    assert more == time + 1_000_000


def test_forward_is_no_faster_than_its_traffic() -> None:
    shape = Shape(1, 1, 1, 64, 64)
    time = USUAL.attention("flash", "forward", "bf16", shape, (seen(1, 1),), 1_600_000_000)
    assert time == LAUNCH + 1_000_000_000


def test_nothing_seen_takes_a_launch() -> None:
    for direction in ("forward", "backward"):
        assert USUAL.attention("flash", direction, "bf16", Shape(1, 1, 1, 8, 8), ((),), 0) == LAUNCH


def test_other_types_have_the_proportions_of_products() -> None:
    shape, pattern = Shape(1, 16, 16, 64, 64), (seen(128, 128),)
    bf16, fp32 = (
        USUAL.attention("flash", "forward", name, shape, pattern, 0) - LAUNCH - 640_000
        for name in ("bf16", "fp32")
    )
    rates = USUAL.matmul("bf16", 64, 64, 4096, 0), USUAL.matmul("fp32", 64, 64, 4096, 0)
    assert fp32 * (rates[0] - LAUNCH) == bf16 * (rates[1] - LAUNCH)


def test_a_kernel_may_have_a_pace_of_its_own_for_fp32() -> None:
    pe = replace(OWN.sip.pe, attention=(replace(FORWARD, fp32=25),))
    library, shape, pattern = Library(replace(SIP8, pe=pe)), Shape(1, 1, 1, 1, 1), (seen(32, 16),)
    for name, tiles in ("bf16", 1), ("fp32", 4):
        found = library.attention("flash", "forward", name, shape, pattern, 0)
        assert found == LAUNCH + START + PROGRAM + tiles * SMALL


def test_heads_of_a_group_share_a_tile_if_all_their_queries_fit() -> None:
    def time(queries: int, heads: int) -> int:
        shape = Shape(32, heads, 1, 1, 1)
        found = OWN.attention("flash", "forward", "bf16", shape, (seen(queries, 16),), 0)
        return found - LAUNCH - START

    assert time(8, 4) == time(1, 1) == PROGRAM + SMALL
    assert time(9, 4) == 4 * (PROGRAM + SMALL)


def test_keys_are_split_if_pes_are_idle() -> None:
    def time(keys: int, heads: int) -> int:
        shape = Shape(1, heads, heads, 1, 1)
        found = OWN.attention("flash", "forward", "bf16", shape, (seen(1, keys),), 0)
        return found - LAUNCH - START

    tiles = 32_000
    split = PROGRAM + ADDING  # another kernel adds the parts
    assert time(16 * tiles, 1) == split + tiles // 32 * SMALL
    assert time(16 * tiles, 3) == split + tiles // 10 * SMALL
    assert time(16 * tiles, 17) == PROGRAM + tiles * SMALL
    assert time(16 * 32, 1) == PROGRAM + 32 * SMALL  # not worth it


def test_a_query_takes_a_whole_tile_unless_its_keys_are_divided() -> None:
    tall = replace(FORWARD, tile=(128, 16))
    own = Library(replace(SIP8, pe=replace(SIP8.pe, math=FlopRate(10**12), attention=(tall,))))

    def time(heads: int) -> int:
        shape, pattern = Shape(1, heads, heads, 1, 1), (seen(1, 16 * 32_000),)
        return own.attention("flash", "forward", "bf16", shape, pattern, 0) - LAUNCH - START

    assert time(17) == PROGRAM + 32_000 * 4 * SMALL  # 128 rows for 32
    assert time(1) == PROGRAM + ADDING + 1000 * 2 * SMALL  # 64 rows


def test_what_attention_reads_displaces_results_in_the_sram() -> None:
    library = LibrarySpec(Ps(0), Bytes(80_000_000), 1, ())
    pe = replace(SIP8.pe, gemm=replace(SIP8.pe.gemm, library=library))
    own, shape = Library(replace(SIP8, pe=pe)), Shape(1, 1, 1, 1, 1)
    for nbytes, moved in ((160_000_000, 240_000_000), (40_000_000, 80_000_000)):
        time = own.attention("flash", "forward", "bf16", shape, (seen(1, 1),), nbytes)
        assert time == LAUNCH + moved * 10 // 16


def test_patterns_of_batch_elements_fill_the_pes_together() -> None:
    one, both = seen(64, 64), (seen(64, 64), seen(640, 640))
    shape = Shape(2, 8, 8, 1, 1)

    def time(patterns: tuple[Bands, ...]) -> int:
        return OWN.attention("flash", "forward", "bf16", shape, patterns, 0) - LAUNCH - START

    assert time((one,)) == time((one, one)) == PROGRAM + 4 * SMALL
    programs = [4] * 2 + [40] * 20
    assert time(both) == greedy([PROGRAM + n * SMALL for n in programs * 8])


def test_bands_of_the_same_queries_are_one_program() -> None:
    # Rank 1 of 2 has chunks 1 and 2 of 4; both see chunk 0 and chunk 3 sees no one of it.
    mine, other = (share((0, 256), (0, 256), 2, part) for part in (1, 0))
    pattern = bands(mine, other, CAUSAL)
    assert [(band.query, band.keys) for band in pattern] == [(0, 64), (64, 64)]
    both = bands(mine, (*other[:1], Segment(64, 64, 64, 0)), CAUSAL)
    assert [(band.query, band.keys) for band in both] == [(0, 64), (0, 64), (64, 64), (64, 64)]
    shape = Shape(1, 16, 16, 1, 1)
    time = OWN.attention("flash", "forward", "bf16", shape, (both,), 0) - LAUNCH - START
    programs = [4 + 2, 4 + 4, 4 + 4, 4 + 4] * 16
    assert time == greedy([PROGRAM + n * SMALL for n in programs])


# Against a count of all pairs


def greedy(durations: list[int], pes: int = PES) -> int:
    """When the last of some programs ends, each given to the PE that is free first."""
    free = [0] * pes
    for duration in durations:
        which = min(range(pes), key=lambda pe: free[pe])
        free[which] += duration
    return max(free)


@given(
    st.integers(33, 300),
    st.integers(1, 300),
    st.integers(0, 200),
    st.sampled_from([Mask(), CAUSAL, Mask(40, 0), Mask(3, 70), Mask(None, 30)]),
    st.integers(1, 12),
    st.sampled_from(["forward", "backward"]),
)
def test_as_counted(
    queries: int, keys: int, position: int, mask: Mask, heads: int, direction: Direction
) -> None:
    distance = np.arange(keys) - position - np.arange(queries)[:, None]
    visible = np.full((queries, keys), True)
    if mask.left is not None:
        visible &= distance >= -mask.left
    if mask.right is not None:
        visible &= distance <= mask.right
    tile = 32, 16
    product = SMALL
    if direction == "backward":
        visible = visible.T
        product = 2 * 32 * 16 * 5 + 32 * 16
    visible = visible[visible.any(1)][:, visible.any(0)]
    counts = [
        sum(
            bool(visible[row : row + tile[0], column : column + tile[1]].any())
            for column in range(0, visible.shape[1], tile[1])
        )
        for row in range(0, visible.shape[0], tile[0])
    ]
    durations = [PROGRAM + count * product for count in counts] * heads
    expected = START + greedy(durations) if durations else START
    pattern = bands((Segment(0, position, queries, 0),), in_order(keys), mask)
    shape = Shape(1, heads, heads, 1, 1)
    time = OWN.attention("flash", direction, "bf16", shape, (pattern,), 0) - LAUNCH
    if direction == "forward" and durations:  # with idle PEs, keys may be split
        assert START + max(durations) <= time + START + PROGRAM + max(counts) * product
        assert time == expected or (
            time < expected and len(durations) <= PES // 2 and time > START + ADDING
        )
    else:
        assert time == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(5, 40))
def test_many_programs_are_not_given_out_one_by_one(lengths: list[int], repeats: int) -> None:
    exact = greedy([7 + 3 * length for length in lengths] * repeats)
    given_out = attention._makespan(np.array(lengths), repeats, PES, 7, 3)
    assert given_out == exact
    longest = 7 + 3 * max(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_ORDERED", 0)
        bound = attention._makespan(np.array(lengths), repeats, PES, 7, 3)
    assert exact <= bound <= exact + longest


# In general

H200 = Library(load_topology("h200x8").topology_obj.machine.system.sip)


@given(
    st.sampled_from(["flash", "cudnn", "efficient"]),
    st.sampled_from(["forward", "backward"]),
    st.sampled_from([EVERYTHING, CAUSAL, Mask(500, 0)]),
    st.tuples(
        *[st.integers(1, 3000)] * 2,
        *[st.integers(1, 4)] * 3,
        *[st.integers(1, 256)] * 2,
    ),
    st.integers(0, 6),
    st.integers(1, 1000),
)
def test_more_of_anything_is_never_faster(
    backend: str,
    direction: Direction,
    mask: Mask,
    sizes: tuple[int, ...],
    which: int,
    more: int,
) -> None:
    def time(sizes: list[int]) -> int:
        queries, keys, batch, groups, shared, width, value_width = sizes
        shape = Shape(batch, groups * shared, groups, width, value_width)
        return H200.attention(backend, direction, "bf16", shape, (seen(queries, keys, mask),), 0)

    larger = list(sizes)
    larger[which] += more if which < 2 or which > 4 else more % 8
    assert time(larger) >= time(list(sizes))
