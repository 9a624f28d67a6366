"""Blocks, channels, chunks and messages: everything is covered once, and nothing is out of turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.layout import Cuts, Layout, turns
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import NOTHING, AlgorithmError, Comm, Setting, plan_of


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    parts=st.integers(1, 7),
    align=st.sampled_from([1, 4, 8]),
    channels=st.integers(1, 4),
    scratch=st.integers(0, 2),
)
def test_the_channels_share_every_element_of_every_block_once(
    sizes: list[int], parts: int, align: int, channels: int, scratch: int
) -> None:
    blocks = [*sizes, *[sizes[0]] * scratch]
    ends = np.cumsum(blocks).tolist()
    seen = np.zeros(sum(blocks), int)
    for channel in range(channels):
        layout = Layout(
            np.array([sizes]), Cuts(parts, scratch), align, channel=channel, channels=channels
        )
        assert layout.total(0) == sum(blocks)
        for block, end in enumerate(ends):
            for part in range(parts):
                low, high = layout.extent(0, block * parts + part)
                assert end - blocks[block] <= low <= high <= end
                assert low == high or (low - (end - blocks[block])) % align == 0
                seen[low:high] += 1
            # A span is the chunks that it consists of.
            first, last = layout.extent(0, block * parts), layout.extent(0, (block + 1) * parts - 1)
            assert layout.extent(0, block * parts, parts) == (first[0], last[1])
    assert (seen == 1).all()


@given(
    size=st.integers(0, 300),
    groups=st.integers(1, 4),
    turns=st.integers(1, 4),
    together=st.integers(1, 4),
    align=st.sampled_from([1, 4]),
    channels=st.integers(1, 4),
)
def test_turns_and_channels_share_groups_and_leave_elements_in_their_chunks(
    size: int, groups: int, turns: int, together: int, align: int, channels: int
) -> None:
    once = Layout(np.array([[size]]), Cuts(groups * together, 0, 1, together), align)
    chunk_of = np.full(size, -1)
    for chunk in range(groups * together):
        chunk_of[slice(*once.extent(0, chunk))] = chunk
    found = np.full(size, -1)
    cuts = Cuts(groups * turns * together, 0, turns, together)
    for channel in range(channels):
        layout = Layout(
            np.array([[size]]), cuts, align, channel=channel, channels=channels, of_chunks=True
        )
        for number in range(cuts.parts):
            low, high = layout.extent(0, number)
            group, place = number // (turns * together), number % together
            assert (found[low:high] == -1).all()
            found[low:high] = group * together + place
        for first in range(0, cuts.parts, together):
            # Chunks of a group lie in a row, also those of which a turn has nothing.
            ends = [layout.extent(0, first + place) for place in range(together)]
            assert all(ends[i][1] == ends[i + 1][0] for i in range(together - 1))
            many = sum(layout.messages(0, first + place, 1, 7) for place in range(together))
            assert layout.messages(0, first, together, 7) <= many
    assert (found == chunk_of).all()


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    parts=st.integers(1, 6),
    piece=st.integers(1, 50),
    span=st.integers(1, 6),
)
def test_messages_cover_their_chunks_in_order(
    sizes: list[int], parts: int, piece: int, span: int
) -> None:
    layout = Layout(np.array([sizes]), Cuts(parts), 1)
    for chunk in range(len(sizes) * parts - span + 1):
        low, high = layout.extent(0, chunk, span)
        at = low
        for begin, count in layout.pieces(0, chunk, span, piece):
            assert begin == at
            assert 0 <= count <= piece
            at += count
        assert at == high
        assert len(layout.pieces(0, chunk, span, piece)) == layout.messages(0, chunk, span, piece)


def test_a_short_chunk_travels_in_as_many_messages_as_a_full_one() -> None:
    layout = Layout(np.array([[10]]), Cuts(4), 1)  # 3, 3, 3, 1
    assert layout.sizes.tolist() == [[3, 3, 3, 1]]
    assert layout.nominal == 3
    assert layout.pieces(0, 3, 1, 1) == [(9, 1), (10, 0), (10, 0)]
    assert layout.pieces(0, 2, 2, 4) == [(6, 4), (10, 0)]


def test_blocks_that_differ_between_ranks() -> None:
    sizes = [[1, 2, 0], [5, 0, 3], [4, 4, 4]]
    blocks = OPERATIONS["all_to_all"].sizes(sizes, 3)
    assert blocks.tolist() == [[1, 2, 0, 1, 5, 4], [5, 0, 3, 2, 0, 4], [4, 4, 4, 0, 3, 4]]
    layout = Layout(blocks, Cuts(1), 1)
    assert not layout.alike
    assert layout.nominal is None
    for source in range(3):
        for to in range(3):
            begin, end = layout.extent(source, to)
            there, last = layout.extent(to, 3 + source)
            assert end - begin == last - there == sizes[source][to]
            assert layout.messages(source, to, 1, 2) == layout.messages(to, 3 + source, 1, 2)


@given(leaving=st.integers(0, 20), arriving=st.integers(0, 20), n_slots=st.integers(1, 8))
def test_turns_take_every_message_once_and_in_order(
    leaving: int, arriving: int, n_slots: int
) -> None:
    taken = list(turns(leaving, arriving, n_slots))
    sent = [turn for turn, _ in taken if turn is not None]
    received = [turn for _, turn in taken if turn is not None]
    assert sent == list(range(leaving))
    assert received == list(range(arriving))
    ahead = 0
    for left, came in taken:
        ahead += left is not None
        assert came is None or came < leaving or arriving > leaving
        if came is not None and came < leaving:
            assert ahead - came <= n_slots
    assert all(pair != (None, None) for pair in taken)


def setting(ranks: int, operation: str = "all_reduce") -> Setting:
    return Setting(operation, ranks, 0, (ranks,))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"send": 3}, "send= a chunk from 0 to 2, or NOTHING; got 3"),
        ({"receive": -2}, "receive= a chunk from 0 to 2, or NOTHING; got -2"),
        ({"to": 3}, "to= a rank from 0 to 2; got 3"),
        ({"source": -1}, "source= a rank from 0 to 2; got -1"),
        ({"span": 4}, "send= a chunk from 0 to 2, or NOTHING; got 0"),
        ({"span": 0}, "span= a positive number of chunks; got 0"),
        ({"combine": "add"}, "combine='reduce' or 'copy', got 'add'"),
    ],
)
def test_exchanges_that_do_not_exist(arguments: dict[str, object], said: str) -> None:
    def algorithm(comm: Comm) -> None:
        after, before = (int(comm.rank) + 1) % 3, (int(comm.rank) - 1) % 3
        given: dict[str, object] = {"send": 0, "to": after, "receive": 0, "source": before}
        comm.exchange(**{**given, **arguments})  # type: ignore[arg-type]

    with pytest.raises(AlgorithmError) as caught:
        plan_of(algorithm, setting(3))
    text = str(caught.value)
    assert said in text
    assert "test_ccl_layout.py" in text
    assert "comm.exchange(**{**given, **arguments})" in text


def test_a_cut_comes_first_and_once() -> None:
    def late(comm: Comm) -> None:
        comm.exchange(send=0, to=1 - comm.rank, receive=0, source=1 - comm.rank)
        comm.cut(4)

    def twice(comm: Comm) -> None:
        comm.cut(4)
        comm.cut(4)

    def nothing(comm: Comm) -> None:
        comm.cut(0)

    def no_whole_groups(comm: Comm) -> None:
        comm.cut(12, turns=2, together=4)

    for algorithm in (late, twice, nothing, no_whole_groups):
        with pytest.raises(AlgorithmError, match="expected at least one part"):
            plan_of(algorithm, setting(2))


def test_ranks_must_cut_alike() -> None:
    def algorithm(comm: Comm) -> None:
        comm.cut(2 if comm.rank == 0 else 3)

    with pytest.raises(AlgorithmError, match="the ranks cut their blocks differently") as caught:
        plan_of(algorithm, setting(2))
    assert "rank 1: Cuts(parts=3, scratch=0," in str(caught.value)


def test_spans_stay_inside_a_block_when_there_are_channels() -> None:
    def algorithm(comm: Comm) -> None:
        comm.exchange(send=0, to=(comm.rank + 1) % 3, receive=NOTHING, source=0, span=2)

    two = Setting("all_gather", 3, 0, (3,), channel=1, channels=2)
    with pytest.raises(AlgorithmError, match="chunks of one block, as there are several channels"):
        plan_of(algorithm, two)
    assert plan_of(algorithm, setting(3, "all_gather")) is not None


def test_only_a_plan_that_asks_for_the_messages_depends_on_them() -> None:
    asked: list[int] = []

    def pipelined(comm: Comm) -> None:
        comm.cut(min(comm.messages, 4))
        asked.append(comm.messages)

    def plain(comm: Comm) -> None:
        comm.exchange(send=0, to=1 - comm.rank, receive=0, source=1 - comm.rank)

    def plan(algorithm: object, messages: int) -> object:
        return plan_of(algorithm, Setting("broadcast", 2, 0, (2,), messages=messages))  # type: ignore[arg-type]

    plans = [plan(pipelined, messages) for messages in (1, 3, 100)]
    assert [found.parts for found in plans] == [1, 3, 4]  # type: ignore[attr-defined]
    assert set(asked) == {1, 3, 100}
    assert plan(plain, 1) is plan(plain, 100)
