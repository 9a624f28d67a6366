"""Prices that know their parts: the same numbers, and parts that add up to them."""

from collections.abc import Callable
from math import ceil

import both_torches
import pytest

from kernbench.attention.bands import Band
from kernbench.hw.attention import Shape
from kernbench.hw.explained import Explained, ExplainedLibrary, Spent
from kernbench.hw.library import Library
from kernbench.kernels import (
    attention,
    convolutions,
    indexing,
    lists,
    norms,
    pointwise,
    products,
    rows,
)
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import Layout
from kernbench.kernels.products import Sizes
from kernbench.memory import DType, dtypes
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

_H200 = load_topology("h200x8").topology_obj.machine.system.sip
_IDEAL = load_topology("sip8").topology_obj.machine.system.sip
_LAUNCH = 1_300_000
_BYTES_PER_PS = 4.45


def _contiguous(*shape: int, dtype: DType = dtypes.bfloat16) -> Layout:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return Layout(shape, tuple(reversed(strides)), dtype)


_X = _contiguous(4096, 4096)
_IMAGE, _WEIGHT = _contiguous(32, 64, 56, 56), _contiguous(64, 64, 3, 3)
_CONVOLUTION = Convolution(_IMAGE, _WEIGHT, _IMAGE, (1, 1), 1, False)

_HEADS = _contiguous(1, 2, 256, 64)
_SEEN = ((Band(0, 256, 0, 256, 0, 256),),)

FAMILIES: dict[str, Callable[[Library], int]] = {
    "pointwise": lambda library: pointwise.duration_ps(library, "gelu", [_X], [_X]),
    "fill": lambda library: pointwise.fill_ps(library, "normal", [_X]),
    "rows": lambda library: rows.duration_ps(library, "softmax_backward", [_X, _X], [_X]),
    "layer_norm": lambda library: norms.layer_norm_ps(library, [_X, _X], _X, 4096),
    "group_norm": lambda library: norms.group_norm_backward_ps(library, _IMAGE),
    "batch_norm": lambda library: norms.batch_norm_ps(library, _IMAGE),
    "convolution": lambda library: convolutions.forward_ps(library, _CONVOLUTION, _X),
    "gradients": lambda library: convolutions.backward_ps(library, _CONVOLUTION),
    "accumulate": lambda library: indexing.accumulate_ps(library, _X, [_X], _X, [_X, _X]),
    "lists": lambda library: lists.duration_ps(
        library, "foreach", [1 << 20] * 100, 3 << 27, lists=3, passes=3, reduces=True
    ),
    "product": lambda library: products.duration_ps(
        library, dtypes.bfloat16, Sizes(1, 512, 4096, 1024), 13 << 20
    ),
    "few tiles": lambda library: products.duration_ps(
        library, dtypes.bfloat16, Sizes(1, 128, 128, 1024), 1 << 20
    ),
    "split": lambda library: products.duration_ps(
        library, dtypes.float32, Sizes(1, 512, 512, 512), 3 << 20
    ),
    "groups": lambda library: products.grouped_ps(
        library, dtypes.bfloat16, [Sizes(1, 4096, 2048, 1024), Sizes(1, 1, 2048, 1024)], 0
    ),
    "attention": lambda library: attention.duration_ps(
        library, "flash", "forward", (_HEADS, _HEADS, _HEADS), _SEEN, 1 << 20
    ),
    "vector": lambda library: products.duration_ps(
        library, dtypes.bfloat16, Sizes(1, 1, 4096, 1024), 8 << 20
    ),
}


