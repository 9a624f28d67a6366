"""Estimates how long a plan takes on a machine: latencies of its messages, and bytes on its links.

NCCL's tuner has a formula for each algorithm: a latency for every step, and the bytes over a
bandwidth (src/graph/tuning.cc). Here both come from the plan, so that algorithms of the user's own
are covered: messages of the same wave share the links of their paths, and a rank that waits for a
message goes on when it arrives. This is an estimate, not a simulation: it does not know which
messages of different waves meet.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from kernbench.caches import Table, cached
from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import launches_of, pass_over
from kernbench.ccl.operations import OPERATIONS, Ints
from kernbench.ccl.plan import Algorithm
from kernbench.ccl.programs import Outline, most_messages, programs_of, refusals
from kernbench.ccl.rails import Bounds
from kernbench.ccl.waves import Bools, Events, of_rank_0, sample_of, thinned
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts
from kernbench.hw.queue import QueueSpec
from kernbench.memory import Space
from kernbench.topology import Topology
from kernbench.topology.alike import Alike, alike_in
from kernbench.topology.spec import MemorySpec
from kernbench.topology.ways import Ways, ways_of
from kernbench.units import PS_PER_S, Bandwidth, Rate, format_bytes

Floats = np.ndarray[Any, np.dtype[np.float64]]

Memory = TypeVar("Memory", bound=MemorySpec)

_ITEMSIZE: Final = 4
"""Assumed bytes of an element: a choice of algorithm depends on sizes in bytes alone."""


_COMPARED: Final = 64
"""Ranks of the largest groups that are compared, pair by pair, with others."""

_SPARSE: Final = 8
"""Links times waves, for each link that a message crosses, from which on most are not listed."""

_NOTABLE: Final = 1.1
"""If the gap between pieces grows by this ratio, slots are reported as the bottleneck."""


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """Messages that wait for slots although link and engines are free.

    Attributes:
        n_slots: Slots of a queue.
        slot_size: Bytes of a slot.
        rate: Bytes a second of a message that waits for its slots.
        unlimited: Bytes a second of the same message if there were slots enough: those of its
            slowest link, shared with the messages of the same step, or engine.
    """

    n_slots: int
    slot_size: int
    rate: float
    unlimited: float

    def __str__(self) -> str:
        return (
            f"limited by {self.n_slots} slots of {format_bytes(self.slot_size)} "
            f"({self.rate / 1e9:.3g} GB/s), not by the link ({self.unlimited / 1e9:.3g} GB/s)"
        )


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways of messages; times in picoseconds, arrays over messages.

    Attributes:
        latency: Latency of the whole way.
        per_byte: Time of one byte on the slowest stage.
        heads_per_byte: Time of one byte on all stages but the first, which the head of a message
            passes one by one.
        shared: Time of all messages of the wave on the link of the way where this time is longest.
        links: Number of every link of every message, one message after another.
        most: Number of links.
        hops: Number of links of each message.
        places: A number for each entry of `links`: the same for the same link in the same wave.
        bases: The least number of each wave, and one behind the largest of all.
        loads: Time of all messages of the wave on each entry of `links`.
    """

    latency: Floats
    per_byte: Floats
    heads_per_byte: Floats
    shared: Floats
    links: Ints
    most: int
    hops: Ints
    places: Ints
    bases: Ints
    loads: Floats


class _Planned(NamedTuple):
    """What there is to time of an operation.

    Attributes:
        outlines: The plan of each channel; of channels that have shares of the links, of the first.
        chunk: Bytes of a chunk.
        group: The ranks.
    """

    outlines: Sequence[Outline]
    chunk: int
    group: "_Group"

    @property
    def sample(self) -> int | None:
        """See `sample_of`."""
        return sample_of([outline.plan for outline in self.outlines])

    @property
    def steps(self) -> int:
        """Most steps of a channel."""
        return max(len(outline.plan.send) for outline in self.outlines)

    def events(self, sample: int | None = None) -> Events:
        """Returns the exchanges of all steps, or of some.

        Args:
            sample: Number of steps; None for all.
        """
        alone = self.group.alike is not None
        plans = [of_rank_0(each.plan) if alone else each.plan for each in self.outlines]
        if sample is not None:
            plans = [thinned(plan, sample) for plan in plans]
        plans = [each.of_ranks(plan) for each, plan in zip(self.outlines, plans, strict=True)]
        return Events.of(plans, len(self.group.sips), self.group.alike)


