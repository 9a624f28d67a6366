"""The exchanges of a collective in the order in which they can be timed: wave by wave.

A plan that is one formula in the rank, on a machine whose SIPs are all alike, is that of one rank:
the others do the same at the same times. So time and memory go with the steps of one rank, and not
with those of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import NOTHING, TABLES, Plan, RefusedError
from kernbench.topology.alike import Alike

Bools = np.ndarray[Any, np.dtype[np.bool_]]

_SAMPLE: Final = 16
"""Number of steps of a long plan that are timed."""

_LEAST_SAMPLE: Final = 4
"""The same in large groups, where a step has many messages."""

_SAMPLED: Final = 1 << 12
"""Steps times ranks from which on fewer steps are timed."""

_DIGIT_BITS: Final = 16
_DIGIT: Final = (1 << _DIGIT_BITS) - 1

_ROUNDS: Final = 16
"""How often a table of waves is brought up to date before they are found one by one."""

_MANY_ROUNDS: Final = 1
"""The same, of a table of many lanes, of which each time takes as long as some of the waves."""

_MANY_LANES: Final = 1 << 10
"""Lanes times rounds from which on a table has many lanes."""


@dataclass(frozen=True)
class Events:
    """The exchanges of all lanes (a rank in a channel), in an order in which they can be timed.

    Exchanges are sorted by wave. An exchange is at least one wave after the previous exchange of
    its lane, and not before the wave of the exchange whose message it receives.

    Attributes:
        lanes: Number of lanes.
        lane: Lane of each exchange.
        wave: Wave of each exchange.
        sends: Whether the exchange sends a message.
        to: Lane that gets the message of the exchange.
        pair: Ranks of the sender and the receiver of the message: `sender * ranks + receiver`.
        matched: Exchange whose message the exchange receives; -1 if it receives no message.
        taker: Exchange that receives the message; the exchange itself if it sends no message.
        reduce: Whether arriving values are added to present ones.
        span: Number of chunks that leave or arrive.
    """

    lanes: int
    lane: Ints
    wave: Ints
    sends: Bools
    to: Ints
    pair: Ints
    matched: Ints
    taker: Ints
    reduce: Bools
    span: Ints

    @staticmethod
    def of(plans: Sequence[Plan], ranks: int, alike: Alike | None = None) -> "Events":
        """Returns the exchanges of all channels of a collective.

        Args:
            plans: Of all ranks; with `alike`, of rank 0.
            ranks: How many ranks there are.
            alike: The machine if each rank does what rank 0 does, moved to its place: there is a
                lane for each channel, and what rank 0 gets, it gets as others get it from rank 0.

        Raises:
            RefusedError: If there are messages that nobody receives, or that nobody sends.
        """
        n, steps = plans[0].world_size, max(len(plan.send) for plan in plans)

        def joined(name: str, idle: int) -> Ints:
            table = np.full((steps, n * len(plans)), idle, np.int64)
            for channel, plan in enumerate(plans):
                table[: len(plan.send), channel * n : (channel + 1) * n] = getattr(plan, name)
            return table

        send, receive = joined("send", NOTHING), joined("receive", NOTHING)
        to, source = joined("to", 0), joined("source", 0)
        own = np.arange(n * len(plans))
        channel, rank = np.divmod(own, n)
        sends, receives = (send != NOTHING) & (to != rank), (receive != NOTHING) & (source != rank)
        active = (send != NOTHING) | (receive != NOTHING)
        pair = rank * ranks + to
        posted = _by_pair(sends, channel * ranks**2 + pair)
        arriving = source * ranks + rank if alike is None else alike.takers(to, source)
        taken = _by_pair(receives, channel * ranks**2 + arriving)
        if not np.array_equal(posted[0], taken[0]):
            raise RefusedError("what is sent is not what is received")
        wave = _waves(active, posted[1], taken[1])
        flat = np.flatnonzero(active)
        flat = flat[_sorted(wave.reshape(-1)[flat])]
        number = np.full(active.size, -1)
        number[flat] = np.arange(len(flat))
        matched = np.full(active.size, -1)
        matched[taken[1]] = number[posted[1]]
        taker = number.copy()
        taker[posted[1]] = number[taken[1]]

        def listed(table: np.ndarray[Any, Any]) -> Any:
            return table.reshape(-1)[flat]

        return Events(
            len(own),
            flat % len(own),
            listed(wave),
            listed(sends),
            listed(channel * n + (to if alike is None else np.zeros_like(to))),
            listed(pair),
            matched[flat],
            taker[flat],
            listed(joined("reduce", 0)) != 0,
            listed(joined("span", 1)),
        )


def sample_of(plans: Sequence[Plan]) -> int | None:
    """Returns the number of steps that tell the time of all; None if all must be timed."""
    ranks = plans[0].world_size
    if ranks > 1 and all(plan.in_step and len(plan.send) > 2 * _SAMPLE for plan in plans):
        return max(_LEAST_SAMPLE, min(_SAMPLE, _SAMPLED // ranks))
    return None


def thinned(plan: Plan, count: int) -> Plan:
    """Returns a plan with some of its steps, picked at equal distances."""
    steps = np.linspace(0, len(plan.send) - 1, count).astype(np.int64)
    return replace(plan, **{name: getattr(plan, name)[steps] for name in TABLES})


def of_rank_0(plan: Plan) -> Plan:
    """Returns the part of a plan that is rank 0's."""
    return replace(plan, **{name: getattr(plan, name)[:, :1] for name in TABLES})


