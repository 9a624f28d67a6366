"""Bins of time: against counting one picosecond after another."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kernbench.pages.bins import Bins
from kernbench.report.intervals import union

spans = st.tuples(st.integers(-5, 20), st.integers(1, 40)).map(lambda t: (t[0], t[0] + t[1]))
intervals = st.lists(
    st.tuples(st.integers(-10, 60), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1])),
    max_size=10,
)
counts = st.integers(1, 12)


@given(spans, counts)
def test_bins_cut_a_span_into_nearly_equal_parts(span: tuple[int, int], most: int) -> None:
    bins = Bins(*span, most)
    lengths = bins.lengths()
    assert (bins.start, bins.end, bins.span) == (*span, span[1] - span[0])
    assert sum(lengths) == span[1] - span[0]
    assert len(lengths) == min(most, span[1] - span[0])
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1


@given(spans, counts, intervals)
def test_busy_times_are_the_covered_picoseconds(
    span: tuple[int, int], most: int, found: list[tuple[int, int]]
) -> None:
    bins = Bins(*span, most)
    covered = {time for start, end in found for time in range(start, end)}
    edges = bins.edges
    expected = [
        sum(time in covered for time in range(edges[place], edges[place + 1]))
        for place in range(len(edges) - 1)
    ]
    assert bins.busy(union(found)) == expected


@given(spans, counts, intervals, st.integers(0, 10**9))
def test_an_even_flow_is_spread_without_loss(
    span: tuple[int, int], most: int, found: list[tuple[int, int]], amount: int
) -> None:
    bins = Bins(*span, most)
    for start, end in found:
        sums = [0] * len(bins.lengths())
        bins.spread(sums, start, end, amount)
        for place, part in enumerate(sums):
            inside = max(0, min(end, bins.edges[place + 1]) - max(start, bins.edges[place]))
            exact = Fraction(amount * inside, end - start) if inside else Fraction(0)
            assert abs(part - exact) < 1
        if span[0] <= start < end <= span[1]:
            assert sum(sums) == amount


@given(
    spans,
    counts,
    st.lists(st.tuples(st.integers(-10, 70), st.integers(-5, 9)), max_size=12).map(
        lambda changes: sorted(changes, key=lambda change: change[0])
    ),
)
def test_the_highest_level_is_that_of_its_bin(
    span: tuple[int, int], most: int, changes: list[tuple[int, int]]
) -> None:
    bins = Bins(*span, most)
    expected, edges = [], bins.edges
    for place in range(len(edges) - 1):
        last = place == len(edges) - 2
        before = sum(nbytes for time, nbytes in changes if time < edges[place]) if place else 0
        levels = [before]
        for time, nbytes in changes:
            if (not place or time >= edges[place]) and (last or time < edges[place + 1]):
                levels.append(levels[-1] + nbytes)
        expected.append(max(levels))
    assert bins.highest(changes) == expected
