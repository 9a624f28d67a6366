"""Which bytes a window has, and which spans of two accesses meet: against sets of bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.memory import View, dtypes
from kernbench.symmetric.orders import bytes_of
from kernbench.ttir.races import Spans

DIMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=3)


def window(dims: list[tuple[int, int]], offset: int) -> View:
    """Returns a window of 16-bit numbers, by extents and strides, that has no bytes."""
    nothing = None
    shape, strides = (tuple(each) for each in zip(*dims, strict=True)) if dims else ((), ())
    return View(nothing, dtypes.float16, shape, strides, offset)  # type: ignore[arg-type]


def in_a_set(dims: list[tuple[int, int]], offset: int) -> set[int]:
    places = {offset}
    for extent, stride in dims:
        places = {place + at * stride for place in places for at in range(extent)}
    return {byte for place in places for byte in (2 * place, 2 * place + 1)}


def covered(spans: Spans) -> set[int]:
    ends = zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    return {byte for start, end in ends for byte in range(start, end)}


@given(DIMS, st.integers(0, 30), DIMS, st.integers(0, 30))
def test_spans_are_the_bytes_of_a_window(
    one: list[tuple[int, int]], here: int, two: list[tuple[int, int]], there: int
) -> None:
    first, second = bytes_of(window(one, here)), bytes_of(window(two, there))
    mine, theirs = in_a_set(one, here), in_a_set(two, there)
    assert (covered(first), covered(second)) == (mine, theirs)
    assert first.apart
    assert bool((np.diff(first.starts) > 0).all())
    if mine and theirs:
        assert first.within(second) == (mine <= theirs)
    met = first.first_in(second)
    if met is None:
        assert mine.isdisjoint(theirs)
    else:
        low = max(first.starts[met[0]], second.starts[met[1]])
        assert low == min(mine & theirs)
