"""Who holds a resource, and guests beside it: by hand."""

from dataclasses import dataclass

import pytest

from kernbench.des import Beside, EventLoop, Fifo, Holds


@dataclass(eq=False)
class Visit:
    """A guest that is expected to end at a known time."""

    start: int
    end: int | None
    slows: int = 28
    slowed: int = 8

    def ends(self) -> int | None:
        return self.end

    def put_off(self, by: int) -> None:
        assert self.end is not None
        self.end += by


def fifo_of(*guests: Visit, notice: int = 0) -> Fifo:
    fifo = Fifo()
    fifo.holds = Holds(EventLoop(), notice)
    fifo.holds.guests.update(dict.fromkeys(guests))
    return fifo


@pytest.mark.parametrize(
    ("begin", "duration", "lasts", "end"),
    [
        # What is left of the guest, 920, takes 1000 at 92 %. In it 720 are done at 72 %.
        (0, 36, 50, 924),  # over in it: 36 / 0.72, and the guest loses 8 % of that
        (0, 720, 1000, 1000),
        (0, 1000, 1280, 1000),  # 280 are left, after the guest
        (460, 1000, 500 + 640, 960),  # half of it
        (920, 1000, 1000, 920),  # after it
    ],
)
def test_a_request_and_a_guest_slow_each_other_while_both_go_on(
    begin: int, duration: int, lasts: int, end: int
) -> None:
    guest = Visit(0, 920)
    assert fifo_of(guest).reserve(begin, duration) == begin + lasts
    assert guest.end == end


def test_a_guest_that_comes_later_or_leaves_room_or_has_no_known_end_slows_nobody() -> None:
    guests = [Visit(10, 1000), Visit(0, None)]
    assert fifo_of(*guests).reserve(9, 500) == 509
    assert fifo_of(Visit(0, 920)).reserve(0, Beside(500)) == 500
    assert guests[0].end == 1000


def test_of_several_guests_the_one_that_slows_most_counts_until_the_last_one_ends() -> None:
    # 500 and 1000 with what they lose. In 1000 at 72 %, 720 are done.
    guests = [Visit(0, 460), Visit(0, 920, slows=8)]
    assert fifo_of(*guests).reserve(0, 1000) == 1280
    assert [guest.end for guest in guests] == [500, 1000]


def test_a_guest_loses_to_one_request_after_another() -> None:
    # 36 take 50 and put it off to 924; the next 874 take 950 at 92 %: 684 at 72 %, then 316.
    guest = Visit(0, 920)
    fifo = fifo_of(guest)
    assert fifo.reserve(0, 36) == 50
    assert fifo.reserve(0, 1000) == 50 + 950 + 316
    assert guest.end == 1000


def test_holds_that_are_over_are_forgotten_and_others_are_not() -> None:
    loop = EventLoop()
    holds = Holds(loop, 5)
    loop.at(5000, loop.owner(0), lambda: None)
    loop.run()
    for begin in range(0, 30_000, 10):
        holds.add(begin, begin + 10)
    # The loop is at 5000, so nobody asks for a time before 4995.
    assert len(holds._ends) <= 2 * 1024 + 1024
    assert [holds.room(time) for time in (4995, 4996, 29_000)] == [5000, 5010, 29_010]
