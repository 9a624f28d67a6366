"""Rows are the tokens they should be; bands and tiles hold each visible pair once, and no other."""

import numpy as np
import pytest
from drawn_attention import PADDING, Case, cases, tokens
from hypothesis import given
from hypothesis import strategies as st

from kernbench.attention.bands import CAUSAL, EVERYTHING, Band, Mask, bands, hidden, tiles
from kernbench.attention.rows import Segment, in_order, share


def test_one_sequence() -> None:
    assert in_order(5) == (Segment(0, 0, 5, 0),)
    assert in_order(0) == ()


def test_a_zigzag_of_one_sequence() -> None:
    assert share([0, 8], [0, 8], 2, 0) == (Segment(0, 0, 2, 0), Segment(2, 6, 2, 0))
    assert share([0, 8], [0, 8], 2, 1) == (Segment(0, 2, 2, 0), Segment(2, 4, 2, 0))


def test_padding_belongs_to_no_segment() -> None:
    cu, cu_padded = [0, 3, 3, 8], [0, 4, 8, 16]
    assert share(cu, cu_padded) == (Segment(0, 0, 3, 0), Segment(8, 0, 5, 2))
    assert share(cu, cu_padded, 2, 0) == (Segment(0, 0, 1, 0), Segment(4, 0, 2, 2))
    assert share(cu, cu_padded, 2, 1) == (
        Segment(0, 1, 1, 0),
        Segment(1, 2, 1, 0),
        Segment(4, 2, 2, 2),
        Segment(6, 4, 1, 2),
    )


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 64)), max_size=4),
)
def test_ranks_share_all_tokens(parts: int, drawn: list[tuple[int, int]]) -> None:
    rooms = [2 * parts * chunk for chunk, _ in drawn]
    used = [min(room, most) for room, (_, most) in zip(rooms, drawn, strict=True)]
    cu, cu_padded = (np.cumsum([0, *each]).tolist() for each in (used, rooms))
    found: list[tuple[int, int]] = []
    for part in range(parts):
        each = tokens(share(cu, cu_padded, parts, part), cu_padded[-1] // parts)
        real = each.sequence != PADDING
        found += zip(each.sequence[real].tolist(), each.position[real].tolist(), strict=True)
        # A rank has two chunks of each sequence: one from the front, its mirror from the back.
        for sequence, room in enumerate(rooms):
            places = each.position[each.sequence == sequence]
            chunk = max(room // (2 * parts), 1)
            assert {int(place) // chunk for place in places} <= {part, 2 * parts - 1 - part}
    assert sorted(found) == [(n, place) for n, length in enumerate(used) for place in range(length)]


def _pairs(band: Band) -> list[tuple[int, int]]:
    return [
        (band.query + i, band.key + j)
        for i in range(band.queries)
        for j in range(band.keys)
        if i + band.first <= j < i + band.stop
    ]


@given(cases())
def test_bands_hold_what_is_seen(case: Case) -> None:
    expected = [tuple(pair) for pair in np.argwhere(case.visible()).tolist()]
    found = bands(case.queries, case.keys, case.mask)
    assert sorted(pair for band in found for pair in _pairs(band)) == expected
    for band in found:
        pairs = _pairs(band)
        assert band.seen() == len(pairs)
        assert len({query for query, _ in pairs}) == band.queries, "each query sees a key"
        assert len({key for _, key in pairs}) == band.keys, "each key is seen"


@given(cases(), st.integers(1, 9), st.integers(1, 9))
def test_tiles_hold_what_is_seen(case: Case, rows: int, columns: int) -> None:
    for band in bands(case.queries, case.keys, case.mask):
        found: list[tuple[int, int]] = []
        for tile in tiles(band, rows, columns):
            n, m = tile.queries.stop - tile.queries.start, tile.keys.stop - tile.keys.start
            assert 1 <= n <= rows
            assert 1 <= m <= columns
            shown = ~hidden(n, m, tile.first, tile.stop)
            assert shown.any(), "a tile in which nothing is seen costs time"
            assert tile.whole == shown.all()
            found += [
                (tile.queries.start + i, tile.keys.start + j)
                for i, j in np.argwhere(shown).tolist()
            ]
        assert sorted(found) == _pairs(band)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (EVERYTHING, ((0, 3, 0, 4, -2, 4),)),
        (CAUSAL, ((0, 3, 0, 3, -2, 1),)),
        (Mask(left=1, right=0), ((0, 3, 0, 3, -1, 1),)),
        (Mask(left=0), ((0, 3, 0, 4, 0, 4),)),
    ],
)
def test_masks(mask: Mask, expected: tuple[tuple[int, ...], ...]) -> None:
    assert bands(in_order(3), in_order(4), mask) == expected


def test_what_is_causal_counts_from_the_front() -> None:
    assert bands(in_order(2), in_order(5), CAUSAL) == (Band(0, 2, 0, 2, -1, 1),)
    assert bands(in_order(5), in_order(2), CAUSAL) == (Band(0, 5, 0, 2, -4, 1),)
    later = (Segment(0, 3, 2, 0),)
    assert bands(later, in_order(5), CAUSAL) == (Band(0, 2, 0, 5, -1, 4),)
    assert bands(in_order(2), later, CAUSAL) == ()


def test_a_causal_sequence_has_half_of_its_tiles() -> None:
    (band,) = bands(in_order(640), in_order(640), CAUSAL)
    assert len(list(tiles(band, 64, 64))) == 10 * 11 // 2
    (window,) = bands(in_order(640), in_order(640), Mask(left=64, right=0))
    assert len(list(tiles(window, 64, 64))) == 1 + 2 * 9
