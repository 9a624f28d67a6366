"""Where atomic operations meet, against loops over lanes; what the last cache takes, by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.kernels.contention import (
    Addresses,
    Contention,
    contention_of,
    contention_ps,
    spread_over,
)
from kernbench.topology.spec import ProgramsSpec
from kernbench.units import Ps

_SPEC = ProgramsSpec(atomic=Ps(2000), sector=Ps(600), slices=48)
_LARGE = 1 << 40


def _lanes(*addresses: int) -> Addresses:
    return np.array(addresses, np.int64).reshape(1, 1, -1)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 8),
    st.sampled_from([2, 4, 8]),
    st.integers(0, 1 << 50),
    st.data(),
)
def test_lanes_meet_at_addresses_sectors_and_chunks(
    programs: int, requests: int, lanes: int, itemsize: int, first: int, data: st.DataObject
) -> None:
    first = first // 512 * 512
    drawn = st.one_of(st.just(-1), st.integers(0, 700).map(lambda n: first + n * itemsize))
    count = programs * requests * lanes
    addresses = data.draw(st.lists(drawn, min_size=count, max_size=count))
    seen = np.array(addresses, np.int64).reshape(programs, requests, lanes)

    found = contention_of(seen, itemsize, 1, _LARGE)

    passes = 0
    everywhere: Counter[int] = Counter()
    word = max(4, itemsize)
    for request in seen.reshape(-1, lanes):
        there = Counter(int(each) // word for each in request if each >= 0)
        everywhere += there
        most: dict[int, int] = {}
        for each, often in there.items():
            sector = each * word // 32
            most[sector] = max(often, most.get(sector, 0))
        passes += sum(most.values())
    assert found.passes == passes
    assert found.hottest == max(everywhere.values(), default=0)
    assert found.chunks == len({each // 512 for each in addresses if each >= 0})


def test_programs_that_share_no_chunk_stand_for_others_with_their_own() -> None:
    apart = np.arange(4).reshape(4, 1, 1) * 512
    assert contention_of(apart, 4, 10, _LARGE) == Contention(40, 40, 10)
    assert contention_of(apart, 4, 10, 4096).chunks == 8, "there are no more"
    assert contention_of(apart * 0, 4, 10, _LARGE) == Contention(40, 1, 40)


def test_chunks_of_drawn_addresses_are_found_from_those_that_were_drawn_twice() -> None:
    numbers = np.random.default_rng(1).integers(0, 4096, (16, 8, 32)) * 512
    assert contention_of(numbers, 4, 1000, _LARGE).chunks == pytest.approx(4096, rel=0.2)


def test_addresses_that_nobody_knows_are_anywhere() -> None:
    seen = spread_over(1 << 20, 8)
    assert not (seen % 8).any()
    assert seen.min() < 1 << 14
    assert seen.max() >= (1 << 20) - (1 << 14)
    assert np.array_equal(seen, spread_over(1 << 20, 8)), "the same ones each time"
    assert not spread_over(4, 8).any()


def test_one_address_takes_one_operation_after_the_other() -> None:
    crowd = contention_of(_lanes(*[64] * 32), 4, 1000, _LARGE)
    assert contention_ps(_SPEC, crowd) == 32_000 * 2000
    assert contention_ps(replace(_SPEC, slices=0), crowd) == 0


def test_a_slice_works_on_sectors() -> None:
    # A request has four sectors of 8 floats; all of them are in one chunk, and so in one slice.
    dense = contention_of(_lanes(*range(0, 128, 4)), 4, 1000, 128)
    assert dense == Contention(4000, 1, 1000)
    assert contention_ps(_SPEC, dense) == 4000 * 600
    # Lanes that lie apart are in sectors of their own.
    sparse = contention_of(_lanes(*range(0, 1024, 32)), 4, 1000, 1024)
    assert sparse == Contention(32_000, 2, 1000)
    assert contention_ps(_SPEC, sparse) == 16_000 * 600


def test_many_chunks_are_in_all_slices_but_not_evenly() -> None:
    many = Contention(10**6, 48 * 10**6, 1)
    assert contention_ps(_SPEC, many) == pytest.approx(10**6 * 600 / 48, rel=0.01)
    few = Contention(10**6, 48, 1)  # one of 48 slices has about four of 48 chunks
    assert 3 < contention_ps(_SPEC, few) / (10**6 * 600 / 48) < 4.5


def test_nothing_is_asked_where_all_lanes_are_off() -> None:
    nothing = contention_of(_lanes(-1, -1), 4, 1000, _LARGE)
    assert nothing == Contention(0, 0, 0)
    assert contention_ps(_SPEC, nothing) == 0
