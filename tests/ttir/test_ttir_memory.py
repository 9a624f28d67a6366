"""Loads and stores of tiles, against one element after the other; sums against whole arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ttir_texts import FIRST, Array

from kernbench.ttir.frames import taken
from kernbench.ttir.memory import Allocation, Memory, OutsideError
from kernbench.ttir.sums import Shared, Sum, added, multiplied, plain, subtracted, summed

COUNT = 400


def memory(dtype: Any = np.int32) -> tuple[Memory, Array]:
    elements = np.arange(COUNT).astype(dtype)
    return Memory({0: Allocation("argument 0", FIRST, elements.view(np.uint8))}), elements


MASKS = ("none", "columns", "any", "program", "nothing")


@st.composite
def accesses(draw: Any, kind: str) -> tuple[Any, tuple[int, int], Array | None]:
    """Draws addresses of a tile of every program, in one of the forms that values have."""
    programs, shape = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([(4, 8), (1, 4)]))
    column_step = draw(st.sampled_from([1, -1, 2, 0, 3]))
    row_step, base = draw(st.integers(-9, 9)), draw(st.integers(120, 160))
    per_program = np.arange(programs).reshape(-1, 1, 1) * draw(st.sampled_from([0, 5, 16]))
    rows = (base + np.arange(shape[0]) * row_step).reshape(1, -1, 1)
    columns = (np.arange(shape[1]) * column_step).reshape(1, 1, -1)
    parts = [FIRST + 4 * (per_program + rows), 4 * columns]
    address = Sum(parts) if draw(st.booleans()) else parts[0] + parts[1]
    masks: dict[str, Callable[[], Array | None]] = {
        "none": lambda: None,
        "columns": lambda: (np.arange(shape[1]) < draw(st.integers(1, 8))).reshape(1, 1, -1),
        "any": lambda: np.array(
            draw(
                st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
            )
        ).reshape(1, *shape),
        "program": lambda: (np.arange(programs) % 2 == 0).reshape(-1, 1, 1),
        "nothing": lambda: np.zeros((1, 1, 1), np.bool_),
    }
    return address, shape, masks[kind]()


def whole(address: Any, shape: tuple[int, int], mask: Array | None) -> tuple[Array, Array]:
    """Returns indices and mask of all elements."""
    found = plain(address)
    count = max(found.shape[0], 1 if mask is None else mask.shape[0])
    indices = np.broadcast_to((found - FIRST) // 4, (count, *shape))
    return indices, np.broadcast_to(True if mask is None else mask, indices.shape)


@pytest.mark.parametrize("masked", [False, True])
def test_tiles_that_programs_share_are_those_of_each_program(masked: bool) -> None:
    elements = np.arange(4096, dtype=np.float32)
    part = Allocation("x", FIRST, elements.view(np.uint8))
    first = np.array([7, 0, 7, 0, 7, 7]).reshape(6, 1, 1)
    rows, columns = (
        64 * first + 70 * np.arange(16).reshape(1, 16, 1),
        np.arange(32).reshape(1, 1, 32),
    )
    address, mask = Sum([FIRST + 4 * rows, 4 * columns]), columns % 3 > 0 if masked else None

    found = Memory({0: part}).load(address, (16, 32), elements.dtype, mask, None, 0)

    assert isinstance(found, Shared)
    assert len(found.tiles) == 2
    expected = elements[rows + columns] * (1 if mask is None else mask)
    np.testing.assert_array_equal(plain(found), expected)
    assert part.loaded == 6 * 16 * 32 * 4  # as often as programs have read them
    some = taken(found, np.array([1, 4]))
    assert isinstance(some, Shared)
    np.testing.assert_array_equal(plain(some), expected[[1, 4]])


@pytest.mark.parametrize("kind", MASKS)
@given(data=st.data(), other=st.sampled_from([None, "one", "each"]))
def test_windows_are_what_single_elements_are(kind: str, data: Any, other: str | None) -> None:
    address, shape, mask = data.draw(accesses(kind))
    store, elements = memory()
    indices, active = whole(address, shape, mask)
    others = {None: None, "one": np.full((1, 1, 1), -7, np.int32)}.get(other)
    if other == "each":
        others = -np.arange(3 * shape[0] * shape[1], dtype=np.int32).reshape(3, *shape)
        others = others[: indices.shape[0]] if indices.shape[0] > 1 else others
    left_out = mask is not None and not mask.all()  # else nobody looks at what it says

    found = store.load(address, shape, elements.dtype, mask, others if left_out else None, 0)

    count = max(indices.shape[0], found.shape[0])
    expected = [
        int(elements[indices[program % indices.shape[0]][lane]])
        if active[program % indices.shape[0]][lane]
        else 0
        if others is None
        else int(np.broadcast_to(others, (count, *shape))[program][lane])
        for program in range(count)
        for lane in np.ndindex(shape)
    ]
    assert np.broadcast_to(plain(found), (count, *shape)).reshape(-1).tolist() == expected


@pytest.mark.parametrize("kind", MASKS)
@given(data=st.data())
def test_stores_leave_what_the_last_program_and_lane_wrote(kind: str, data: Any) -> None:
    address, shape, mask = data.draw(accesses(kind))
    store, elements = memory()
    indices, active = whole(address, shape, mask)
    values = 1000 + np.arange(indices.size, dtype=np.int32).reshape(indices.shape)
    expected = elements.copy()
    for place in np.ndindex(indices.shape):
        if active[place]:
            expected[indices[place]] = values[place]

    store.store(address, shape, values, mask, 0)

    assert elements.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float64])
def test_windows_of_every_width(dtype: Any) -> None:
    store, elements = memory(dtype)
    size = elements.dtype.itemsize
    address = FIRST + size * np.arange(8, dtype=np.int64)[None]

    store.store(address + 8 * size, (8,), np.ones((1, 8), dtype), None, 0)

    found = store.load(address, (8,), elements.dtype, None, None, None)
    assert plain(found).tolist() == [np.arange(8).astype(dtype).tolist()]
    assert elements[8:16].tolist() == [1] * 8


@pytest.mark.parametrize(
    ("offsets", "lanes", "misaligned"),
    [
        ([4 * COUNT - 4, 4 * COUNT], [1], False),
        ([-4, 0], [0], False),
        ([2, 6], [0, 1], True),
        ([4 * COUNT - 2, 0], [0], False),
    ],
)
@pytest.mark.parametrize("root", [0, None])
def test_elements_outside_are_told(
    offsets: list[int], lanes: list[int], misaligned: bool, root: int | None
) -> None:
    store, elements = memory()
    address = FIRST + np.array([offsets], np.int64)

    with pytest.raises(OutsideError) as caught:
        store.load(address, (2,), elements.dtype, None, None, root)

    assert np.flatnonzero(caught.value.bad).tolist() == lanes
    assert caught.value.misaligned == misaligned


def test_a_pointer_of_one_argument_may_not_touch_another() -> None:
    arrays = [np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32)]
    near = [
        Allocation(f"argument {n}", FIRST + 16 * n, a.view(np.uint8)) for n, a in enumerate(arrays)
    ]
    store = Memory(dict(enumerate(near)))
    address = FIRST + 4 * np.arange(8, dtype=np.int64)[None]

    with pytest.raises(OutsideError) as caught:
        store.load(address, (8,), arrays[0].dtype, None, None, 0)

    assert caught.value.allocation is near[0]
    both = store.load(address, (8,), arrays[0].dtype, None, None, None)  # of unknown memory
    assert plain(both).tolist() == [[0, 1, 2, 3] * 2]


SMALL = [-(2**31), -(2**31) + 1, -70000, -3, -1, 0, 1, 2, 50000, 2**30, 2**31 - 1]


@st.composite
def parts(draw: Any) -> list[Array]:
    """Draws arrays of which some vary by program, row or column."""
    shapes = draw(
        st.lists(st.sampled_from([(1, 3, 1), (1, 1, 2), (2, 1, 1), (2, 3, 1)]), max_size=3)
    )
    return [
        np.array(
            draw(
                st.lists(st.sampled_from(SMALL), min_size=int(np.prod(s)), max_size=int(np.prod(s)))
            ),
            np.int32,
        ).reshape(s)
        for s in [(1, 1, 1), *shapes]
    ]


def folded(kind: list[Array]) -> Any:
    value: Any = kind[0]
    for part in kind[1:]:
        value = added(value, part)
    return value


@given(first=parts(), second=parts(), way=st.sampled_from(["add", "subtract", "multiply"]))
def test_sums_that_are_put_off_wrap_around_as_arrays_do(
    first: list[Array], second: list[Array], way: str
) -> None:
    functions: dict[str, tuple[Any, Any]] = {
        "add": (added, np.add),
        "subtract": (subtracted, np.subtract),
        "multiply": (multiplied, np.multiply),
    }
    late, at_once = functions[way]
    whole = [np.sum(np.broadcast_arrays(*each), axis=0, dtype=np.int32) for each in (first, second)]

    found = late(folded(first), folded(second))

    expected = np.broadcast_to(at_once(*whole), np.broadcast_shapes(*(w.shape for w in whole)))
    assert np.broadcast_to(plain(found), expected.shape).tolist() == expected.tolist()
    if isinstance(found, Sum):  # wider, the parts are still the same numbers
        wide = plain(summed(part.astype(np.int64) for part in found.parts))
        assert np.broadcast_to(wide, expected.shape).tolist() == expected.tolist()


def test_a_column_and_a_row_stay_two_parts() -> None:
    rows, columns = (np.arange(64, dtype=np.int32).reshape(s) for s in [(1, 64, 1), (1, 1, 64)])

    found = added(multiplied(added(rows, columns), np.array([[[100]]], np.int32)), columns)

    assert isinstance(found, Sum)
    assert [part.size for part in found.parts] == [64, 64]
    assert found.shape == (1, 64, 64)
    assert plain(found)[0, 3, 5] == 805