@pytest.mark.parametrize("sip", [_H200, _IDEAL], ids=["h200", "ideal"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_same_price_and_its_parts_add_up(name: str, sip: object) -> None:
    found = FAMILIES[name](ExplainedLibrary(sip))  # type: ignore[arg-type]
    expected = FAMILIES[name](Library(sip))  # type: ignore[arg-type]

    assert isinstance(found, Explained)
    assert found == found.plain == expected
    assert type(found.plain) is type(expected)  # whether it leaves room for others beside it
    assert sum(part.ps for part in found.parts.values()) == found
    assert not [key for key in found.parts if key[0] == "other"]


def test_both_torches_operations_are_explained_to_the_end() -> None:
    def noted(torch: object, engine: GraphEngine) -> dict[str, object]:
        both_torches.device_times(torch, engine)
        both_torches.names_of(torch, engine)
        return {"prices": [each.price for each in engine.op_log.records if each.category != "copy"]}

    prices = both_torches.of_own_torch(noted)["prices"]

    assert len(prices) > len(both_torches.NAMED)
    for price in prices:
        assert sum(part.ps for part in price.parts.values()) == price
        assert not [key for key in price.parts if key[0] == "other"]


def test_traffic_over_a_share_of_the_bandwidth_is_bound_by_hbm() -> None:
    """softmax_backward: 47 % of 4.45 TB/s, 2 launches, 180000 operations a row of 4096."""
    found = FAMILIES["rows"](ExplainedLibrary(_H200))
    assert isinstance(found, Explained)
    nbytes = 3 * 2 * 4096 * 4096

    law = "kernels.softmax_backward"
    assert found.parts["launch", law] == Spent(_LAUNCH, _LAUNCH)
    assert found.parts["launch", ""] == Spent(_LAUNCH, _LAUNCH)
    streamed = found.parts["HBM", law]
    assert streamed.ps == ceil(nbytes * 100 // 47 / _BYTES_PER_PS)
    assert streamed.roof == ceil(nbytes / _BYTES_PER_PS)
    assert len(found.parts) == 3


def test_operations_that_take_longer_are_bound_by_the_math_engines() -> None:
    """normal: 77 operations an element, at 132 times 253 GFLOP/s."""
    found = FAMILIES["fill"](ExplainedLibrary(_H200))
    assert isinstance(found, Explained)
    took = ceil(77 * 4096 * 4096 * 10**12 / (132 * 253 * 10**9))
    assert found.parts["math", "kernels.normal"] == Spent(took, took)


def test_operations_of_another_kernel_have_its_law() -> None:
    """Finding the elements of a row that is added costs `broadcast`, whatever the bytes cost."""
    row = Layout((4096, 4096), (0, 1), dtypes.bfloat16)
    found = pointwise.duration_ps(ExplainedLibrary(_H200), "pointwise", [_X, row], [_X])
    assert isinstance(found, Explained)
    assert [*found.parts] == [("launch", "kernels.pointwise"), ("math", "kernels.broadcast")]


def test_a_large_product_is_bound_by_the_tensor_engines_and_a_thin_one_by_hbm() -> None:
    library = ExplainedLibrary(_H200)
    large = library.matmul("bf16", 8192, 8192, 8192, 3 * 2 * 8192**2)
    thin = library.matmul("bf16", 16, 8192, 8192, 2 * (2 * 16 * 8192 + 8192**2))

    fixed = _LAUNCH + 400_000  # and `library.start`
    roof = ceil(2 * 8192**3 * 10**12 / (132 * 7.49e12))
    assert isinstance(large, Explained)
    assert isinstance(thin, Explained)
    assert large.parts["launch", "pe.gemm"].ps == fixed
    assert large.parts["tensor", "pe.gemm"] == Spent(large - fixed, roof)
    assert [key[0] for key in thin.parts] == ["launch", "HBM"]


def test_a_sum_that_is_split_goes_through_the_l2() -> None:
    """fp32, 512^3, is split in two: both halves are written and read, and their sum is written.

    Five times 512 x 512 sums of 4 bytes, at 5.7 TB/s.
    """
    found = ExplainedLibrary(_H200).matmul("fp32", 512, 512, 512, 3 * 4 * 512**2)
    assert isinstance(found, Explained)
    assert found.parts["L2", "pe.gemm"].ps == ceil(5 * 4 * 512**2 / 5.7)


def test_attention_counts_two_products_of_what_is_seen() -> None:
    library = ExplainedLibrary(_H200)
    rows_, heads, width = 4096, 32, 128
    seen = ((Band(0, rows_, 0, rows_, 0, rows_),),)
    shape = Shape(1, heads, heads, width, width)
    found = library.attention(
        "flash", "forward", "bf16", shape, seen, 4 * 2 * heads * rows_ * width
    )

    assert isinstance(found, Explained)
    pairs = sum(rows_ - row for row in range(rows_))  # query i sees keys i to the last
    roof = ceil(heads * 4 * pairs * width * 10**12 / (132 * 7.49e12))
    assert found.parts["tensor", "pe.attention.flash"].roof == roof
    assert found.parts["launch", "pe.attention.flash"].ps == _LAUNCH + 1_700_000


def test_arithmetic_keeps_the_parts() -> None:
    one = Explained(10, {("HBM", "a"): Spent(7, 5), ("launch", "a"): Spent(3, 3)})
    other = Explained(4, {("launch", "a"): Spent(3, 3), ("math", "b"): Spent(1, 1)})

    assert (one + other).parts == {
        ("HBM", "a"): (7, 5),
        ("launch", "a"): (6, 6),
        ("math", "b"): (1, 1),
    }
    assert sum([one, other]) == 14
    assert (one - other).parts == {("HBM", "a"): (7, 5), ("math", "b"): (-1, -1)}
    assert (2 * one).parts == (one * 2).parts == (one + one).parts
    assert (one + 5).parts["other", ""] == (5, 5)
    assert -(-one // 3) == 4  # rounded up
    assert (-(-one // 3)).parts == {("HBM", "a"): (3, 2), ("launch", "a"): (1, 2)}
    assert type((one + other).plain) is int
    assert max(one, other) is one
