"""Skips what repeats itself while plans are replayed: the same state again, later.

A state is all that the future depends on: where each rank is in its plan, and every time that
somebody is going to read. What happens next follows from it by additions and maxima, so a state
that comes again with each time moved by the same amount is followed by the same again, moved by
that amount. Whole repetitions are skipped (ADR 0031).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from kernbench.ccl.plan import Exchange
from kernbench.des import Owner, order
from kernbench.hw.network import Network, Traffic
from kernbench.hw.pe import PeTimeline
from kernbench.hw.queue import Message, Queue, Sender
from kernbench.sim_engine.shadow import compare

LONG: Final = 48
"""Turns in a run from which on repeated turns are looked for."""

MANY: Final = 512
"""Turns in runs, times exchanges of a rank, from which on repeated exchanges are looked for."""

_Place = tuple[int, int, int]
"""Exchange, run, and turns of the run that have not begun."""

_MOST_VAIN: Final = 32
"""Looks in vain after which looks become no rarer."""

_FEW: Final = 64
"""Turns of other ranks that a rank is waited for in any case."""

_UNKNOWN: Final = -1
_NOWHERE: Final = -1


@dataclass(slots=True, eq=False)
class Walk:
    """A rank on its way through its plan.

    Attributes:
        rank: Rank inside the group.
        pe: Its engines.
        sender: Its engine for shared links; None if no link is shared.
        steps: Its part of the plan.
        program: What it does.
        step: Number of the exchange.
        run: Number of the run in the exchange.
        turns: Turns of the run.
        left: Turns of the run that have not begun.
        waits: For what it waits, if it waits: 1 a credit, 2 a message, 3 the end of its messages.
        ready: When the piece that leaves is loaded, in picoseconds.
        local: When the piece to add to is loaded, in picoseconds; None for no addition.
        first: First message of the exchange.
        last: Last message of the exchange so far.
    """

    rank: int
    pe: PeTimeline[int]
    sender: Sender | None
    steps: Sequence[Exchange]
    program: Generator[Callable[[Callable[[], None]], None]] = field(init=False)
    step: int = 0
    run: int = 0
    turns: int = 0
    left: int = 0
    waits: int = 0
    ready: int = 0
    local: int | None = None
    first: Message | None = None
    last: Message | None = None

    @property
    def place(self) -> _Place:
        """Exchange, run, and turns that have not begun."""
        return self.step, self.run, self.left

    def times(self) -> list[int]:
        """Returns the times that later turns depend on, each at least the clock."""
        pe = self.pe
        clock = pe.clock
        times = [*pe.state(), self.ready, self.local or 0]
        return [time if time > clock else clock for time in times]

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self.pe.shift(by)
        self.ready += by
        if self.local is not None:
            self.local += by
        if self.sender is not None:
            self.sender.shift(by)


class Replayed(Protocol):
    """The part of a replay that its cycles use."""

    @property
    def walks(self) -> dict[int, Walk]:
        """Ranks that are under way."""
        ...

    @property
    def busy(self) -> dict[tuple[int, int], Queue]:
        """Queues that are used now, or were used lately, by (sender, receiver)."""
        ...

    @property
    def ready(self) -> deque[Walk]:
        """Ranks that can go on."""
        ...

    @property
    def trace(self) -> bool:
        """Whether the messages are recorded."""
        ...

    def owner_of(self, rank: int) -> Owner:
        """Returns the owner of a rank's messages."""
        ...

    def repeated(self, rank: int, before: int, now: int) -> int:
        """Returns how many exchanges of a rank, from one on, are as those from an earlier one on.

        Args:
            before: Number of the earlier one.
            now: Number of the later one.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Times that move together.

    Attributes:
        times: Picoseconds; `_UNKNOWN` for times that are not known yet.
        walk: Number of the rank whose times they are; None for times of a queue.
        shift: Moves them.
    """

    times: list[int]
    walk: int | None
    shift: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that the future depends on.

    Attributes:
        base: Time of the state, in picoseconds.
        looks: Number of looks before.
        walks: The ranks, each with its replay.
        places: Where each rank is.
        shape: What has to be the same again.
        parts: What has to be the same again, moved, or untouched.
        traffic: Messages on shared links.
    """

    base: int
    looks: int
    walks: list[tuple[Replayed, Walk]]
    places: list[_Place]
    shape: list[Any]
    parts: list[_Part]
    traffic: Traffic | None


class Cycles:
    """Looks for states that come again, and skips repetitions.

    Without a network it belongs to a single replay, whose ranks run ahead of the loop. With a
    network it belongs to all replays on the network, which go in the order of simulated time.

    Args:
        network: The links that replays share.
        shadow: Whether to replay what could be skipped, and to compare.

    Attributes:
        due: Whether `look` is to be called as soon as every rank rests.
    """

    def __init__(self, network: Network | None = None, *, shadow: bool = False) -> None:
        self.due = False
        self._network: Final = network
        # A failure may drop a replay without a word; the order of insertion stays.
        self._replays: Final = WeakKeyDictionary[Replayed, None]()
        self._pivot: Walk | None = None
        self._others = 0  # turns of other ranks since the pivot's last one
        self._asked = -1  # time of the look that is queued
        self._looks = 0
        # A look at everything costs as much as some turns of every rank. So the more looks were in
        # vain, the more turns are replayed before the next one.
        self._vain = 0
        self._replayed = 0  # turns since the last look at everything
        self._price = 0
        self._shadow: Final = shadow
        self._promise: _Promise | None = None
        self._turns = _Marks()
        self._steps = _Marks()
        self._step = _NOWHERE  # exchange of the pivot

    def join(self, replay: Replayed) -> None:
        """Adds a replay on the network."""
        self._replays[replay] = None
        self._vain = self._price = 0

    def leave(self, replay: Replayed) -> None:
        """Takes out a replay whose ranks are all done."""
        self._replays.pop(replay, None)
        self._vain = self._price = 0
        self._pivot = None
        self._turns, self._steps, self._step = _Marks(), _Marks(), _NOWHERE
        self._promise = None

    def turn(self, walk: Walk) -> None:
        """Takes note that a rank begins a turn of a long run."""
        self._replayed += 1
        if walk is not self._pivot:
            self._others += 1
            others = self._others
            # Few turns are too few for any number of ranks, which it takes time to count.
            if self._pivot is not None and (others < _FEW or others < self._patience()):
                return
            self._pivot = walk
            self._turns, self._steps, self._step = _Marks(), _Marks(), _NOWHERE
            self._promise = None
        self._others = 0
        if self._network is None:
            self.due = True
        elif self._asked != self._network.loop.now:
            loop = self._network.loop
            self._asked = loop.now
            loop.at(loop.now, loop.owner(order.STILL), self._look)

    def _patience(self) -> int:
        return _FEW + 4 * sum(len(replay.walks) for replay in self._replays)

    def look(self, replay: Replayed) -> None:
        """Looks whether the state has come before; every rank of the replay rests."""
        self.due = False
        self._replays[replay] = None
        self._look()

    def _look(self) -> None:
        pivot = self._pivot
        if pivot is None:
            return
        self._looks += 1
        base = pivot.pe.clock if self._network is None else self._network.loop.now
        if self._promise is not None:
            if self._looks == self._promise.looks:
                self._promise.check(self._state(base))
                self._promise = None
            return
        if self._replayed < self._price:
            return
        hint = self._hint(base, pivot)
        long = pivot.turns >= LONG
        if pivot.step != self._step:
            self._step, self._turns = pivot.step, _Marks()
            # Next to a long run, a look at everything is cheap.
            if (long or self._steps.ripe(hint)) and len(pivot.steps) > self._step + 1:
                new = self._state(base)
                if self._skip(self._steps.state, new, steps=True):
                    self._steps, self._step = _Marks(), _NOWHERE
                    return
                if long:
                    self._steps.state = new
                else:
                    self._steps.keep(new, hint)
        if long and self._turns.ripe(hint):
            new = self._state(base)
            if self._skip(self._turns.state, new, steps=False):
                self._turns = _Marks()
            else:
                self._turns.keep(new, hint)

    def _hint(self, base: int, pivot: Walk) -> tuple[int, ...]:
        """Returns a small part of the state, which is at hand at once."""
        ahead, shift, waiting = 0, 1, 0
        for replay in self._replays:
            for walk in replay.walks.values():
                late = walk.pe.clock - base
                if late > 0:
                    ahead, shift = ahead + late * shift, shift + 2
                if walk.sender is not None:
                    waiting += walk.sender.waiting
        return (ahead, waiting, *[time - base for time in pivot.times()])

    def _skip(self, old: "_State | None", new: "_State | None", *, steps: bool) -> bool:
        """Skips what repeats itself, and returns whether anything was skipped.

        Args:
            old: An earlier state, or None.
            new: The present state, or None.
            steps: Whether whole exchanges are skipped, or turns of the present ones.
        """
        self._vain += 1
        self._replayed, self._price = 0, 0
        if new is not None:
            self._price = len(new.walks) * min(self._vain, _MOST_VAIN) ** 2 // 8
        if old is None or new is None:
            return False
        advance = _advance(old, new)
        if advance is None:
            return False
        count = self._steps_left(old, new) if steps else _turns_left(old, new)
        if new.traffic is not None and new.traffic.others is not None:
            count = min(count, (new.traffic.others - 1 - new.base) // advance.by)
        if count <= 0:
            return False
        self._vain = self._price = 0
        by = count * advance.by
        if self._shadow:
            looks = self._looks + count * (new.looks - old.looks)
            self._promise = _Promise(looks, new, by, count, _places_after(old, new, count))
            return True
        if self._network is not None and new.traffic is not None:
            self._network.shift(new.traffic, by)
        for part in advance.parts:
            part.shift(by)
        places = _places_after(old, new, count)
        for (_, walk), place in zip(new.walks, places, strict=True):
            walk.step, _, walk.left = place
        return True

    def _state(self, base: int) -> _State | None:
        """Returns the state; None if others have a part in it."""
        network = self._network
        traffic = None
        if network is not None:
            owners: dict[Owner, int] = {}
            for replay in self._replays:
                for rank in replay.walks:
                    owners[replay.owner_of(rank)] = len(owners)
            traffic = network.traffic(owners)
            if traffic is None:
                return None
        walks: list[tuple[Replayed, Walk]] = []
        shape: list[Any] = [] if traffic is None else [traffic.state]
        parts: list[_Part] = []
        for replay in self._replays:
            shape.append([walk.rank for walk in replay.ready])
            for rank in sorted(replay.walks):
                walk = replay.walks[rank]
                shape.append((rank, walk.waits, walk.local is None))
                if walk.sender is not None:
                    shape.append(walk.sender.state(base))
                parts.append(_Part(walk.times(), len(walks), walk.shift))
                walks.append((replay, walk))
            _add_queues(replay, shape, parts)
        return _State(
            base, self._looks, walks, [walk.place for _, walk in walks], shape, parts, traffic
        )

    def _steps_left(self, old: _State, new: _State) -> int:
        """Returns how many repetitions of the exchanges between two states follow."""
        if any(replay.trace for replay in self._replays):
            return 0
        count: int | None = None
        for (replay, walk), before, now in zip(new.walks, old.places, new.places, strict=True):
            again = _again(replay, walk, before, now)
            if again is not None:
                count = again if count is None else min(count, again)
        return count or 0


class _Marks:
    """Finds moments at which the state may be one that was there before.

    Attributes:
        state: A state to compare later ones with.
    """

    def __init__(self) -> None:
        self.state: _State | None = None
        self._hint: tuple[int, ...] = ()
        self._seen: set[tuple[int, ...]] = set()
        self._wait = 0  # moments to pass over
        self._misses = 0  # states that were other ones
        self._since = 0  # the same, since the state was kept
        self._lasts = 1  # the same, until another state is kept
        self._patience = 8
        self._others = 0  # moments that looked otherwise since one looked like the state

    def ripe(self, hint: tuple[int, ...]) -> bool:
        """Returns whether to look at the whole state.

        Args:
            hint: A small part of the state, at hand without a look at everything.
        """
        if self._wait:
            self._wait -= 1
            return False
        if self.state is not None:
            if hint == self._hint:
                self._others = 0
                return True
            self._others += 1
            if self._others <= self._patience:
                return False
            self.state, self._others, self._patience = None, 0, 2 * self._patience
            self._seen.clear()
        if hint in self._seen:
            return True
        self._seen.add(hint)
        return False

    def keep(self, state: _State | None, hint: tuple[int, ...]) -> None:
        """Keeps a state to compare later ones with, unless the one before may still come again.

        As Brent does (see `lanes`), it is kept for longer each time; and the more states have been
        other ones, the fewer are looked at.
        """
        if self.state is not None or state is None:
            self._misses += 1
            self._since += 1
            self._wait = self._misses // 4
        if self.state is None or self._since >= self._lasts:
            if self.state is not None:
                self._lasts *= 2
            self.state, self._hint, self._since = state, hint, 0


@dataclass(frozen=True, slots=True)
class _Advance:
    """By how much a state has moved.

    Attributes:
        by: Picoseconds.
        parts: The parts that have moved; nobody has touched the others.
    """

    by: int
    parts: list[_Part]


def _places_after(old: _State, new: _State, count: int) -> list[_Place]:
    """Returns where each rank is after repetitions of what lies between two states."""
    return [
        (
            now[0] + count * (now[0] - before[0]),
            now[1],
            now[2] - (count * (before[2] - now[2]) if now[0] == before[0] else 0),
        )
        for before, now in zip(old.places, new.places, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Promise:
    """A state that is going to come, found without a replay.

    Attributes:
        looks: Number of looks before.
        since: State from which it follows.
        by: Time from that state on, in picoseconds.
        count: Number of repetitions.
        places: Where each rank is.
    """

    looks: int
    since: _State
    by: int
    count: int
    places: list[_Place]

    def check(self, state: _State | None) -> None:
        """Compares the promised state with that of a replay.

        Raises:
            ShadowError: If they differ.
        """
        key = f"{self.count} repetitions from {self.since.base} ps on"
        found = None if state is None else (state.base - self.since.base, state.places)
        compare("picoseconds and places of ranks, with skips", key, (self.by, self.places), found)
        assert state is not None
        same = _advance(self.since, state) is not None
        compare("state of ranks and links, with skips", key, True, same)


def _advance(old: _State, new: _State) -> _Advance | None:
    """Returns by how much a state has moved; None if it is another one."""
    by = new.base - old.base
    if by <= 0 or old.shape != new.shape or old.walks != new.walks:
        return None
    moved = []
    for before, now in zip(old.parts, new.parts, strict=True):
        if all(
            time - past == by or time == past == _UNKNOWN
            for past, time in zip(before.times, now.times, strict=True)
        ):
            moved.append(now)
        elif before.times != now.times or (
            now.walk is not None and old.places[now.walk] != new.places[now.walk]
        ):
            return None
    return _Advance(by, moved)


def _turns_left(old: _State, new: _State) -> int:
    """Returns how many repetitions of the turns between two states follow."""
    count: int | None = None
    for (replay, walk), before, now in zip(new.walks, old.places, new.places, strict=True):
        if before[:2] != now[:2]:
            return 0
        done = before[2] - now[2]
        if done <= 0:
            continue
        if replay.trace and walk.first is not None and not walk.first.received:
            return 0
        # The record has the end of the last message, so the last turn is replayed.
        left = walk.left - 1 if replay.trace else walk.left
        again = left // done
        count = again if count is None else min(count, again)
    return count or 0


def _again(replay: Replayed, walk: Walk, before: _Place, now: _Place) -> int | None:
    """Returns how many repetitions of the exchanges between two places of a rank follow.

    Returns:
        The number; None if the rank has not moved.
    """
    if before == now:
        return None
    done = now[0] - before[0]
    if done <= 0 or before[1:] != now[1:]:
        return 0
    return max(replay.repeated(walk.rank, before[0], now[0]) - 1, 0) // done


def _add_queues(replay: Replayed, shape: list[Any], parts: list[_Part]) -> None:
    """Adds the queues on which somebody waits, or which are not empty."""
    used = set(_used(replay.walks.values()))
    idle = []
    for pair, queue in replay.busy.items():
        sender, receiver = (replay.walks.get(rank) for rank in pair)
        sent = None if sender is None else sender.pe.clock
        received = None if receiver is None else receiver.pe.clock
        sizes, credits_, arrivals = queue.state(sent, received)
        if pair not in used and len(sizes) == 1 and (sent is None or max(credits_) == sent):
            idle.append(pair)
            continue
        shape.append((pair, sizes))
        after = _UNKNOWN if sent is None else sent
        parts.append(_Part(credits_, None, _bound(queue.shift_sender, after)))
        after = _UNKNOWN if received is None else received
        parts.append(_Part(arrivals, None, _bound(queue.shift_receiver, after)))
    for pair in idle:
        del replay.busy[pair]


def _bound(shift: Callable[[int, int], None], after: int) -> Callable[[int], None]:
    return lambda by: shift(by, after)


def _used(walks: Iterable[Walk]) -> Iterator[tuple[int, int]]:
    for walk in walks:
        if walk.step < len(walk.steps):
            step = walk.steps[walk.step]
            yield walk.rank, step.to
            yield step.source, walk.rank
