"""The loop: one driver, integer time, and an order that set-up cannot change."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import DeadlockError, Event, EventLoop, Fifo


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


def settling(event: Event, loop: EventLoop) -> Callable[[], None]:
    return lambda: event.settle(loop.now)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=25),
    st.randoms(use_true_random=False),
)
def test_equal_times_go_by_owner_then_by_the_owners_own_sequence(
    requests: list[tuple[int, int]], rng: random.Random
) -> None:
    by_owner = {key: [time for time, owner in requests if owner == key] for key in range(5)}
    expected = sorted(
        (time, key, number) for key, times in by_owner.items() for number, time in enumerate(times)
    )
    # A shuffle that keeps each owner's own order.
    turns = [key for key, times in by_owner.items() for _ in times]
    rng.shuffle(turns)
    loop, seen = EventLoop(), list[tuple[int, int, int]]()
    counts = dict.fromkeys(by_owner, 0)
    for key in turns:
        number = counts[key]
        counts[key] += 1
        loop.at(by_owner[key][number], loop.owner(key), seen.append, (0, key, number))
    loop.run()
    assert [(key, number) for _, key, number in seen] == [entry[1:] for entry in expected]


def test_what_is_queued_for_now_by_a_lower_owner_still_comes_first(loop: EventLoop) -> None:
    seen: list[str] = []

    def first() -> None:
        loop.at(5, loop.owner(1), seen.append, "low")

    loop.at(5, loop.owner(3), seen.append, "high")
    loop.at(5, loop.owner(2), first)
    loop.run()
    assert seen == ["low", "high"]


def test_an_owner_is_one_object_a_key(loop: EventLoop) -> None:
    assert loop.owner(7) is loop.owner(7)
    assert loop.owner(7) is not loop.owner(8)


def test_the_past_cannot_be_scheduled(loop: EventLoop) -> None:
    loop.at(10, loop.owner(0), lambda: loop.at(9, loop.owner(0), print))
    with pytest.raises(AssertionError, match="9 ps lies before now, 10 ps"):
        loop.run()


@pytest.mark.parametrize("carrier", ["callback", "task"])
def test_only_one_drives_the_loop(loop: EventLoop, carrier: str) -> None:
    refused: list[str] = []

    def drive() -> None:
        with pytest.raises(RuntimeError, match="runs already: only the hub drives it") as caught:
            loop.run()
        refused.append(str(caught.value))

    if carrier == "callback":
        loop.at(0, loop.owner(0), drive)
    else:
        loop.start(drive, owner=loop.owner(0), name="rank 0")
    loop.run()
    assert len(refused) == 1


def test_the_loop_can_be_driven_again_after_an_error(loop: EventLoop) -> None:
    def fail() -> None:
        raise ValueError("broken")

    seen: list[int] = []
    loop.at(1, loop.owner(0), fail)
    loop.at(2, loop.owner(0), seen.append, 2)
    with pytest.raises(ValueError, match="broken"):
        loop.run()
    assert seen == []
    loop.run()
    assert seen == [2]


def test_run_until_does_all_of_that_instant_and_nothing_after_it(loop: EventLoop) -> None:
    seen: list[str] = []
    event = Event()
    loop.at(5, loop.owner(0), settling(event, loop))
    loop.at(5, loop.owner(9), seen.append, "same instant")
    loop.at(6, loop.owner(0), seen.append, "later")
    loop.run(until=event)
    assert (seen, loop.now, loop.idle) == (["same instant"], 5, False)
    loop.run()
    assert (seen, loop.now, loop.idle) == (["same instant", "later"], 6, True)


def test_run_until_a_settled_future_moves_the_clock_there(loop: EventLoop) -> None:
    event = Event()
    event.settle(40)
    loop.run(until=event)
    assert loop.now == 40


def test_waiting_for_what_never_settles_is_a_deadlock(loop: EventLoop) -> None:
    with pytest.raises(
        DeadlockError, match=r"^nothing is left to happen: the awaited event never settles$"
    ):
        loop.run(until=Event())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_deadlock_names_every_wait_in_the_order_of_owners(
    loop: EventLoop, order: tuple[int, ...]
) -> None:
    for key in order:
        event = Event(f"a message from {key + 1}")

        def wait(event: Event = event) -> None:
            task = loop.current
            assert task is not None
            task.wait(event)

        loop.start(wait, owner=loop.owner(key), name=f"rank {key}")
    with pytest.raises(DeadlockError) as caught:
        loop.run()
    assert str(caught.value) == (
        "nothing is left to happen: rank 0 waits for a message from 1; "
        "rank 1 waits for a message from 2; rank 2 waits for a message from 3"
    )
    assert [task.name for task, _ in caught.value.waits] == ["rank 0", "rank 1", "rank 2"]
    assert [reason for _, reason in caught.value.waits] == [
        f"a message from {key}" for key in (1, 2, 3)
    ]


def test_an_event_settles_once_and_calls_back_in_the_order_of_asking() -> None:
    event, seen = Event("a credit"), list[tuple[str, int]]()
    event.when_settled(lambda time: seen.append(("first", time)))
    event.when_settled(lambda time: seen.append(("second", time)))
    assert seen == []
    event.settle(3)
    event.when_settled(lambda time: seen.append(("at once", time)))
    assert seen == [("first", 3), ("second", 3), ("at once", 3)]
    with pytest.raises(AssertionError, match="a credit settled twice"):
        event.settle(4)


def test_dropping_the_queue_is_for_when_all_tasks_have_ended(loop: EventLoop) -> None:
    seen: list[int] = []
    task = loop.start(print, owner=loop.owner(0), name="rank 0")
    loop.at(3, loop.owner(1), seen.append, 3)
    with pytest.raises(AssertionError, match="tasks are alive"):
        loop.discard()
    task.interrupt(SystemExit())
    loop.discard()
    assert loop.idle
    loop.run()
    assert seen == []


requests = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=15)


@given(requests, st.booleans())
def test_a_fifo_serves_one_at_a_time_in_the_order_of_reservations(
    wanted: list[tuple[int, int]], shared: bool
) -> None:
    if shared:
        wanted = sorted(wanted)
    fifo, busy_until = Fifo(shared=shared), 0
    for time, duration in wanted:
        done = fifo.reserve(time, duration)
        begin = done - duration
        assert begin >= time
        assert begin >= busy_until
        assert begin in {time, busy_until}  # work-conserving: no idle gap that nobody asked for
        busy_until = done
    assert fifo.free == busy_until


def test_a_shared_fifo_refuses_an_earlier_time_than_before() -> None:
    fifo = Fifo(shared=True)
    fifo.reserve(10, 5)
    fifo.reserve(10, 5)
    with pytest.raises(AssertionError, match="reserved in simulated-time order"):
        fifo.reserve(9, 1)


def test_a_private_fifo_may_be_reserved_at_any_host_moment() -> None:
    fifo = Fifo()
    assert [fifo.reserve(10, 5), fifo.reserve(0, 5), fifo.reserve(100, 5)] == [15, 20, 105]


def test_what_is_withdrawn_is_not_called_and_moves_no_time() -> None:
    loop, called = EventLoop(), list[str]()

    def ring() -> None:
        called.append("late")

    for time in (30, 20):
        loop.at(time, loop.owner(1), ring)
    loop.at(10, loop.owner(1), called.append, "soon")
    loop.withdraw(ring)
    loop.run()
    assert (called, loop.now) == (["soon"], 10)
