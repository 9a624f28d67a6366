"""Prices of kernels by hand: bytes over a share of the bandwidth, operations over the engines."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hw.library import Library
from kernbench.kernels import copies, indexing, lists, pointwise, products, rows
from kernbench.kernels.operands import Layout, bytes_of, finding, is_dense
from kernbench.kernels.prices import PRICES, of_bytes, of_sum, priced
from kernbench.memory import DType, dtypes
from kernbench.topology import load_topology
from kernbench.topology.spec import KERNELS

_H200 = load_topology("h200x8").topology_obj.machine.system.sip
_IDEAL = load_topology("sip8").topology_obj.machine.system.sip
_LAUNCH, _BANDWIDTH, _MATH = 1.3e-6, 4.45e12, 132 * 253e9


def _contiguous(*shape: int, dtype: DType = dtypes.float32) -> Layout:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return Layout(shape, tuple(reversed(strides)), dtype)


def _turned(layout: Layout) -> Layout:
    return Layout(layout.shape[::-1], layout.strides[::-1], layout.dtype)


def _ps(nbytes: float, operations: float = 0, *, share: int = 100, launches: int = 1) -> int:
    seconds = launches * _LAUNCH + max(100 * nbytes / share / _BANDWIDTH, operations / _MATH)
    return ceil(seconds * 1e12)


_X = _contiguous(4096, 4096)
_MB = 4096 * 4096 * 4


@pytest.fixture
def library() -> Library:
    return Library(_H200)


def _near(found: int, expected: int) -> None:
    assert found == pytest.approx(expected, abs=100)


def test_an_elementwise_kernel_moves_its_operands_once(library: Library) -> None:
    found = pointwise.duration_ps(library, "pointwise", [_X, _X], [_X])
    _near(found, _ps(3 * _MB, share=96))


def test_an_operand_that_lies_otherwise_costs_operations(library: Library) -> None:
    row = Layout((4096, 4096), (0, 1), dtypes.float32)
    count = 4096 * 4096
    found = pointwise.duration_ps(library, "pointwise", [_X, row], [_X])
    _near(found, _ps(2 * _MB, 86 * count, share=96))
    found = pointwise.duration_ps(library, "pointwise", [_X, _turned(_X)], [_X])
    _near(found, _ps(3 * _MB, 225 * count, share=96))


def test_a_machine_without_prices_reaches_what_it_can_do() -> None:
    library = Library(_IDEAL)
    for kernel in KERNELS:
        price = library.kernel(kernel)
        assert (price.share, price.element, price.row, price.launches) == (100, 1, 0, 1)
    found = pointwise.duration_ps(library, "gelu", [_X], [_X])
    assert found == library.elementwise(2 * _MB, 4096 * 4096)


def test_a_kernel_without_a_price_has_that_of_the_one_it_is_like(library: Library) -> None:
    assert "gelu_backward" not in _H200.kernels
    assert library.kernel("gelu_backward") == _H200.kernels["gelu"]
    assert library.kernel("copy") == _H200.kernels["pointwise"]


def test_copies_and_casts(library: Library) -> None:
    narrow = _contiguous(4096, 4096, dtype=dtypes.bfloat16)
    count = 4096 * 4096
    _near(copies.duration_ps(library, _X, _X), _ps(2 * _MB, share=96))
    _near(copies.duration_ps(library, _X, narrow), _ps(1.5 * _MB, share=96))
    _near(copies.duration_ps(library, narrow, _X), _ps(1.5 * _MB, 100 * count, share=96))
    _near(copies.duration_ps(library, _turned(_X), _X), _ps(2 * _MB, 225 * count, share=96))


def test_rows_of_a_warp_cost_less_than_those_of_a_block(library: Library) -> None:
    short, long = _contiguous(4096, 1024), _contiguous(1024, 4096)
    moved = 3 * 4096 * 1024 * 4
    found = rows.duration_ps(library, "softmax_backward", [short, short], [short])
    _near(found, _ps(moved, share=47, launches=2))
    found = rows.duration_ps(library, "softmax_backward", [long, long], [long])
    _near(found, _ps(moved, 180_000 * 1024, share=47, launches=2))


@pytest.mark.parametrize(
    ("columns", "element", "share", "few"),
    [(2048, 58, 96, 800), (2049, 105, 96, 0), (9216, 105, 96, 0), (9217, 60, 76, 200)],
)
def test_a_softmax_is_another_kernel_for_each_length_of_rows(
    library: Library, columns: int, element: int, share: int, few: int
) -> None:
    """Of bfloat16, which takes longer to compute than to move, unlike float32 of long rows."""
    for dtype, rows_ in ((dtypes.bfloat16, 16384), (dtypes.float32, 100)):
        x = _contiguous(rows_, columns, dtype=dtype)
        found = rows.duration_ps(library, "softmax", [x], [x])
        moved = 2 * rows_ * columns * dtype.itemsize * (1 + few / rows_)
        _near(found, _ps(moved, element * rows_ * columns, share=share))


@pytest.mark.parametrize(("axes", "share"), [((), 88), ((1,), 88), ((-1,), 88), ((0,), 50)])
def test_sums_along_rows_and_columns(library: Library, axes: tuple[int, ...], share: int) -> None:
    small = _contiguous(1024, 1024)
    found = rows.sum_ps(library, small, axes, [_contiguous(1024)])
    _near(found, _ps(1024 * 1024 * 4 + 4096, share=share))
    found = rows.sum_ps(library, _X, axes, [_contiguous(4096)])
    _near(found, _ps(_MB + 16384, share=share, launches=6))


@pytest.mark.parametrize(
    ("rows_", "columns", "us"), [(25216, 768, 32.8), (12544, 384, 17.3), (200704, 96, 56.8)]
)
def test_few_columns_of_many_rows_take_a_time_a_row(
    library: Library, rows_: int, columns: int, us: float
) -> None:
    half = dtypes.bfloat16
    summed = _contiguous(rows_, columns, dtype=half)
    found = rows.sum_ps(library, summed, (0,), [_contiguous(columns, dtype=half)])
    assert found / 1e6 == pytest.approx(us, rel=0.35)


def test_an_embedding_reads_the_rows_that_are_looked_up(library: Library) -> None:
    ids, out = _contiguous(4096, dtype=dtypes.int64), _contiguous(4096, 1024)
    found = indexing.embedding_ps(library, ids, out)
    _near(found, _ps(2 * 4096 * 1024 * 4 + 4096 * 8, share=84))


def test_many_indices_are_sorted_before_rows_are_added(library: Library) -> None:
    table = _contiguous(50_000, 64)
    zeros = pointwise.fill_ps(library, "fill", [table])
    for count, element, launches in ((3072, 100, 1), (3073, 400, 92)):
        grad, ids = _contiguous(count, 64), _contiguous(count, dtype=dtypes.int64)
        found = indexing.embedding_backward_ps(library, grad, ids, table)
        nbytes, operations = 3 * count * 256 + count * 8, element * count * 64
        _near(found - zeros, _ps(nbytes, operations, share=96, launches=launches))


def test_a_target_in_place_is_not_copied(library: Library) -> None:
    table, moved = _contiguous(100_000, 64), [_contiguous(500, 64)]
    in_place = indexing.scatter_ps(library, table, moved)
    copied = indexing.scatter_ps(library, table, moved, [table, table])
    _near(copied - in_place, _ps(2 * 100_000 * 64 * 4, share=96))


def test_launches_of_lists_are_bounded_by_tensors_and_by_chunks() -> None:
    # depth_to_max_tensors, depth_to_max_blocks and kChunkSize of PyTorch's MultiTensorApply.cuh
    assert [lists.launches_of([10] * 110, n) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]
    assert lists.launches_of([65536 * 320], 1) == 1
    assert lists.launches_of([65536 * 320 + 1], 1) == 2


def test_a_product_with_a_type_that_has_no_rate_is_one_of_the_math_engines() -> None:
    library = Library(_IDEAL)
    sizes = products.Sizes(1, 64, 64, 64)
    found = products.duration_ps(library, None, sizes, 1000)
    assert found == library.elementwise(1000, 64**3)


def test_equal_prices_of_equal_operands_are_kept_once(library: Library) -> None:
    for _ in range(3):
        priced(library, "aten::sum", of_sum((0, 1)), [_X], [_contiguous()])
        priced(library, "tp::add", of_bytes(1000), [_X], [_X])
        priced(library, "aten::add", None, [_X, _X], [_X])
    assert len(library.priced) == 3


def test_the_kernels_of_prices_are_those_of_machine_files() -> None:
    named = {price.detail for price in PRICES.values() if isinstance(price.detail, str)}
    assert named <= set(KERNELS)


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(shapes, st.permutations(range(4)))
def test_any_order_of_dimensions_is_dense(shape: tuple[int, ...], order: list[int]) -> None:
    plain = _contiguous(*shape)
    axes = [axis for axis in order if axis < len(shape)]
    turned = Layout(
        tuple(shape[axis] for axis in axes),
        tuple(plain.strides[axis] for axis in axes),
        dtypes.float32,
    )
    assert is_dense(turned)
    assert finding(Library(_H200), turned, turned) == 0


@given(shapes, st.integers(0, 3))
def test_an_expanded_dimension_is_read_once(shape: tuple[int, ...], place: int) -> None:
    plain = _contiguous(*shape)
    place = min(place, len(shape))
    expanded = Layout(
        (*shape[:place], 7, *shape[place:]),
        (*plain.strides[:place], 0, *plain.strides[place:]),
        dtypes.float32,
    )
    assert bytes_of(expanded) == bytes_of(plain)


@pytest.mark.parametrize(
    ("columns", "share"),
    [
        (50264, None),  # 100528 bytes a row, a multiple of 16
        (50258, 33),  # 100516 bytes, a multiple of 4
        (50257, 17),  # 100514 bytes, a multiple of 2
    ],
)
def test_rows_that_begin_anywhere_are_multiplied_by_older_kernels(
    columns: int, share: int | None
) -> None:
    library = Library(_H200)
    x, weight = (_contiguous(4096, 1024, dtype=dtypes.bfloat16) for _ in range(2))
    weight = _turned(_contiguous(columns, 1024, dtype=dtypes.bfloat16))
    out = _contiguous(4096, columns, dtype=dtypes.bfloat16)
    sizes = products.Sizes(1, 4096, columns, 1024)
    found = products.duration_ps(library, x.dtype, sizes, 0, operands=(x, weight, out))

    # Tiles of 128 x 320, edges of 24, at the engines' 7.49 TFLOP/s of each of 132 PEs.
    waves = ceil(32 * ceil(columns / 320) / 132)
    tile = 2 * 1024 * (128 * 320 + 24 * (128 + 320)) / 7.49e12
    if share is None:
        assert found == library.matmul("bf16", 4096, columns, 1024, 0)
    else:
        assert found == pytest.approx(1.3e6 + waves * tile * 1e12 * 100 / share, rel=0.05)
    # An odd number of rows changes nothing, nor what is summed over where it is no row.
    sums = products.Sizes(1, 1024, 4096, 4095)
    left, right = (
        _turned(_contiguous(4095, 1024, dtype=x.dtype)),
        _contiguous(4095, 4096, dtype=x.dtype),
    )
    given = (left, right, _contiguous(1024, 4096, dtype=x.dtype))
    assert products.duration_ps(library, x.dtype, sums, 0, operands=given) == library.matmul(
        "bf16", 1024, 4096, 4095, 0
    )
