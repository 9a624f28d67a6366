"""Kernels that few blocks, atomic additions or places of elements slow down: measured times, laws.

Times are those of `benchmarks/h200_spatial.csv`, and of cells that lie near its own.
"""

import pytest

from kernbench.hw.library import Library
from kernbench.kernels import convolutions, copies, indexing, norms, pointwise, pooling, rows
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import Layout, channels_last, numel, row_major
from kernbench.kernels.prices import priced
from kernbench.kernels.products import Sizes, matmul_ps
from kernbench.memory import DType, dtypes
from kernbench.topology import load_topology

_H200 = Library(load_topology("h200x8").topology_obj.machine.system.sip)
FLOAT, BRAIN, HALF = dtypes.float32, dtypes.bfloat16, dtypes.float16


def _plain(dtype: DType, *shape: int) -> Layout:
    return row_major(Layout(shape, shape, dtype))


def _each(dtype: DType, *shape: int, kept: int) -> Layout:
    """A tensor whose elements repeat along all dimensions but one."""
    return Layout(shape, tuple(int(axis == kept) for axis in range(len(shape))), dtype)


def _resized(kernel: str, dtype: DType, n: int, c: int, small: int, large: int) -> int:
    images = _plain(dtype, n, c, large, large), _plain(dtype, n, c, small, small)
    return pooling.resized_ps(_H200, kernel, *images)


def _convolved(image: tuple[int, ...], weight: tuple[int, ...], out: int) -> int:
    result = _plain(FLOAT, image[0], weight[0], *[out] * (len(image) - 2))
    steps = (1,) * (len(image) - 2)
    made = Convolution(_plain(FLOAT, *image), _plain(FLOAT, *weight), result, steps, 1, tf32=True)
    return convolutions.forward_ps(_H200, made)


def _rolled(image: Layout) -> int:
    return copies.rolled_ps(_H200, image, image, 2)


def _batches(dtype: DType, batch: int, m: int, n: int, k: int) -> int:
    given = [_plain(dtype, batch, *shape) for shape in ((m, k), (k, n), (m, n))]
    nbytes = sum(numel(each) * dtype.itemsize for each in given)
    return matmul_ps(_H200, dtype.machine_name, Sizes(batch, m, n, k), nbytes, given)


@pytest.mark.parametrize(
    ("found", "us"),
    [
        (norms.group_norm_ps(_H200, _plain(BRAIN, 8, 8, 96, 96, 96), 1), 7517.6),
        (norms.group_norm_ps(_H200, _plain(FLOAT, 2, 8, 256, 256), 1), 276.9),
        (norms.group_norm_ps(_H200, _plain(FLOAT, 2, 32, 96, 96, 96), 8), 2916.0),
        (norms.group_norm_backward_ps(_H200, _plain(FLOAT, 4, 2, 96, 96, 96)), 999.9),
        (norms.batch_norm_ps(_H200, _plain(FLOAT, 1, 131072, 4, 4)), 944.5),
        (norms.batch_norm_ps(_H200, _plain(HALF, 1, 131072, 4, 4)), 651.2),
        (norms.batch_norm_backward_ps(_H200, _plain(FLOAT, 1, 131072, 4, 4)), 1068.4),
        (_resized("bilinear_backward", FLOAT, 8, 128, 1, 64), 8881.2),
        (_resized("bilinear_backward", BRAIN, 8, 256, 16, 128), 5958.6),
        (_resized("bilinear_backward", FLOAT, 8, 256, 64, 128), 296.7),
        (_resized("nearest_backward", FLOAT, 32, 64, 4, 32), 135.1),
        (_rolled(_plain(BRAIN, 64, 28, 28, 192)), 103.2),
        (indexing.select_ps(_H200, _plain(dtypes.int64, 10**6), _plain(BRAIN, 10**6, 8)), 804.2),
        (
            indexing.gather_ps(_H200, [_plain(dtypes.int64, 10**5)], [_plain(BRAIN, 10**5, 64)]),
            82.1,
        ),
        (
            rows.nll_ps(_H200, _plain(FLOAT, 1, 12, 512, 512), _plain(dtypes.int64, 1, 512, 512)),
            62.5,
        ),
        (
            rows.sum_ps(_H200, _plain(BRAIN, 128, 128, 112, 112), (0, 2, 3), [_plain(BRAIN, 128)]),
            428.5,
        ),
        (_convolved((3, 256, 64, 64), (64, 256, 32, 32), 4), 4649.1),
        (_convolved((64, 64, 64, 64), (64, 64, 32, 32), 4), 1822.4),
        (_batches(BRAIN, 24576, 128, 32, 49), 582.3),
        (_batches(FLOAT, 4096, 64, 196, 32), 261.5),
    ],
)
def test_measured_times_within_half(found: int, us: float) -> None:
    assert us / 1.5 < found / 1e6 < us * 1.5