class _Pairs(NamedTuple):
    """The ways between some senders and receivers; see `_Ways`.

    Attributes:
        latency: Latency of each whole way.
        per_byte: Time of one byte on its slowest stage.
        heads_per_byte: Time of one byte on all its stages but the first.
        counts: Number of its links.
        links: Number of every link, one way after another.
        rates: Rate of the link of each number, in bytes a second.
    """

    latency: Floats
    per_byte: Floats
    heads_per_byte: Floats
    counts: Ints
    links: Ints
    rates: Floats


class _Group(NamedTuple):
    """The ranks of an operation.

    Attributes:
        sips: Device of each.
        bounds: Of the rates of messages; None if there are none.
        known: The ways between senders and receivers that were looked up, by their numbers.
        alike: The machine if rank 0 stands for all ranks.
    """

    sips: tuple[int, ...]
    bounds: Bounds | None
    known: dict[bytes, _Pairs]
    alike: Alike | None


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of exchanges, in picoseconds; arrays over exchanges.

    Attributes:
        load: Load of the first piece that leaves.
        store: Store of the last piece that arrived, with its addition if values are added.
        flight: Time of a piece from the first link to the receiver.
        lasting: Time from the first piece's start into the first link to the last piece's, on links
            without company.
        posted: Part of `lasting` until the last piece has a slot, when the program goes on.
        local: Load of the values to which the arriving piece is added.
        moved: Whole time of an exchange that sends and receives no message.
        flowing: Time between two pieces of a message that never waits for a slot.
        waiting: Time between two pieces of a message each of which waits for a slot; 0 if there are
            slots for all pieces.
        meets: Whether the message needs more slots than there are, so that the receiver must take
            pieces out while it is sent.
    """

    load: Floats
    store: Floats
    flight: Floats
    lasting: Floats
    posted: Floats
    local: Floats
    moved: Floats
    flowing: Floats
    waiting: Floats
    meets: Bools


class _Crossing:
    """Sends the messages of one wave after the other over their links.

    Most of it is found for all waves at once: long chains have a wave for each rank.

    Args:
        ways: Of all messages.
        borders: Where the exchanges of each wave begin, and those of the last one end.
    """

    def __init__(self, ways: _Ways, borders: Ints) -> None:
        self._free: Final = np.zeros(ways.most)  # when each link is free of earlier waves
        self._ways: Final = ways
        ends = np.cumsum(ways.hops)
        firsts = ends - ways.hops
        some = np.flatnonzero(ways.hops)
        bounds = np.searchsorted(some, borders)
        entries = np.append(firsts, ends[-1:])[borders]
        low, sizes = borders[:-1], np.diff(ways.bases)
        self._bounds: Final = bounds.tolist()
        self._entries: Final = entries.tolist()
        self._sizes: Final = sizes.tolist()
        # Counted from where the wave begins.
        self._some: Final = some - np.repeat(low, np.diff(bounds))
        self._first: Final = firsts[some] - np.repeat(entries[:-1], np.diff(bounds))
        owner = np.repeat(np.arange(len(ways.hops)), ways.hops)
        self._owner: Final = owner - np.repeat(low, np.diff(entries))
        self._place: Final = ways.places - np.repeat(ways.bases[:-1], np.diff(entries))

    def of(self, wave: int, begin: Floats) -> tuple[Floats, Floats, Floats]:
        """Sends the messages of a wave.

        Args:
            wave: Its number.
            begin: When each message may leave.

        Returns:
            When each message leaves, since links may be busy, when its first link is free again,
            and when the last of its links is.
        """
        some = slice(self._bounds[wave], self._bounds[wave + 1])
        used = slice(self._entries[wave], self._entries[wave + 1])
        if used.start == used.stop:
            return begin, begin, begin
        which, first = self._some[some], self._first[some]
        links, place = self._ways.links[used], self._place[used]
        free = self._free[links]
        begin[which] = np.maximum(begin[which], np.maximum.reduceat(free, first))
        since = np.full(self._sizes[wave], np.inf)
        np.minimum.at(since, place, begin[self._owner[used]])
        self._free[links] = free = np.maximum(free, since[place]) + self._ways.loads[used]
        gone, through = begin.copy(), begin.copy()
        gone[which] = free[first]
        through[which] = np.maximum.reduceat(free, first)
        return begin, gone, through


def _find_costs(
    slowest: PeCosts, events: Events, ways: _Ways, nbytes: Floats, queue: QueueSpec
) -> _Costs:
    pe, hbm = slowest.pe, slowest.memory(Space.HBM)
    slots = slowest.memory(queue.space)
    dma, port = PS_PER_S / pe.dma.per_second, PS_PER_S / hbm.bandwidth.per_second
    copy = PS_PER_S / slots.bandwidth.per_second
    add = events.reduce * (PS_PER_S / pe.math.per_second / _ITEMSIZE)
    piece = np.minimum(nbytes, queue.slot_size)
    load = pe.issue + hbm.latency + piece * max(dma, port)
    store = 2 * pe.issue + hbm.latency + piece * (max(dma, port) + add)
    flight = ways.latency + slots.latency + queue.notice + piece * copy
    flight += np.minimum(piece, queue.vc_chunk_size) * ways.heads_per_byte

    # Pieces of a message follow each other at once as long as there are slots, then whenever a
    # credit is back. A piece without a slot, because its receiver is still busy elsewhere, does
    # not compete for links meanwhile.
    pieces = np.ceil(nbytes / queue.slot_size)
    first = np.minimum(pieces, queue.n_slots)
    beyond = pieces > first
    early = beyond & (events.wave < events.wave[events.taker])
    crowded = np.where(beyond, ways.shared / np.maximum(nbytes, 1), 0)
    crowded = np.maximum(ways.per_byte, crowded)
    over = piece * np.where(early, ways.per_byte, crowded) + flight
    credit = ways.latency + queue.credit_size * ways.per_byte
    # A rank that only sends loads the next piece when the previous one has got its credit.
    alone = np.maximum(
        (over + credit) / queue.n_slots, (over + credit + load) / (queue.n_slots + 1)
    )
    # A rank that also receives takes in one piece for each piece that leaves; its credit set out
    # when its neighbour took in a piece.
    slot = slots.latency + piece * copy + 4 * pe.issue
    paired = np.maximum((load + over) / queue.n_slots, credit + slot)
    waiting = np.where(events.matched >= 0, paired, alone)
    engine = np.maximum(max(dma, 3 * port, copy), add)
    engines = np.maximum(nbytes * engine, pieces * pe.issue)
    lasting = np.maximum(np.where(early, first * piece, nbytes) * crowded, engines)
    lasting = np.maximum(lasting, first * piece * crowded + (pieces - first) * waiting)

    inside = ~events.sends & (events.matched < 0)
    return _Costs(
        load,
        store,
        flight,
        lasting,
        lasting * (pieces - first) / np.maximum(pieces, 1),
        np.where(events.reduce, load, 0),
        np.where(inside, load + store + nbytes * 2 * dma, 0),
        np.maximum(piece * np.maximum(crowded, engine), pe.issue),
        np.where(events.sends & beyond, waiting, 0),
        events.sends & beyond & ~early,
    )


def _one_byte(queue: QueueSpec) -> float:
    """Returns the time of a byte of payload on a link of one byte a second, in picoseconds."""
    return PS_PER_S * queue.line.size / queue.line.payload


def _from_rank_0(machine: Alike, receivers: Sequence[int]) -> Ways:
    """Returns the ways from SIP 0 to others; one link stands for all links of its kind."""
    ways, kinds = list(map(machine.way, receivers)), dict[Hashable, int]()
    links = [kinds.setdefault(kind, len(kinds)) for way in ways for _, kind in way]
    forms = [[link for link, _ in way] for way in ways]
    return Ways(forms, np.arange(len(ways)), np.array(links, np.int64))


def _per_second(rate: Rate) -> int:
    return rate.per_second


def _slowest_memory(memories: Sequence[Memory]) -> Memory:
    return replace(
        memories[0],
        bandwidth=min((memory.bandwidth for memory in memories), key=_per_second),
        latency=max(memory.latency for memory in memories),
    )


class Estimator:
    """Estimates how long algorithms take on a machine.

    Every message uses the links of its own way. Engines, memories and launches of all ranks are
    assumed to be as slow as the slowest of the group, because most algorithms go at the pace of the
    slowest rank.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology: Final = topology
        self._system: Final = topology.machine.system
        self._kinds: Final = [PeCosts.of(sip) for sip in self._system.kinds]
        self._slowest: Final = cached("ccl.mixtures")(self._find_slowest)
        self._estimate: Final = cached("ccl.estimates")(self._find_estimate)
        self._pairs: Final[Table[Hashable, tuple[int, ...]]] = Table("ccl.pairs")
        self._like: Final = cached("ccl.alike")(self._find_like)

    def like(self, sips: tuple[int, ...]) -> tuple[int, ...]:
        """Returns SIPs whose messages to each other take as long as those of the given ones.

        One choice serves all groups that are alike: a machine has as many pairs as ranks, squared.

        Args:
            sips: SIPs of a group.

        Returns:
            The same SIPs for all groups that are alike; in large groups the given ones.
        """
        return self._like(sips) if len(sips) <= _COMPARED else sips

    def _find_like(self, sips: tuple[int, ...]) -> tuple[int, ...]:
        places: dict[int, int] = {}  # a link that is on both ways has one number
        ways = tuple(
            tuple(
                (places.setdefault(one.index, len(places)), one.bandwidth, one.latency, one.kind)
                for one in self._topology.sip_route(*pair)
            )
            for pair in permutations(sips, 2)
        )
        topology, nodes = self._topology, list(map(self._topology.node_of, sips))
        network = self._system.sips.network
        rails = [0 if network.node is None else sip % network.node.size for sip in sips]
        different = sorted(set(rails))
        key = (
            tuple(map(self._system.kind_of, sips)),
            topology.grid(sips),
            tuple(map(nodes.index, nodes)),
            tuple(map(different.index, rails)),
            topology.links_out(sips) if len(sips) > 1 else 0,
            topology.meshed(sips),
            ways,
        )
        return self._pairs.get(key) or self._pairs.keep(key, sips)

    def estimate(
        self, chosen: Chosen, operation: str, nbytes: int, sips: tuple[int, ...]
    ) -> float | None:
        """Returns about how long an operation takes, in picoseconds, with its launch.

        Args:
            chosen: The algorithm.
            operation: A key of `OPERATIONS`.
            nbytes: Size of all blocks of the buffer together.
            sips: Device of each rank of the group.

        Returns:
            The time; None if the algorithm has no plan.

        Raises:
            RefusedError: If the algorithm cannot be used for the group.
        """
        return self._estimate(chosen, chosen.algorithm(operation), operation, nbytes, sips)

    def _find_estimate(
        self,
        chosen: Chosen,
        _algorithm: Algorithm,
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
    ) -> float | None:
        n = len(sips)
        different = sips if self._system.sips.changed else sips[:1]
        start_up = float(max(launches_of(chosen.queue, self._system, different)))
        if not nbytes:
            return start_up
        if n > 1 and not OPERATIONS[operation].rooted:
            start_up += pass_over(chosen.queue, nbytes // n, nbytes - nbytes // n)
        time = self._exchanges(chosen, operation, nbytes, sips)
        return None if time is None else start_up + time

    def _exchanges(
        self,
        chosen: Chosen,
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
    ) -> float | None:
        """Returns how long the exchanges of an operation take; None if it has no plan."""
        with refusals(chosen):
            planned = self._planned(chosen, operation, nbytes, sips)
        if planned is None:
            return None
        sample = planned.sample
        if sample is None:
            return self._time(planned.events(), planned, chosen.queue)
        # All steps are alike, so a few of them tell the time of all.
        times = [
            self._time(planned.events(count), planned, chosen.queue)
            for count in (sample, 2 * sample)
        ]
        left = planned.steps - 2 * sample
        return times[1] + (times[1] - times[0]) * left / sample

    def slot_limit(
        self, chosen: Chosen, operation: str, nbytes: int, sips: tuple[int, ...]
    ) -> SlotLimit | None:
        """Returns what too few slots cost the messages of an operation.

        Args:
            chosen: The algorithm.
            operation: A key of `OPERATIONS`.
            nbytes: Size of all blocks of the buffer together.
            sips: Device of each rank of the group.

        Returns:
            The limit of the messages that lose most; None if slots come back in time, or if the
            algorithm has no plan.

        Raises:
            RefusedError: If the algorithm cannot be used for the group.
        """
        with refusals(chosen):
            planned = self._planned(chosen, operation, nbytes, sips)
        if planned is None or not nbytes:
            return None
        events, queue = planned.events(planned.sample), chosen.queue
        if not len(events.lane):
            return None
        costs = self._priced(events, planned, queue)[2]
        worst = int(np.argmax(costs.waiting - costs.flowing))
        waiting, flowing = float(costs.waiting[worst]), float(costs.flowing[worst])
        if waiting <= _NOTABLE * flowing:
            return None
        piece = queue.slot_size * PS_PER_S
        return SlotLimit(queue.n_slots, queue.slot_size, piece / waiting, piece / flowing)

    def _planned(
        self,
        chosen: Chosen,
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
    ) -> _Planned | None:
        """Returns what there is to time of an operation; None if it has no plan."""
        n, blocks = len(sips), OPERATIONS[operation].blocks
        block = -(-nbytes // (_ITEMSIZE if blocks == "one" else _ITEMSIZE * n))
        messages = most_messages(block, chosen.queue.slot_size // _ITEMSIZE, chosen.align)
        programs = programs_of(chosen, operation, self._topology, sips, 0, messages)
        share = -(-block // len(programs))
        found, bounds, alike = list[Outline](), None, alike_in(self._topology, sips)
        if alike is not None:
            told = [program.told_by_one(alike) for program in programs]
            found = [Outline(plan) for plan in told if plan is not None]
            if len(found) < len(programs):
                found, alike = [], None
        for program in programs if alike is None else ():
            outline = program.outline
            if outline is None:
                return None
            found.append(outline)
            bounds = program.bounds
            if bounds is not None:
                break  # channels that keep out of each other's way: one tells the time of all
        chunk = -(-share // found[0].plan.parts)
        chunk = -(-chunk // chosen.align) * chosen.align * _ITEMSIZE
        return _Planned(found, chunk, _Group(sips, bounds, {}, alike))

    def _kinds_of(self, sips: tuple[int, ...]) -> frozenset[int]:
        changed = self._system.sips.changed
        return frozenset(map(self._system.kind_of, sips if changed else sips[:1]))

    def _time(self, events: Events, planned: _Planned, queue: QueueSpec) -> float:
        """Returns when the last lane is done if all lanes begin at once, in picoseconds."""
        if not len(events.lane):
            return 0.0
        slowest, ways, costs = self._priced(events, planned, queue)
        issue, clock, port_free = slowest.pe.issue, np.zeros(events.lanes), np.zeros(events.lanes)
        arrival = np.zeros(len(events.lane))
        borders = np.flatnonzero(np.diff(events.wave, prepend=-1, append=events.wave[-1] + 1))
        crossing = _Crossing(ways, borders)
        accepted = np.maximum(costs.local, costs.posted[events.matched])
        receives = events.matched >= 0
        meets = np.logical_or.reduceat(costs.meets, borders[:-1]).tolist()
        for number, (low, high) in enumerate(pairwise(borders.tolist())):
            wave = slice(low, high)
            lanes, sends, load = events.lane[wave], events.sends[wave], costs.load[wave]
            lasting, matched = costs.lasting[wave], events.matched[wave]
            free, now = port_free[lanes], clock[lanes] + issue
            begin = np.maximum(now + load, free)
            if meets[number]:
                others = np.maximum(begin, clock[events.to[wave]])
                begin = np.where(costs.meets[wave], others, begin)
            begin, gone, through = crossing.of(number, begin)
            # A rank goes on when the message has left: that another one holds it up further on, as
            # where all send to one rank, keeps no later message to another rank.
            last = begin + lasting
            port_free[lanes] = np.where(sends, np.maximum(gone, last), free)
            arrival[wave] = np.maximum(through, last) + costs.flight[wave]
            left = np.where(sends, begin - load + costs.posted[wave], 0)
            got = np.maximum(arrival[matched], now + accepted[wave]) + costs.store[wave]
            clock[lanes] = np.maximum(
                np.maximum(now + costs.moved[wave], left), np.where(receives[wave], got, 0)
            )
        return float(max(clock.max(), port_free.max()))

    def _priced(
        self, events: Events, planned: _Planned, queue: QueueSpec
    ) -> tuple[PeCosts, _Ways, _Costs]:
        """Returns the slowest PE, the ways of all messages, and what the exchanges cost."""
        nbytes: Floats = (events.span * planned.chunk).astype(np.float64)
        ways = self._find_ways(events, nbytes, queue, planned.group)
        slowest = self._slowest(self._kinds_of(planned.group.sips)).times(queue.pes)
        return slowest, ways, _find_costs(slowest, events, ways, nbytes, queue)

    def _find_ways(self, events: Events, nbytes: Floats, queue: QueueSpec, group: _Group) -> _Ways:
        """Returns the ways of messages; exchanges without a message have unused entries."""
        numbers, which = np.unique(events.pair, return_inverse=True)
        pairs = group.known.get(numbers.tobytes())
        if pairs is None:
            pairs = group.known[numbers.tobytes()] = self._pairs_of(numbers, queue, group)
        rates = _one_byte(queue) / pairs.rates
        counts = pairs.counts
        hops = np.where(events.sends, counts[which], 0)
        ends = np.cumsum(hops)
        first = (np.cumsum(counts) - counts)[which] - (ends - hops)
        links = pairs.links[np.arange(ends[-1]) + np.repeat(first, hops)]
        waves = int(events.wave[-1]) + 1 if len(events.wave) else 0
        place = np.repeat(events.wave, hops) * len(rates) + links
        bases = np.arange(waves + 1) * len(rates)
        if len(place) and place.max() > _SPARSE * len(place):
            found, place = np.unique(place, return_inverse=True)
            bases = np.searchsorted(found, bases)
        loads = np.bincount(place, np.repeat(nbytes, hops) * rates[links])[place]
        shared = np.zeros(len(which))
        if len(links):
            some = hops > 0
            shared[some] = np.maximum.reduceat(loads, (ends - hops)[some])
        return _Ways(
            pairs.latency[which],
            pairs.per_byte[which],
            pairs.heads_per_byte[which],
            shared,
            links,
            len(rates),
            hops,
            place,
            bases,
            loads,
        )

    def _pairs_of(self, numbers: Ints, queue: QueueSpec, group: _Group) -> _Pairs:
        """Returns the ways between ranks; `sender * ranks + receiver` is the number of a pair."""
        senders, receivers = np.divmod(numbers, len(group.sips))
        if group.alike is None:
            sips = np.array(group.sips, np.int64)
            ways = ways_of(self._topology, sips[senders], sips[receivers])
        else:
            ways = _from_rank_0(group.alike, receivers.tolist())
        feeds = self._feeds(senders, receivers, queue, group)
        # Ways over equal links take equal times, and most ways of a large machine are alike.
        kinds, which = np.unique(feeds * len(ways.forms) + ways.form, return_inverse=True)
        one_byte, times = _one_byte(queue), list[tuple[float, float, float]]()
        for feed, form in (divmod(kind, len(ways.forms)) for kind in kinds.tolist()):
            path = Path(ways.forms[form], Bandwidth(feed), 1)
            stages = [one_byte / hop.bandwidth.per_second for hop in path.hops]
            times.append((float(path.latency), max(stages), sum(stages[1:])))
        latency, per_byte, heads = np.array(times).reshape(-1, 3)[which].T
        numbered, links = np.unique(ways.links, return_inverse=True)
        rates = np.zeros(len(numbered))
        rates[links] = ways.rates
        return _Pairs(latency, per_byte, heads, ways.counts, links, rates)

    def _feeds(self, senders: Ints, receivers: Ints, queue: QueueSpec, group: _Group) -> Ints:
        """Returns the rate at which messages enter their first links, in bytes a second."""
        rates = np.array([queue.feed(kind.pe.dma).per_second for kind in self._kinds], np.int64)
        if self._system.sips.changed:
            kinds = np.array(list(map(self._system.kind_of, group.sips)), np.int64)
            found = rates[kinds][senders]
        else:
            found = np.full(len(senders), rates[self._system.kind_of(group.sips[0])])
        if group.bounds is None:
            return found
        bounded = group.bounds.after[senders] == receivers
        return np.where(bounded, np.minimum(found, group.bounds.rates[senders]), found)

    def _find_slowest(self, kinds: frozenset[int]) -> PeCosts:
        """Returns a PE whose every part is as slow as the slowest among SIPs of some kinds."""
        pes = [self._kinds[kind] for kind in sorted(kinds)]
        first, *others = pes
        if not others:
            return first
        pe = replace(
            first.pe,
            tcm=_slowest_memory([one.pe.tcm for one in pes]),
            issue=max(one.pe.issue for one in pes),
            dma=min((one.pe.dma for one in pes), key=_per_second),
            math=min((one.pe.math for one in pes), key=_per_second),
        )
        cube = replace(
            first.cube,
            hbm=_slowest_memory([one.cube.hbm for one in pes]),
            sram=_slowest_memory([one.cube.sram for one in pes]),
        )
        return PeCosts(pe, cube)


@cached("ccl.estimators")
def estimator_of(topology: Topology) -> Estimator:
    """Returns the estimator of a machine; of equal machines, the same object."""
    return Estimator(topology)
