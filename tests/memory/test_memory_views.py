"""Views are views, poison is seen, and every byte knows whether it was written."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import call_site
from kernbench.memory import Allocator, Buffer, DType, Space, Storage, View, dtypes
from kernbench.memory.storage import UninitialisedReadError

NBYTES = 48
ALL = pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)


def storage(nbytes: int = NBYTES, label: str = "x") -> Storage:
    return Storage(Allocator(Space.HBM, 0, 0, 1 << 20), nbytes, label, call_site())


def offsets(view: View) -> list[int]:
    """The first byte of each element, in C order, by counting."""
    return [
        (view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True)))
        * view.dtype.itemsize
        for index in np.ndindex(*view.shape)
    ]


def covered(view: View) -> set[int]:
    return {byte + extra for byte in offsets(view) for extra in range(view.dtype.itemsize)}


@st.composite
def views(draw: st.DrawFn, overlapping: bool = True) -> tuple[Any, ...]:
    """Shape, strides, offset and type of a window on NBYTES bytes."""
    dtype: DType = draw(
        st.sampled_from([dtypes.uint8, dtypes.int16, dtypes.float32, dtypes.float64])
    )
    room = NBYTES // dtype.itemsize
    offset = draw(st.integers(0, room - 1))
    shape, strides, reach = [], [], room - 1 - offset
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(0 if overlapping else 1, 4))
        extent = draw(st.integers(0, 4))
        while stride and (extent - 1) * stride > reach:
            extent -= 1
        reach -= max(0, extent - 1) * stride
        shape.append(extent)
        strides.append(stride)
    return dtype, tuple(shape), tuple(strides), offset


@given(views())
def test_a_view_shows_the_bytes_in_place(window: tuple[Any, ...]) -> None:
    x = storage()
    raw = np.arange(NBYTES, dtype=np.uint8)
    x.buffer.adopt(raw)
    view = View(x.buffer, *window)
    values = view.array()
    expected = [raw[byte : byte + view.dtype.itemsize].tobytes() for byte in offsets(view)]
    assert [value.tobytes() for value in values.reshape(-1)] == expected
    assert (view.numel, view.nbytes) == (prod(view.shape), prod(view.shape) * view.dtype.itemsize)
    if view.numel:
        low, high = view.extent()
        assert (low, high) == (min(covered(view)), max(covered(view)) + 1)
        values[...] = 0
        assert not raw[sorted(covered(view))].any()
        assert raw.any() or len(covered(view)) >= NBYTES - 1
    assert view.array() is values or not view.numel


@given(st.lists(st.tuples(st.booleans(), views(overlapping=False)), max_size=8))
def test_written_tracking_equals_a_set_of_bytes(
    actions: list[tuple[bool, tuple[Any, ...]]],
) -> None:
    x, written = storage(), set[int]()
    x.buffer.poison(dtypes.uint8)
    for writes, window in actions:
        view = View(x.buffer, *window)
        if writes:
            view.write()
            written |= covered(view)
        elif covered(view) <= written:
            view.read()
        else:
            bad = [
                n
                for n, byte in enumerate(offsets(view))
                if not set(range(byte, byte + view.dtype.itemsize)) <= written
            ]
            with pytest.raises(UninitialisedReadError) as caught:
                view.read()
            assert caught.value.summary == (
                f"{len(bad)} of {view.numel} elements of x were never written"
            )
            assert caught.value.facts[0].startswith(
                f"first unwritten element {bad[0]}, last {bad[-1]} "
            )


@given(views(overlapping=False), st.data())
def test_putting_some_elements_marks_those_alone(
    window: tuple[Any, ...], data: st.DataObject
) -> None:
    x = storage()
    x.buffer.poison(dtypes.uint8)
    view = View(x.buffer, *window)
    chosen = np.array(
        data.draw(st.lists(st.booleans(), min_size=view.numel, max_size=view.numel)), np.bool_
    ).reshape(view.shape)
    view.put(chosen, 1)
    assert x.buffer.unwritten is not None
    marked = {
        byte + extra
        for byte, was_put in zip(offsets(view), chosen.reshape(-1), strict=True)
        if was_put
        for extra in range(view.dtype.itemsize)
    }
    assert set(np.flatnonzero(~x.buffer.unwritten).tolist()) == marked
    assert (view.array()[chosen] == 1).all()


@given(views(), views())
def test_overlap_is_a_byte_in_common(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    x = storage()
    a, b = View(x.buffer, *one), View(x.buffer, *two)
    common = bool(covered(a) & covered(b)) if a.numel and b.numel else False
    assert a.overlaps(b) is b.overlaps(a) is common


def test_views_of_interleaved_columns_do_not_overlap() -> None:
    x = storage()
    even, odd = (View(x.buffer, dtypes.float32, (6,), (2,), start) for start in (0, 1))
    assert even.extent()[1] > odd.extent()[0]
    assert not even.overlaps(odd)


@ALL
def test_fresh_memory_is_poisoned_and_tracked(dtype: DType) -> None:
    x = storage(8 * dtype.itemsize)
    x.buffer.poison(dtype)
    view = View(x.buffer, dtype, (8,), (1,), 0)
    values = view.array()
    if dtype.is_floating_point:
        assert np.isnan(values.astype(np.float64)).all()
    elif dtype.is_complex:
        assert np.isnan(values.real).all()
        assert np.isnan(values.imag).all()
    elif dtype is dtypes.bool_:
        assert values.all()
    else:
        assert (values == np.iinfo(dtype.numpy).max).all()
    with pytest.raises(UninitialisedReadError):
        view.read()
    view.write()[...] = 0
    assert not view.read().astype(np.complex128).any()
    assert x.buffer.unwritten is None  # all written: nothing is tracked any more


@ALL
def test_types_know_their_size_and_numpy_dtype(dtype: DType) -> None:
    assert np.empty(3, dtype.numpy).nbytes == 3 * dtype.itemsize
    assert dtypes.from_numpy(dtype.numpy) is dtype
    assert repr(dtype) == f"torch.{dtype.name}"
    wide = dtype.is_floating_point and dtype.itemsize < 4
    assert dtype.accumulator == (np.dtype(np.float32) if wide else dtype.numpy)


def test_a_foreign_numpy_dtype_has_no_type() -> None:
    assert dtypes.from_numpy(np.dtype(np.clongdouble)) is None


def test_reading_what_nobody_wrote_says_which_elements_and_whose() -> None:
    x = storage(label="empty([3, 4], float32)")
    x.buffer.poison(dtypes.float32)
    View(x.buffer, dtypes.float32, (3, 2), (4, 1), 0).write()[...] = 1  # the left half
    assert x.buffer.allocation.site is not None
    with pytest.raises(UninitialisedReadError) as caught:
        View(x.buffer, dtypes.float32, (3, 4), (4, 1), 0).read()
    assert str(caught.value) == "\n".join(
        [
            "[M5] 6 of 12 elements of empty([3, 4], float32) were never written",
            "  first unwritten element 2, last 11 (of the tensor as read, shape (3, 4))",
            f"  allocated at {x.buffer.allocation.site.show()}",
            "  hint: write them first, or make the tensor with zeros() instead of empty()",
        ]
    )


def test_adopted_bytes_are_nobodys_copy_and_all_written() -> None:
    x = storage()
    x.buffer.poison(dtypes.float32)
    view = View(x.buffer, dtypes.float32, (12,), (1,), 0)
    stale = view.array()
    fresh = np.arange(12, dtype=np.float32)
    view.adopt(fresh)
    assert view.read() is fresh
    assert View(x.buffer, dtypes.int32, (1,), (1,), 3).read()[0] == fresh[3:4].view(np.int32)[0]
    assert np.isnan(stale).all()
    fresh[0] = 7
    assert View(x.buffer, dtypes.float32, (), (), 0).read() == 7


def test_an_array_is_made_again_when_the_bytes_were_replaced() -> None:
    x = storage()
    view = View(x.buffer, dtypes.float32, (12,), (1,), 0)
    x.buffer.adopt(np.zeros(12, np.float32))
    before = view.array()
    x.buffer.adopt(np.ones(12, np.float32))
    assert (view.array() == 1).all()
    assert (before == 0).all()


def test_bytes_appear_with_the_first_effect_alone() -> None:
    buffer: Buffer = storage().buffer
    assert (buffer.data, buffer.unwritten) == (None, None)
    with pytest.raises(AssertionError, match="x has no bytes"):
        View(buffer, dtypes.float32, (12,), (1,), 0).array()


def test_an_empty_view_reads_and_writes_nothing() -> None:
    x = storage()
    x.buffer.poison(dtypes.float32)
    view = View(x.buffer, dtypes.float32, (3, 0), (1, 1), 0)
    assert view.read().shape == view.write().shape == (3, 0)
    assert x.buffer.unwritten is not None
    assert x.buffer.unwritten.all()


def test_lent_bytes_are_copied_by_whoever_writes_them() -> None:
    memory = Allocator(Space.HBM, 0, 0, None)
    values = np.arange(4, dtype=np.int32)
    buffers = [Buffer(memory.allocate(16, name, None)) for name in "abc"]
    for buffer in buffers:
        buffer.borrow(values.view(np.uint8))
    views = [View(buffer, dtypes.int32, (4,), (1,), 0) for buffer in buffers]
    before = views[0].read()
    views[0].write()[0] = 9
    views[1].put(slice(1, 3), 7)
    assert views[0].array().tolist() == [9, 1, 2, 3]
    assert views[1].array().tolist() == [0, 7, 7, 3]
    assert views[2].array().tolist() == before.tolist() == [0, 1, 2, 3]
    assert [buffer.lent for buffer in buffers] == [False, False, True]
    views[2].adopt(np.zeros(4, np.int32))
    assert not buffers[2].lent
    assert values.tolist() == [0, 1, 2, 3]