def _by_pair(there: Bools, pair: Ints) -> tuple[Ints, Ints]:
    """Returns the pair of each message and the exchange it belongs to, pair by pair, in order."""
    flat = np.flatnonzero(there)
    found = pair.reshape(-1)[flat]
    order = _sorted(found)
    return found[order], flat[order]


def _sorted(numbers: Ints) -> Ints:
    """Does what a stable `np.argsort` does, which is quick for numbers of 16 bits only.

    Args:
        numbers: Not negative.
    """
    order = np.argsort((numbers & _DIGIT).astype(np.uint16), kind="stable")
    numbers = numbers >> _DIGIT_BITS
    while numbers.any():
        digits = (numbers & _DIGIT).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        numbers = numbers >> _DIGIT_BITS
    return order


def _waves(active: Bools, posted: Ints, taken: Ints) -> Ints:
    """Returns the wave of each exchange.

    Args:
        active: Whether there is an exchange; shape `[steps, lanes]`, as of what is returned.
        posted: By message, the number of the exchange that sends it.
        taken: By message, the number of the exchange that receives it.

    Raises:
        RefusedError: If lanes wait for each other.
    """
    order = np.cumsum(active, axis=0) - 1
    found = _without_gaps(order, active, posted, taken)
    if found is not None:
        return found
    wave = order.copy()
    flat = wave.reshape(-1)
    for _ in range(min(_ROUNDS, max(_MANY_ROUNDS, _MANY_LANES // active.shape[1]))):
        if not (flat[taken] < flat[posted]).any():
            return wave
        flat[taken] = np.maximum(flat[taken], flat[posted])
        np.maximum.accumulate(wave - order, axis=0, out=wave)
        wave += order
        flat = wave.reshape(-1)
    return _one_by_one(active, posted, taken)


def _without_gaps(order: Ints, active: Bools, posted: Ints, taken: Ints) -> Ints | None:
    """Does what `_waves` does where each lane goes on in each wave once it has begun, as in chains.

    A lane begins at once, or in the wave in which its first exchange's message is sent. These waves
    follow from lane to lane, and no later message may come too late for them.

    Args:
        order: Number of each exchange among those of its lane.

    Returns:
        The waves; None if a lane waits after it has begun, or lanes begin with each other's
        messages.
    """
    lanes, flat = active.shape[1], order.reshape(-1)
    begins = (flat[taken] == 0) & active.reshape(-1)[taken]
    lane, from_lane = taken[begins] % lanes, posted[begins] % lanes
    after, delay = np.arange(lanes), np.zeros(lanes, np.int64)
    after[lane], delay[lane] = from_lane, flat[posted[begins]]
    at_once = after == np.arange(lanes)
    for _ in range(lanes.bit_length()):
        delay, after = delay + delay[after], after[after]
    wave: Ints = order + delay
    flat = wave.reshape(-1)
    fits = at_once[after].all() and not (flat[taken] < flat[posted]).any()
    return wave if fits else None


def _one_by_one(active: Bools, posted: Ints, taken: Ints) -> Ints:
    """Does what `_waves` does, wave after wave: along chains, lanes wait for many others in turn.

    In each wave, each lane does its next exchange whose message was sent before, or is sent in the
    same wave. It takes time for each exchange and each wave, not for each wave and lane.
    """
    lanes, size = active.shape[1], active.size
    listed = np.flatnonzero(active.T)
    listed = listed % active.shape[0] * lanes + listed // active.shape[0]  # lane by lane
    after = np.full(size + 1, size)  # the exchange behind each of a lane; `size`: none
    same = listed[1:] % lanes == listed[:-1] % lanes
    after[listed[:-1][same]] = listed[1:][same]
    upcoming = np.full(lanes + 1, size)  # of each lane; a lane more, which stands for none
    upcoming[listed[::-1] % lanes] = listed[::-1]
    sender, taker = np.full(size + 1, size), np.full(size + 1, size)
    sender[taken], taker[posted] = posted, taken
    wave = np.full(size + 1, -1)
    begun = np.zeros(lanes + 1, np.bool_)  # lanes that may do something in this wave
    ready, number, left = np.flatnonzero(upcoming[:-1] < size), 0, len(listed)
    marked = np.zeros(lanes, np.bool_)

    def distinct_lanes(some: Ints) -> Ints:
        """Returns each lane once, in order."""
        marked[some] = True
        found = np.flatnonzero(marked)
        marked[found] = False
        return found

    while left:
        begun[ready] = True
        new = ready
        while len(new):  # who gets what they may send in this wave
            others = taker[upcoming[new]]
            others = others[others < size]
            found = others % lanes
            new = distinct_lanes(found[(upcoming[found] == others) & ~begun[found]])
            begun[new] = True
            ready = np.concatenate([ready, new])
        while True:
            needed = sender[upcoming[ready]]
            lane = np.where(needed < size, needed % lanes, lanes)
            there = (needed == size) | (wave[needed] >= 0)
            fits = there | (begun[lane] & (upcoming[lane] == needed))
            if fits.all():
                break
            begun[ready[~fits]] = False
            ready = ready[fits]
        if not len(ready):
            raise RefusedError("ranks wait for each other")
        done = upcoming[ready]
        wave[done] = number
        begun[ready] = False
        upcoming[ready] = after[done]
        number, left, ready = number + 1, left - len(done), ready[after[done] < size]
        # A lane whose next message has just been sent may go on, too.
        woken = taker[done]
        woken = woken[woken < size]
        woken = woken[upcoming[woken % lanes] == woken] % lanes
        ready = distinct_lanes(np.concatenate([ready, woken]))
    wave[:-1][~active.reshape(-1)] = 0
    return wave[:-1].reshape(active.shape)
