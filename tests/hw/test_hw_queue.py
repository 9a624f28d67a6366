"""Queues: slots limit what is in flight, credits come back, back-pressure sleeps or polls."""

from collections import deque
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hw.path import Path
from kernbench.hw.pe import PeTimeline, later
from kernbench.hw.queue import Message, Queue, QueueSpec
from kernbench.memory import Space
from kernbench.topology import Link
from kernbench.units import PS_PER_S, Bandwidth, Bytes, Ps

POLL, SLOT_LATENCY, LATENCY, CREDIT, PS_PER_BYTE = 100, 5, 40, 16, 2


def queue(n_slots: int, backpressure: Literal["sleep", "poll"]) -> Queue:
    rate = Bandwidth(PS_PER_S // PS_PER_BYTE)
    link = Link(0, "a->b", "a", "b", rate, Ps(LATENCY), "fifo", Bytes(1 << 16))
    spec = QueueSpec(Space.TCM, backpressure, n_slots, 4096, 256, CREDIT)
    return Queue(Path([link], rate, 256), spec, POLL, SLOT_LATENCY)


CREDIT_FLIGHT = LATENCY + CREDIT * PS_PER_BYTE


def pe(start: int = 0) -> PeTimeline[int]:
    return PeTimeline(start, 0, later)


def stream(
    q: Queue, sizes: list[int], work: list[int], start: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """Sends all sizes as fast as credits allow to a receiver that works on each.

    Returns:
        When each message was posted, when it was in its slot, and when it had left it.
    """
    sender, receiver = pe(start), pe()
    posted, arrived, left = list[int](), list[int](), list[int]()

    def receive_next() -> None:
        arrival = q.arrival
        assert arrival is not None
        q.messages.popleft()
        number = len(arrived)
        arrived.append(arrival)
        left.append(receiver.receive(arrival, sizes[number], 0))
        q.release(left[-1])
        receiver.wait_until(left[-1] + work[number])

    for size in sizes:
        while q.credit is None:
            receive_next()
        q.take_credit(sender)
        posted.append(sender.clock)
        q.post(sender, sender.clock, Message(size), None)
    while q.messages:
        receive_next()
    return posted, arrived, left


def closed_form(
    n_slots: int, polls: bool, sizes: list[int], work: list[int], start: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """The same from its recurrences, with a plain list of when each credit is back."""
    credits = deque([0] * n_slots)
    clock, link, receiver = start, start, 0
    posted, arrived, left = list[int](), list[int](), list[int]()
    for size, pause in zip(sizes, work, strict=True):
        credit = credits.popleft()
        if credit > clock:
            late = credit - clock
            clock += (late + POLL - 1) // POLL * POLL if polls else late
        posted.append(clock)
        link = max(link, clock) + size * PS_PER_BYTE
        arrived.append(link + LATENCY + SLOT_LATENCY)
        receiver = max(receiver, arrived[-1]) + size
        left.append(receiver)
        credits.append(receiver + CREDIT_FLIGHT)
        receiver += pause
    return posted, arrived, left


messages = st.lists(
    st.tuples(st.sampled_from([0, 1, 64, 500]), st.sampled_from([0, 30, 700])),
    min_size=1,
    max_size=12,
)


@given(messages, st.integers(1, 5), st.sampled_from(["sleep", "poll"]), st.integers(0, 900))
def test_a_stream_of_messages_equals_its_recurrences(
    wanted: list[tuple[int, int]],
    n_slots: int,
    backpressure: Literal["sleep", "poll"],
    start: int,
) -> None:
    sizes, work = [size for size, _ in wanted], [pause for _, pause in wanted]
    found = stream(queue(n_slots, backpressure), sizes, work, start)
    assert found == closed_form(n_slots, backpressure == "poll", sizes, work, start)
    posted, _, left = found
    # No more than n_slots messages between the post and the credit's return.
    for number in range(n_slots, len(posted)):
        assert posted[number] >= left[number - n_slots] + CREDIT_FLIGHT


@pytest.mark.parametrize("n_slots", [1, 2, 7])
def test_after_n_slots_messages_nobody_has_a_credit(n_slots: int) -> None:
    q, sender, credits = queue(n_slots, "sleep"), pe(), list[int | None]()
    for _ in range(n_slots):
        credits.append(q.credit)
        q.take_credit(sender)
        q.post(sender, 0, Message(8), None)
    credits.append(q.credit)
    q.messages.popleft()
    q.release(1000)
    credits.append(q.credit)
    assert credits == [*([0] * n_slots), None, 1000 + CREDIT_FLIGHT]
    q.take_credit(sender)
    assert sender.clock == 1000 + CREDIT_FLIGHT


def test_one_slot_costs_a_round_trip_a_message() -> None:
    size, count = 100, 6
    posted, _, left = stream(queue(1, "sleep"), [size] * count, [0] * count)
    trip = size * PS_PER_BYTE + LATENCY + SLOT_LATENCY + size + CREDIT_FLIGHT
    assert posted == [number * trip for number in range(count)]
    assert left[-1] == count * trip - CREDIT_FLIGHT


def test_enough_slots_keep_the_link_busy() -> None:
    size, count = 100, 20
    _, arrived, _ = stream(queue(8, "sleep"), [size] * count, [0] * count)
    assert arrived == [
        (number + 1) * size * PS_PER_BYTE + LATENCY + SLOT_LATENCY for number in range(count)
    ]


@pytest.mark.parametrize(
    ("clock", "credit", "taken"), [(0, 1, 100), (0, 100, 100), (30, 131, 230), (250, 200, 250)]
)
def test_polling_looks_again_at_whole_intervals(clock: int, credit: int, taken: int) -> None:
    q, sender = queue(1, "poll"), pe(clock)
    q.take_credit(sender)
    q.release(credit - CREDIT_FLIGHT)
    q.take_credit(sender)
    assert sender.clock == taken


def test_waiters_are_called_once_when_what_they_wait_for_is_known() -> None:
    q, seen = queue(2, "sleep"), list[str]()
    q.call_on_message(lambda: seen.append("message"))
    with pytest.raises(AssertionError, match="one receiver"):
        q.call_on_message(print)
    sender = pe()
    for _ in range(2):
        q.take_credit(sender)
        q.post(sender, 0, Message(8), None)
        q.messages.popleft()
    assert seen == ["message"]
    starved = [q.starved]
    q.call_on_credit(lambda: seen.append("credit"))
    starved.append(q.starved)
    with pytest.raises(AssertionError, match="one sender"):
        q.call_on_credit(print)
    q.release(50)
    q.release(60)
    assert seen == ["message", "credit"]
    assert [*starved, q.starved] == [False, True, False]


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=40))
def test_every_slot_is_free_or_holds_a_message(n_slots: int, steps: list[bool]) -> None:
    """The ledger of credits (K8): programs cannot keep a slot, since to receive frees it."""
    q, sender = queue(n_slots, "sleep"), pe()
    for sends in steps:
        if sends and q.credit is not None:
            q.take_credit(sender)
            q.post(sender, 0, Message(8), None)
        elif not sends and q.messages:
            q.messages.popleft()
            q.release(sender.clock)
        assert len(q._credits) + len(q.messages) == n_slots
    held = len(q.messages)
    with pytest.raises(AssertionError) as caught:
        q.release(0)
    assert str(caught.value) == (
        f"[K8] a slot was released twice: {n_slots - held} free and {held} with a message, "
        f"of {n_slots}"
    )


def test_messages_come_out_in_the_order_they_went_in() -> None:
    q, sender = queue(4, "sleep"), pe()
    for payload in "abc":
        q.take_credit(sender)
        q.post(sender, 0, Message(8, payload), None)
    assert [message.payload for message in q.messages] == ["a", "b", "c"]
    arrivals = [message.arrival for message in q.messages]
    assert arrivals == [8 * PS_PER_BYTE * n + LATENCY + SLOT_LATENCY for n in (1, 2, 3)]
