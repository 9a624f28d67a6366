"""Laws of few rows and of groups, by hand, and that they add nothing where a machine has none."""

from dataclasses import replace
from math import ceil

import pytest

from kernbench.hw.library import Library
from kernbench.kernels import indexing, norms, products, rows
from kernbench.kernels.operands import Layout
from kernbench.kernels.products import Sizes
from kernbench.memory import DType, dtypes
from kernbench.topology import load_topology
from kernbench.topology.spec import KernelSpec, SipSpec

_H200 = load_topology("h200x8").topology_obj.machine.system.sip
_LAUNCH, _BANDWIDTH, _MATH, _PES = 1.3e-6, 4.45e12, 132 * 253e9, 132


def _with(**kernels: KernelSpec) -> SipSpec:
    return replace(_H200, kernels={**_H200.kernels, **kernels})


def _contiguous(*shape: int, dtype: DType = dtypes.bfloat16) -> Layout:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return Layout(shape, tuple(reversed(strides)), dtype)


@pytest.mark.parametrize("count", [250, 1000, 4000])
def test_few_rows_take_longer_for_their_bytes(count: int) -> None:
    library = Library(_with(softmax=KernelSpec(share=50, few=1000)))
    x = _contiguous(count, 16384)

    found = rows.duration_ps(library, "softmax", [x], [x])

    nbytes = 2 * count * 16384 * 2 * (1 + 1000 / count)
    assert found == pytest.approx(1e12 * (_LAUNCH + nbytes / 0.5 / _BANDWIDTH), abs=100)


def test_rows_that_warps_share_are_no_blocks() -> None:
    library = Library(_with(softmax_backward=KernelSpec(share=50, few=1000, beyond=1024)))
    x = _contiguous(1000, 1024)

    found = rows.duration_ps(library, "softmax_backward", [x], [x])

    assert found == ceil(1e12 * (_LAUNCH + 4 * 1000 * 1024 / 0.5 / _BANDWIDTH))


def test_a_layer_norm_of_few_rows_takes_longer() -> None:
    x = _contiguous(500, 8192)
    spec = KernelSpec(share=50, few=500)
    few, many = (
        norms.layer_norm_ps(Library(_with(layer_norm=each)), [x, x], x, 8192)
        for each in (spec, replace(spec, few=0))
    )

    assert few - many == pytest.approx(1e12 * 4 * 500 * 8192 / 0.5 / _BANDWIDTH, rel=1e-6)


def test_a_reduction_divides_few_rows_among_four_blocks_of_each_pe() -> None:
    spec = KernelSpec(share=50, few=528)
    library = Library(_with(arg_extreme=spec, softmax=spec))
    one, many = (_contiguous(rows, 1 << 20) for rows in (1, 528))

    for x in (one, many):  # 528 = 4 x 132: half of the rate
        nbytes = x.shape[0] * (1 << 20) * 2
        found = rows.duration_ps(library, "arg_extreme", [x], [])
        assert found == pytest.approx(1e12 * (_LAUNCH + 2 * nbytes / 0.5 / _BANDWIDTH), rel=1e-4)
    place = _contiguous(1, dtype=dtypes.int64)
    greatest = rows.duration_ps(library, "arg_extreme", [many], [place])
    assert greatest == rows.sum_ps(library, many, (), [place])
    whole = rows.duration_ps(library, "softmax", [one], [])
    assert whole == pytest.approx(1e12 * (_LAUNCH + 529 * 2**21 / 0.5 / _BANDWIDTH), rel=1e-4)


_GROUPED = {"grouped": KernelSpec(share=50), "grouped_traffic": KernelSpec(share=50)}
_RATE = 7.49e12
"""FLOP/s of one PE, bfloat16."""


def _grouped_ps(groups: list[Sizes], **kernels: KernelSpec) -> float:
    library = Library(_with(**{**_GROUPED, **kernels}))
    return products.grouped_ps(library, dtypes.bfloat16, groups, 0) - 1e12 * _LAUNCH


def test_a_group_of_few_rows_takes_its_whole_matrix_from_memory() -> None:
    groups = [Sizes(1, 1, 2048, 1024)] * 64

    matrix = 2048 * 1024 * 2 / 0.5 / _BANDWIDTH
    assert _grouped_ps(groups) == pytest.approx(1e12 * 64 * matrix, rel=1e-4)


def test_a_group_without_rows_takes_nothing() -> None:
    full, empty = Sizes(1, 4096, 2048, 1024), Sizes(1, 0, 2048, 1024)

    assert _grouped_ps([empty, full, empty]) == _grouped_ps([full])


def test_a_group_of_many_rows_takes_its_tiles_on_all_pes() -> None:
    tiles = (4096 // 128) * (2048 // 256)
    tile = 2 * 128 * 256 * 1024 / 0.5 / _RATE

    found = _grouped_ps([Sizes(1, 4096, 2048, 1024)])

    assert found == pytest.approx(1e12 * tiles * tile / _PES, rel=1e-4)


def test_no_group_is_faster_than_one_tile_and_up_to_half_of_its_rows_take_half() -> None:
    tile = 2 * 128 * 256 * 65536 / 0.5 / _RATE

    assert _grouped_ps([Sizes(1, 65, 256, 65536)]) == pytest.approx(1e12 * tile, rel=1e-4)
    assert _grouped_ps([Sizes(1, 64, 256, 65536)]) == pytest.approx(1e12 * tile / 2, rel=1e-4)


def test_groups_of_the_same_rows_take_longer_the_more_uneven_they_are() -> None:
    even = [Sizes(1, 256, 2048, 2048)] * 64
    skewed = [Sizes(1, 16384 - 63 * 64, 2048, 2048), *[Sizes(1, 64, 2048, 2048)] * 63]
    one = [Sizes(1, 16384, 2048, 2048), *[Sizes(1, 0, 2048, 2048)] * 63]

    assert _grouped_ps(even) < _grouped_ps(skewed)
    assert _grouped_ps(one) == pytest.approx(_grouped_ps(even), rel=1e-6)  # by tiles


def test_rows_of_whole_vectors_are_read_as_an_embedding_reads_them() -> None:
    library = Library(_H200)
    places = _contiguous(4096, dtype=dtypes.int64)
    wide, odd = _contiguous(4096, 1024), _contiguous(4096, 1023)

    assert indexing.select_ps(library, places, wide) == indexing.embedding_ps(library, places, wide)
    assert indexing.select_ps(library, places, odd) == indexing.gather_ps(library, [places], [odd])


def test_adding_to_places_takes_its_own_operations() -> None:
    library = Library(_H200)
    target, source = _contiguous(1024, 2048), _contiguous(8192, 2048)
    found = {
        name: indexing.scatter_ps(
            library, target, [source], kernel=indexing.kernel_of(name), count=source.shape[0] * 2048
        )
        for name in ("index_add_", "scatter_add", "index_put_")
    }

    count = 8192 * 2048
    assert found["index_add_"] == pytest.approx(1e12 * (_LAUNCH + 265 * count / _MATH), rel=1e-6)
    assert found["scatter_add"] == pytest.approx(1e12 * (_LAUNCH + 125 * count / _MATH), rel=1e-6)
    assert found["index_put_"] < found["scatter_add"]