def test_a_look_up_of_vectors_takes_what_its_rows_take_however_short() -> None:
    ids, found = _plain(dtypes.int64, 10**6), list[int]()
    for columns in (8, 16, 32, 64):
        found.append(indexing.select_ps(_H200, ids, _plain(BRAIN, 10**6, columns)))
    assert len(set(found)) == 1
    narrow = indexing.select_ps(_H200, ids, _plain(BRAIN, 10**6, 1))
    assert narrow < found[0] / 50  # elements are no vectors, and need no block each


def test_one_index_of_all_columns_counts_its_rows_and_one_of_each_element_does_not() -> None:
    out = _plain(FLOAT, 1000, 64)
    of_rows = Layout((1000, 64), (1, 0), dtypes.int64)
    alone = indexing.gather_ps(_H200, [of_rows], [_plain(FLOAT, 1000, 64)])
    each = indexing.gather_ps(_H200, [_plain(dtypes.int64, 1000, 64)], [out])
    assert each < 2 * alone < 6_000_000
    many = Layout((10**6, 64), (1, 0), dtypes.int64)
    long = indexing.gather_ps(_H200, [many], [_plain(FLOAT, 10**6, 64)])
    assert long >= 800 * 10**6


def test_sums_are_told_apart_by_how_what_is_added_lies() -> None:
    image = _plain(FLOAT, 32, 64, 56, 56)
    out, count = [_plain(FLOAT, 64)], numel(image)
    split = rows.sum_ps(_H200, image, (0, 2, 3), out)
    last = rows.sum_ps(_H200, channels_last(image), (0, -1, -2), out)
    flat = rows.sum_ps(_H200, _plain(FLOAT, count // 64, 64), (0,), out)
    assert last == flat
    assert split > 1.5 * rows.sum_ps(_H200, _plain(FLOAT, 64, count // 64), (1,), out)
    # Of one image, planes of a channel are one piece each.
    alone = _plain(FLOAT, 1, 64, 320, 320)
    assert rows.sum_ps(_H200, alone, (0, 2, 3), out) == rows.sum_ps(_H200, alone, (2, 3), out)


def test_an_operand_of_planes_costs_more_than_one_of_columns() -> None:
    target = _plain(FLOAT, 32, 64, 56, 56)
    planes = _each(FLOAT, 32, 64, 56, 56, kept=1)
    columns = _each(FLOAT, 32, 64, 56, 56, kept=3)
    found = [
        pointwise.duration_ps(_H200, "pointwise", [target, each], [target])
        for each in (planes, columns)
    ]
    assert found[0] > found[1]


def test_images_that_stay_as_large_are_copied() -> None:
    image = _plain(FLOAT, 8, 64, 32, 32)
    for kernel in ("nearest", "bilinear", "bilinear_backward"):
        assert pooling.resized_ps(_H200, kernel, image, image) == copies.duration_ps(
            _H200, image, image
        )


def test_both_torches_have_one_price_of_group_norms() -> None:
    image, grouped = _plain(BRAIN, 4, 64, 48, 48, 48), _plain(BRAIN, 4, 8, 8, 48, 48, 48)
    found = priced(_H200, "aten::native_group_norm", None, [grouped], [grouped])
    assert found == norms.group_norm_ps(_H200, image, 8)
    few = norms.group_norm_ps(_H200, image, 1)
    assert few == pytest.approx(8 * found, rel=0.1)
    name = "aten::native_group_norm_backward"
    found = priced(_H200, name, None, [grouped, grouped], [grouped, _plain(BRAIN, 64)])
    assert found == norms.group_norm_backward_ps(_H200, image)
