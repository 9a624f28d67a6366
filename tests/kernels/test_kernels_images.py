"""Prices of convolutions, norms and pools: properties, and measured times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.hw.library import Library
from kernbench.kernels import convolutions, indexing, norms, pooling
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import (
    Layout,
    bytes_of,
    channels_last,
    is_channels_last,
    row_major,
)
from kernbench.memory import DType, dtypes
from kernbench.topology import load_topology

_H200 = Library(load_topology("h200x8").topology_obj.machine.system.sip)
_IDEAL = Library(load_topology("sip8").topology_obj.machine.system.sip)
_BANDWIDTH = 4.45e12
HALF, BRAIN, FLOAT = dtypes.float16, dtypes.bfloat16, dtypes.float32


def _plain(dtype: DType, *shape: int) -> Layout:
    return row_major(Layout(shape, shape, dtype))


def _of(
    dtype: DType,
    sizes: tuple[int, int, int, int],
    window: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    last: bool = False,
) -> Convolution:
    """Returns a convolution of `batch, channels, extent, channels of the result`."""
    batch, channels, extent, outs = sizes
    small = (extent + 2 * (window // 2) - window) // stride + 1
    image = _plain(dtype, batch, channels, extent, extent)
    weight = _plain(dtype, outs, channels // groups, window, window)
    result = _plain(dtype, batch, outs, small, small)
    if last:
        image, weight, result = map(channels_last, (image, weight, result))
    return Convolution(image, weight, result, (stride, stride), groups, tf32=True)


def _forward(*given: object, **more: object) -> int:
    return convolutions.forward_ps(_H200, _of(*given, **more))  # type: ignore[arg-type]


def _data(*given: object, **more: object) -> int:
    made = _of(*given, **more)  # type: ignore[arg-type]
    return convolutions.backward_ps(_H200, made, weight=False)


def _weight(*given: object, **more: object) -> int:
    made = _of(*given, **more)  # type: ignore[arg-type]
    return convolutions.backward_ps(_H200, made, data=False)


@pytest.mark.parametrize(
    ("found", "us"),
    [
        (_forward(BRAIN, (32, 128, 28, 128)), 30.9),
        (_forward(BRAIN, (32, 128, 28, 128), last=True), 17.3),
        (_data(BRAIN, (32, 128, 28, 128)), 30.9),
        (_weight(BRAIN, (32, 128, 28, 128)), 39.4),
        (_forward(FLOAT, (32, 512, 16, 512)), 129.6),
        (_weight(FLOAT, (32, 512, 16, 512)), 228.4),
        (_data(BRAIN, (32, 128, 56, 128), 3, 2), 56.3),
        (_forward(BRAIN, (32, 64, 56, 256), 1), 18.4),
        (_forward(BRAIN, (32, 1024, 14, 256), 1), 27.8),
        (_forward(BRAIN, (32, 2048, 7, 512), 1), 20.6),
        (_forward(BRAIN, (32, 144, 56, 144), groups=144), 142.3),
        (_data(BRAIN, (32, 144, 56, 144), groups=144), 252.1),
        (_weight(BRAIN, (32, 96, 56, 96), 7, groups=96), 658.9),
        (_forward(HALF, (32, 384, 14, 384), 7, groups=384, last=True), 23.7),
        (norms.batch_norm_ps(_H200, _plain(BRAIN, 32, 64, 112, 112)), 400.8),
        (norms.batch_norm_ps(_H200, _plain(FLOAT, 32, 64, 112, 112)), 236.9),
        (norms.batch_norm_backward_ps(_H200, _plain(BRAIN, 32, 64, 112, 112)), 720.5),
        (norms.batch_norm_backward_ps(_H200, _plain(BRAIN, 64, 1024, 14, 14)), 81.7),
        (norms.group_norm_ps(_H200, _plain(BRAIN, 32, 256, 56, 56), 32), 122.4),
        (norms.group_norm_backward_ps(_H200, _plain(BRAIN, 32, 256, 56, 56)), 188.7),
    ],
)
def test_measured_times_within_a_third(found: int, us: float) -> None:
    assert found / 1e6 == pytest.approx(us, rel=0.33)


def test_pools_near_measured_times() -> None:
    large, small = _plain(BRAIN, 32, 64, 112, 112), _plain(BRAIN, 32, 64, 56, 56)
    found = pooling.pool_ps(_H200, "max_pool", large, small, 9)
    assert found / 1e6 == pytest.approx(106.4, rel=0.1)
    found = pooling.pool_backward_ps(_H200, "max_pool", small, large, 9)
    assert found / 1e6 == pytest.approx(302.9, rel=0.1)
    found = pooling.resized_ps(_H200, "nearest", small, large)
    assert found / 1e6 == pytest.approx(70, rel=0.2)


def test_places_that_may_be_the_same_are_sorted_before_they_are_added() -> None:
    target, values = _plain(FLOAT, 2048, 27, 27), _plain(FLOAT, 2048, 351)
    ids = [_plain(dtypes.int64, 351)] * 2
    found = indexing.accumulate_ps(_H200, target, ids, values)
    assert found / 1e6 == pytest.approx(166, rel=0.15)
    assert found > 4 * indexing.scatter_ps(_H200, target, [*ids, values])
    assert indexing.accumulate_ps(_H200, target, ids, values, [target, target]) > found


def test_bags_read_their_rows_and_not_the_table() -> None:
    table, ids, out = (
        _plain(FLOAT, 200_000, 64),
        _plain(dtypes.int64, 32768),
        _plain(FLOAT, 8192, 64),
    )
    assert indexing.bag_ps(_H200, table, ids, out) / 1e6 == pytest.approx(9.7, rel=0.35)
    found = indexing.bag_backward_ps(_H200, out, ids, table)
    assert found / 1e6 == pytest.approx(137.9, rel=0.1)


def test_few_channels_of_a_batch_norm_leave_pes_idle() -> None:
    few, many = _plain(BRAIN, 64, 64, 56, 56), _plain(BRAIN, 64, 1024, 14, 14)
    assert bytes_of(few) == bytes_of(many)
    backward = norms.batch_norm_backward_ps
    assert backward(_H200, few) > 4 * backward(_H200, many)
    assert norms.batch_norm_ps(_IDEAL, few) == norms.batch_norm_ps(_IDEAL, many)


def test_a_transposed_convolution_is_a_data_gradient_and_the_other_way_round() -> None:
    made = _of(BRAIN, (8, 64, 28, 128), 3, 2)
    turned = made._replace(transposed=True)
    forward = convolutions.forward_ps(_H200, turned)
    assert forward == convolutions.backward_ps(_H200, made, weight=False)
    back = convolutions.backward_ps(_H200, turned, weight=False)
    assert back == convolutions.forward_ps(_H200, made)


def test_gradients_add_up_and_a_bias_is_more() -> None:
    made, bias = _of(BRAIN, (8, 64, 28, 128)), _plain(BRAIN, 128)
    both = convolutions.backward_ps(_H200, made)
    assert both == _data(BRAIN, (8, 64, 28, 128)) + _weight(BRAIN, (8, 64, 28, 128))
    assert convolutions.backward_ps(_H200, made, bias=bias) > both
    plain = convolutions.forward_ps(_H200, made)
    moved = 2 * bytes_of(made.result) / _BANDWIDTH * 1e12
    assert convolutions.forward_ps(_H200, made, bias) >= plain + moved


def test_a_machine_that_says_nothing_of_layouts_multiplies_any() -> None:
    made = [_of(BRAIN, (8, 64, 28, 128), last=last) for last in (False, True)]
    first, second = (convolutions.forward_ps(_IDEAL, each) for each in made)
    assert first == second


def test_planes_that_begin_anywhere_cost_more() -> None:
    aligned, odd = ((8, 256, extent, 256) for extent in (16, 15))
    assert _forward(BRAIN, odd, 1) > _forward(BRAIN, aligned, 1)
    assert _forward(BRAIN, odd, 1, last=True) <= _forward(BRAIN, aligned, 1, last=True)


sizes = st.tuples(st.integers(1, 16), st.integers(8, 200), st.integers(4, 40), st.integers(8, 200))


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from([1, 3, 5]), st.sampled_from([HALF, FLOAT]), st.booleans())
def test_no_convolution_is_faster_than_its_bytes_or_than_a_smaller_batch(
    size: tuple[int, int, int, int], window: int, dtype: DType, last: bool
) -> None:
    batch, *rest = size
    for price in (_forward, _data, _weight):
        found = price(dtype, size, window, last=last)
        made = _of(dtype, size, window, last=last)
        moved = sum(map(bytes_of, (made.image, made.weight, made.result)))
        assert found >= moved / _BANDWIDTH * 1e12
        assert price(dtype, (2 * batch, *rest), window, last=last) >= found


@pytest.mark.torch
@given(st.lists(st.integers(1, 4), min_size=4, max_size=5))
def test_formats_are_found_as_pytorch_finds_them(shape: list[int]) -> None:
    torch = pytest.importorskip("torch")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    plain = torch.empty(shape, device="meta")
    for tensor in (plain, plain.to(memory_format=formats[len(shape)]), plain.transpose(1, 2)):
        given_as = Layout(tuple(tensor.shape), tensor.stride(), FLOAT)
        suggested = torch._prims_common.suggest_memory_format(tensor)
        assert is_channels_last(given_as) == (suggested is formats[len(shape)])


def test_a_gradient_of_a_bias_is_a_sum_more() -> None:
    for last in (False, True):
        made = _of(BRAIN, (32, 128, 28, 128), last=last)
        bias = _plain(BRAIN, 128)
        without = convolutions.backward_ps(_H200, made)
        assert convolutions.backward_ps(_H200, made, bias=bias) > without
        alone = convolutions.backward_ps(_H200, made, data=False, weight=False, bias=bias)
        assert alone == convolutions.backward_ps(_H200, made, bias=bias) - without


def test_operands_of_two_formats_are_copied_first() -> None:
    plain, last = (_of(BRAIN, (32, 128, 28, 128), last=last) for last in (False, True))
    both = last._replace(image=plain.image)
    assert convolutions.forward_ps(_H200, both) > convolutions.forward_ps(_H200, last)


def test_nothing_to_multiply_is_a_launch() -> None:
    launch = _H200.elementwise(0, 0)
    assert _forward(BRAIN, (0, 128, 28, 128)) == launch
    assert convolutions.forward_ps(_IDEAL, _of(BRAIN, (0, 8, 8, 8))) == _IDEAL.elementwise(0, 0)


@pytest.mark.parametrize("price", [_forward, _data, _weight])
def test_few_channels_take_no_longer_than_a_whole_vector_of_them_by_much(price: object) -> None:
    """They are padded, which moves more, and then multiplied as so many."""
    assert callable(price)
    few, eight = (price(BRAIN, (64, channels, 112, 64), 7, 2) for channels in (3, 8))
    assert 0.2 * eight < few < 10 * eight
    assert price(BRAIN, (64, 3, 112, 64), 7, 2, last=True) <= few


@pytest.mark.parametrize("last", [False, True])
def test_pools_and_sizes_move_their_bytes(last: bool) -> None:
    large, small = (_plain(FLOAT, 16, 64, extent, extent) for extent in (64, 32))
    if last:
        large, small = channels_last(large), channels_last(small)
    least = (bytes_of(large) + bytes_of(small)) / _BANDWIDTH * 1e12
    for kernel in ("adaptive_pool", "adaptive_pool_backward"):
        assert pooling.adaptive_ps(_H200, kernel, large, small) >= least
    for kernel in ("nearest", "bilinear"):
        assert pooling.resized_ps(_H200, kernel, small, large) >= least
        assert pooling.resized_ps(_H200, f"{kernel}_backward", large, small) >= least
    for kernel in ("max_pool", "avg_pool"):
        assert pooling.pool_ps(_H200, kernel, large, small, 4) >= least
        assert pooling.pool_backward_ps(_H200, kernel, small, large, 4) >= least


@pytest.mark.parametrize("dtype", [BRAIN, FLOAT])
@pytest.mark.parametrize("last", [False, True])
def test_norms_of_images_move_their_bytes(dtype: DType, last: bool) -> None:
    image = _plain(dtype, 16, 64, 32, 32)
    if last:
        image = channels_last(image)
    least = bytes_of(image) / _BANDWIDTH * 1e12
    forward = norms.batch_norm_ps(_H200, image)
    assert forward >= norms.batch_norm_ps(_H200, image, training=False) >= 2 * least
    assert norms.batch_norm_backward_ps(_H200, image) >= 3 * least
    assert norms.group_norm_ps(_H200, image, 1) >= 2 * least
    every = norms.group_norm_backward_ps(_H200, image)
    assert every >= norms.group_norm_backward_ps(_H200, image, weights=False) >= 2 * least
    assert every >= norms.group_norm_backward_ps(_H200, image, data=False)
