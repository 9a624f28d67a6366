"""One channel of a collective: the cheapest exact tier times it."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Protocol

from kernbench.ccl.at_once import AtOnce, at_once
from kernbench.ccl.company import Companies, Company
from kernbench.ccl.costs import RankCosts, Span
from kernbench.ccl.cycles import Cycles
from kernbench.ccl.lanes import paths_by, vectorised
from kernbench.ccl.layout import Cuts, Layout
from kernbench.ccl.live import LiveComm
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import Algorithm, Cutting, Plan, Setting
from kernbench.ccl.programs import ChannelProgram
from kernbench.ccl.replay import Replay
from kernbench.ccl.runs import Runs
from kernbench.des import EventLoop, Owner, Task, order
from kernbench.hw.claims import Claim, Share, Use, never
from kernbench.hw.network import Network
from kernbench.hw.path import Path
from kernbench.hw.pe import PeTimeline, Timeless, later
from kernbench.hw.queue import Queue, QueueSpec, Sender
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Category, Record
from kernbench.sim_engine.shadow import compare
from kernbench.tl.misfits import told
from kernbench.tl.program import Program, Trace
from kernbench.tl.tile import Pointer
from kernbench.topology import Topology
from kernbench.topology.alike import alike_in

Timing = tuple[list[int], list[Span]]
"""When each rank is done, in picoseconds, and the messages that were sent."""


@dataclass(frozen=True, eq=False)
class ChannelPlan:
    """Everything about a channel that does not depend on time.

    Attributes:
        program: What each rank runs.
        sips: SIP of each rank.
        blocks: Elements of every block by rank, shape `[ranks or 1, blocks]`.
        align: Number of elements; chunks begin at multiples of it.
        costs: Costs of the channel's messages.
        path: Returns the path between two ranks of the group.
        lead: Shortest start-up of a rank, in picoseconds.
        topology: The machine.
        share: See `Use`.
    """

    program: ChannelProgram
    sips: tuple[int, ...]
    blocks: Ints
    align: int
    costs: RankCosts
    path: Callable[[int, int], Path]
    lead: int
    topology: Topology
    share: Share | None = None

    @property
    def algorithm(self) -> Algorithm:
        """Program of each rank."""
        return self.program.algorithm

    @cached_property
    def setting(self) -> Setting:
        """Everything that the algorithm can see besides its rank."""
        return self.program.setting

    @cached_property
    def plan(self) -> Plan | None:
        """Exchanges of all ranks; None if the algorithm must run live."""
        return self.program.plan

    @cached_property
    def planned(self) -> bool:
        """Whether there is a plan, which is not made for this."""
        return self.program.formula is not None or self.plan is not None

    @cached_property
    def at_once(self) -> AtOnce | None:
        """All ranks that begin at once, timed as one; None if one does not tell of all."""
        machine = None if self.setting.of_chunks else alike_in(self.topology, self.sips)
        plan = None if machine is None else self.program.told_by_one(machine)
        if machine is None or plan is None:
            return None
        return at_once(machine, plan, self.cut(plan.cuts), self.costs)

    @cached_property
    def layout(self) -> Layout:
        """Cuts of the buffers that the plan uses."""
        assert self.plan is not None
        return self.cut(self.plan.cuts)

    @cached_property
    def runs(self) -> Runs:
        """Turns of the exchanges."""
        costs = self.costs.together
        return Runs(self.layout, costs.piece, costs.queue.n_slots)

    def layout_of(self, cutting: Cutting) -> Layout:
        """Returns the cuts of the buffers that an algorithm asked for in a live run."""
        return self.cut(cutting.cuts)

    def cut(self, cuts: Cuts) -> Layout:
        """Returns the cuts of the buffers."""
        setting = self.setting
        return Layout(
            self.blocks,
            cuts,
            self.align,
            channel=setting.channel,
            channels=setting.channels,
            of_chunks=setting.of_chunks,
        )

    @cached_property
    def use(self) -> Use:
        """Links that the channel sends over; without a plan, links between all pairs of ranks."""
        if self.at_once is not None:
            ways = self.at_once.ways
            return Use(self._paths(), self.lead, ways.tail, share=self.share, ways=ways)
        paths = list(self._paths())
        queue = self.costs.each[0].queue
        largest = queue.on_links(queue.slot_size)
        tail = max((path.tail(queue.n_slots, largest) for path in paths), default=0)
        return Use(paths, self.lead, tail, share=self.share)

    def _paths(self) -> Iterator[Path]:
        ranks = range(self.setting.world_size)
        for pair in itertools.permutations(ranks, 2) if self.plan is None else self.plan.pairs:
            yield self.path(*pair)

    @cached_property
    def sent_over(self) -> list[tuple[int, ...]]:
        """By rank, the indices of the links that it sends over."""
        found: list[list[int]] = [[] for _ in range(self.setting.world_size)]
        for (sender, _), path in zip(self.pairs, self.use.paths, strict=True):
            found[sender] += path.links
        return list(map(tuple, found))

    @cached_property
    def freed_by(self) -> dict[int, tuple[int, ...]]:
        """By the index of a link, ranks at whose ends nothing of the channel is on the link.

        Holds while the channel is alone on its links. The first stage of a path is free once its
        sender has sent everything, the others once the receiver has got everything.
        """
        found: dict[int, dict[int, None]] = {}
        for (sender, receiver), path in zip(self.pairs, self.use.paths, strict=True):
            for link in path.links:
                rank = sender if link in path.injecting else receiver
                found.setdefault(link, {})[rank] = None
        return {link: tuple(ranks) for link, ranks in found.items()}

    @property
    def pairs(self) -> Sequence[tuple[int, int]]:
        """Sender and receiver of each path of `use`; needs a plan."""
        assert self.plan is not None
        return self.plan.pairs

    @cached_property
    def in_lanes(self) -> bool:
        """Whether arrays can time all ranks at once while the channel is alone on its links."""
        plan = self.plan
        return (
            plan is not None
            and plan.in_stages
            and self.layout.alike
            and bool(self.layout.nominal)
            and plan.gathers
        )

    @cached_property
    def apart(self) -> bool:
        """Whether its ranks share links, and it is timed over a network of its own while alone."""
        return self.in_lanes and not self.use.private and self.setting.channels == 1

    @cached_property
    def long_message(self) -> bool:
        """Whether it is one message from rank to rank that is cut into more pieces than slots."""
        plan = self.plan
        if plan is None or self.setting.world_size != 2 or len(plan.send) != 1:
            return False
        if len(plan.pairs) != 1:
            return False
        queue, ((sender, _),) = self.costs.together.queue, plan.pairs
        (step,) = plan.of(sender)
        turns = self.runs.of(sender, step.send, step.receive, step.span)
        return sum(number for out, _, number in turns if out is not None) > queue.n_slots

    @cached_property
    def alone(self) -> list[int] | None:
        """By rank, the picoseconds it takes if all begin at once and nobody else is on its links.

        None without a plan.
        """
        if self.at_once is not None:
            return [self.at_once.picoseconds] * self.setting.world_size
        if self.plan is None:
            return None
        skews = (0,) * self.setting.world_size
        if self.gathers:
            return together(self, skews, False)[0]
        return _replayed(self, skews, Cycles)[0]

    @cached_property
    def gathers(self) -> bool:
        """Whether no rank is done before all have begun, so that all can be timed `together`."""
        return self.in_lanes or self.long_message

    def queue(self, sender: int, receiver: int) -> Queue:
        """Returns a new queue between two ranks."""
        costs = self.costs.each
        return Queue(
            self.path(sender, receiver),
            costs[sender].queue,
            costs[sender].poll_interval,
            costs[receiver].slot_latency,
        )


def together(
    prepared: ChannelPlan, skews: tuple[int, ...], trace: bool, within: EventLoop | None = None
) -> Timing:
    """Times a channel that is alone on its links, all ranks at once.

    Args:
        prepared: The channel; it `gathers`.
        skews: When each rank begins, in picoseconds.
        trace: Whether to return the messages.
        within: The loop whose spare calls are spent; None if nobody counts.

    Returns:
        When each rank is done, in picoseconds, and the messages; no messages without `trace`.
    """
    if prepared.at_once is not None and not (trace or any(skews)):
        return [prepared.at_once.picoseconds] * len(skews), []
    plan = prepared.plan
    assert plan is not None
    if prepared.apart:
        return _apart(prepared, skews, trace, within=within)
    if prepared.in_lanes:
        costs, once = prepared.costs.together, prepared.at_once
        paths = paths_by(prepared.path) if once is None else once.paths
        return vectorised(plan, prepared.layout, costs, paths, skews, trace=trace)
    return _replayed(prepared, skews, Cycles, trace)


def _replayed(
    prepared: ChannelPlan,
    skews: Sequence[int],
    cycles: Callable[[], Cycles] | None,
    trace: bool = False,
) -> Timing:
    """Does what `together` does, rank by rank over queues."""
    assert prepared.plan is not None
    ends: dict[int, int] = {}
    replay = Replay(
        prepared.plan,
        prepared.layout,
        prepared.costs.each,
        {pair: prepared.queue(*pair) for pair in prepared.plan.pairs},
        None,
        ends.__setitem__,
        runs=prepared.runs,
        cycles=cycles,
        trace=trace,
    )
    for rank, start in enumerate(skews):
        replay.start(rank, start)
    replay.leave()
    return [ends[rank] for rank in range(len(skews))], replay.spans()


def _apart(
    prepared: ChannelPlan,
    skews: Sequence[int],
    trace: bool,
    *,
    skips: bool = True,
    within: EventLoop | None = None,
) -> Timing:
    """Does what `together` does, over a network on which nothing else happens."""
    assert prepared.plan is not None
    loop = EventLoop()
    if within is not None:
        loop.spare, loop.on_limit = within.spare, partial(within.spend, within.spare or 0)
    network = Network(prepared.topology, loop)
    cycles = Cycles(network)
    owners = [loop.owner(order.command_of(rank)) for rank in range(len(skews))]
    ends: dict[int, int] = {}
    replay = Replay(
        prepared.plan,
        prepared.layout,
        prepared.costs.each,
        {pair: prepared.queue(*pair) for pair in prepared.plan.pairs},
        lambda rank, pe: Sender(network, pe, owners[rank]),
        ends.__setitem__,
        runs=prepared.runs,
        cycles=(lambda: cycles) if skips else None,
        trace=trace,
    )
    if replay.watched:
        cycles.join(replay)
    for rank, start in enumerate(skews):
        loop.at(start, owners[rank], replay.start, rank, start)
    loop.run()
    if within is not None:
        within.spend((within.spare or 0) - (loop.spare or 0))
    replay.leave()
    return [ends[rank] for rank in range(len(skews))], replay.spans()


Together = Callable[[ChannelPlan, tuple[int, ...], bool], Timing]
"""What `together` is."""


class Ranks(Protocol):
    """The part of a collective that its channels call."""

    @property
    def stands(self) -> object:
        """See `Claim`."""
        ...

    def command(self, rank: int) -> Command:
        """Returns the command of a rank, or of the rank that stands for it."""
        ...

    def rank(self, rank: int) -> int:
        """Returns the global rank of a rank inside the group."""
        ...

    def workspace(self, rank: int, layout: Layout) -> Pointer:
        """Returns the buffer of a rank in a live run.

        Args:
            rank: Rank inside the group.
            layout: Cuts of the buffer.

        Raises:
            KernbenchError: If an input of the rank was never written.
        """
        ...

    def timed(self, rank: int, channel: int, end: int | None) -> None:
        """Notes when a rank is done with a channel.

        Args:
            rank: Rank inside the group.
            end: When the rank is done with the channel, in picoseconds; None takes an earlier end
                back.
        """
        ...

    def all_timed(self, channel: int, first: int, ends: Sequence[int]) -> None:
        """Notes when each rank is done with a channel.

        Args:
            first: Start of the first rank, in picoseconds.
            ends: When each rank is done with the channel, in picoseconds from `first` on.
        """
        ...


class Channel:
    """One channel of one collective.

    Args:
        together: The function of this name, or its cached answers.
        prepared: Everything about the channel that does not depend on time.
        queue: How queues between ranks are built.
        combine: Name of the ufunc that combines values.
        ranks: The collective, which knows its ranks.
        line: Key of a line of commands; collectives of one line run one after another.
        live: Whether to run the algorithm itself instead of its plan.
        cycles: Skips repetitions of all replays on the network.
        companies: Know what becomes of collectives of the line that meet each other.
        shadow: `prepared` found anew, to check the answers of `together`; None to trust them.
    """

    def __init__(
        self,
        engine: GraphEngine,
        together: Together,
        prepared: ChannelPlan,
        queue: QueueSpec,
        combine: str,
        ranks: Ranks,
        line: object,
        *,
        live: bool,
        cycles: Cycles,
        companies: Companies,
        shadow: ChannelPlan | None = None,
    ) -> None:
        self._engine: Final = engine
        self._together: Final = together
        self._prepared: Final = prepared
        self._spec: Final = queue
        self._combine: Final = combine
        self._ranks: Final = ranks
        self._number: Final = prepared.setting.channel
        self._line: Final = (line, self._number)
        self._live: Final = live or not prepared.planned
        self._size: Final = prepared.setting.world_size
        self._shared: Final = cycles
        self._shadow: Final = shadow
        self._companies: Final = companies
        self._company: Company | None = None
        self._over = False
        self.plan: Final = prepared
        self.starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._owners: dict[int, Owner] = {}
        self._keys: dict[int, tuple[int, int]] = {}
        self._queues: dict[tuple[int, int], Queue] = {}
        self.claim: Claim | None = None
        self._gathers = False  # whether it waits for all ranks, to time them together
        self._as_one: tuple[int, int] | None = None  # when all ranks begin and end, timed as one
        self._replay: Replay | None = None
        self._attempt = 0

    def arrive(self, rank: int, start: int) -> None:
        """Takes a rank that begins at `start`, in picoseconds. Does not wait."""
        if self._live:
            self._start_live(rank, start)
            return
        busy = self._busy(rank, start)
        if busy and start > self._engine.loop.now:
            # The activity that is on the links now may be over at `start`.
            self._engine.loop.at(start, self._owner(rank), self._late, rank, start)
        else:
            self._begin(rank, start, busy)

    def free_at(self, start: int) -> bool:
        """Returns whether links are free for all ranks at `start`, in picoseconds.

        Only where ranks that begin at once can be timed as one.
        """
        prepared, claims = self._prepared, self._engine.network.claims
        if self._live or prepared.at_once is None:
            return False
        return not claims.active or claims.clear_for(prepared.use, self._line, start, self.claim)

    def begin_as_one(self, start: int) -> int:
        """Takes all ranks, which begin at `start`; returns when all end, in picoseconds.

        It must be `free_at` the start.
        """
        claims, once = self._engine.network.claims, self._prepared.at_once
        assert once is not None
        self.claim = claims.take(
            self._prepared.use,
            self._line,
            self._repeat,
            self._released,
            apart=True,
            stands=self._ranks.stands,
        )
        claims.hold_all(self.claim)
        self._as_one = start, start + once.picoseconds
        return self._as_one[1]

    def _late(self, rank: int, start: int) -> None:
        self._begin(rank, start, self._busy(rank, start))

    def _busy(self, rank: int, start: int) -> bool:
        claims, claim = self._engine.network.claims, self.claim
        if not claims.active or (claim is not None and not claim.alone):
            return False
        if claim is not None and self._company is not None and self._company.following:
            return False
        if (claim is None or claims.holds_all(claim)) and self._may_hold_all(start):
            return False
        prepared = self._prepared
        use = prepared.use
        links = prepared.sent_over[rank] if use.private or prepared.apart else use.links
        return claims.busy(use, self._line, links, start, claim)

    def _may_hold_all(self, start: int) -> bool:
        """Returns whether the first rank gets the links of all, which are free for one at `start`.

        So many ranks that some stand for others have too many links to give them out one by one.
        """
        return self._ranks.stands is not None and self.free_at(start)

    def _hold(self, claim: Claim, rank: int, start: int) -> None:
        """Gives a rank that begins its links; the first one may get those of all."""
        claims = self._engine.network.claims
        if len(self.starts) == 1 and self._may_hold_all(start):
            claims.hold_all(claim)
        elif not claims.holds_all(claim):
            claims.hold(claim, self._prepared.sent_over[rank])

    def _released(self, link: int) -> int | None:
        """See `Released`."""
        if self._as_one is not None:
            return self._as_one[1]
        latest, ends = 0, self._ends
        if self._company is not None and self._company.following:
            return None  # others of the company may be on the link
        # Where ranks stand for others, a link stands for those of others, too.
        stands = self._ranks.stands is not None
        for rank in range(self._size) if stands else self._prepared.freed_by[link]:
            end = ends.get(rank)
            if end is None:
                return None
            if end > latest:
                latest = end
        return latest

    def free(self) -> None:
        """Frees the links and drops the messages: every rank has completed."""
        self._over = True
        if self._company is None or not self._company.leave(self):
            self.release()

    def release(self) -> None:
        """See `Member`."""
        if self.claim is not None:
            self._engine.network.claims.drop(self.claim)
        if self._replay is not None:
            self._replay.leave()
        self.claim = self._replay = None  # they refer back to the channel
        self._attempt += 1  # a rank without messages may be repeated at the instant of its end

    def drop(self) -> None:
        """Lets go of what refers back to the channel: its ranks will not complete."""
        self.claim = self._replay = None

    def _begin(self, rank: int, start: int, busy: bool) -> None:
        """Lets a rank begin, on links that are free for it or `busy`."""
        self.starts[rank] = start
        claims, prepared = self._engine.network.claims, self._prepared
        claim = self.claim
        if claim is None:
            claim = self._take()
        company = self._company
        if company is not None and company.enter(self, rank):
            return
        if claim.alone and not busy:
            self._hold(claim, rank, start)
        elif claim.alone:
            begun = len(self.starts) > 1
            if company is None and claim.member is not None:
                company = self._companies.of(self)
                if company.enter(self, rank):
                    return
            claims.share(claim, begun=begun)
            if begun:
                return  # with the ranks before it, it has been started over the network
            self._gathers = False
            if self._replay is not None:
                self._replay.leave()
            self._replay = self._new_replay()
        if not self._gathers:
            self._start_replay(rank)
        elif len(self.starts) == self._size:
            if prepared.apart and not self._in_order():
                claims.share(claim, begun=True)
                return
            first, timing = self._timing()
            if self._shadow is not None:
                self._compare(self._shadow, first, timing)
            self._ends = {rank: first + end for rank, end in enumerate(timing[0])}
            if company is not None:
                for each, end in self._ends.items():
                    company.ended(self, each, end)
            self._ranks.all_timed(self._number, first, timing[0])

    def _take(self) -> Claim:
        """Returns the claim of the channel, whose first rank begins."""
        claims, prepared, companies = self._engine.network.claims, self._prepared, self._companies
        # Where ranks stand for others, nobody meets whose times are not timed with theirs.
        meets = (
            not self._engine.op_log.full
            and prepared.setting.operation != "send_recv"
            and self._ranks.stands is None
        )
        solitary = prepared.use.private or prepared.apart
        if meets and (
            not solitary
            or (companies.active and any(each.company for each in claims.on(prepared.use.links)))
        ):
            companies.of(self)
        followed = self._company is not None and self._company.following
        claim = self.claim = claims.take(
            prepared.use,
            self._line,
            self._repeat,
            self._released,
            apart=prepared.apart or followed,
            company=self._company,
            member=self if meets else None,
            stands=self._ranks.stands,
        )
        self._gathers = not followed and claim.alone and prepared.gathers
        if followed:
            claims.hold(claim, prepared.use.links)
        elif not self._gathers:
            self._replay = self._new_replay()
        return claim

    # Calls of its company, see `Member`

    def key(self, rank: int) -> tuple[int, int]:
        """See `Member`."""
        if rank not in self._keys:
            self._owner(rank)
        return self._keys[rank]

    def meet(self, company: Company) -> None:
        """See `Member`."""
        self._company = company
        if self.claim is not None:
            self.claim.company = company

    def follow(self) -> None:
        """See `Member`."""
        self._take_back()
        if self._replay is not None:
            self._replay.leave()
        self._replay, self._gathers = None, False
        self._attempt += 1
        if self.claim is not None:
            self._engine.network.claims.hold(self.claim, self._prepared.use.links)

    def settle(self, rank: int, end: int) -> None:
        """See `Member`."""
        self._ends[rank] = end
        if not self._over:
            self._ranks.timed(rank, self._number, end)

    def _take_back(self) -> None:
        """Takes back the ends of ranks."""
        if not self._over:
            for rank in self.starts:
                self._ranks.timed(rank, self._number, None)
        self._ends.clear()

    def _in_order(self) -> bool:
        """Returns whether ties of ranks are decided as on a network of its own."""
        ranks = [self._ranks.rank(rank) for rank in range(self._size)]
        return all(one < other for one, other in itertools.pairwise(ranks))

    def _start_replay(self, rank: int) -> None:
        assert self._replay is not None
        assert self.claim is not None
        start = self.starts[rank]
        if self.claim.alone:
            self._replay.start(rank, start)
        else:
            # Shared links are used in simulated-time order, so a rank begins at its own start.
            self._engine.loop.at(start, self._owner(rank), self._replay.start, rank, start)

    def _new_replay(self) -> Replay:
        prepared, claim = self._prepared, self.claim
        assert prepared.plan is not None
        assert claim is not None
        self._queues = {}
        self._attempt += 1
        replay = Replay(
            prepared.plan,
            prepared.layout,
            prepared.costs.each,
            {pair: self.queue(*pair) for pair in prepared.plan.pairs},
            None if claim.alone else self._sender,
            partial(self._timed, self._attempt),
            runs=prepared.runs,
            cycles=self._alone if claim.alone else self._in_company,
            trace=self._traces,
            spend=self._engine.loop.spend if claim.alone else None,
        )
        if replay.watched and not claim.alone:
            self._shared.join(replay)
        return replay

    def _alone(self) -> Cycles:
        return Cycles(shadow=self._engine.shadow)

    def _in_company(self) -> Cycles:
        return self._shared

    def _timed(self, attempt: int, rank: int, end: int) -> None:
        if attempt == self._attempt:
            if self._company is not None:
                self._company.ended(self, rank, end)
            self.settle(rank, end)

    def _repeat(self) -> tuple[int, Callable[[], None]]:
        """Takes back times that hold only without company on the links; see `Repeat`."""
        # Collectives of one group follow each other, and others are refused where ranks stand.
        assert self._as_one is None
        if self._company is not None:
            self._company.repeated(self)
        self._take_back()
        self._gathers = False
        if self._replay is not None:
            self._replay.leave()
        self._replay = self._new_replay()

        def begin() -> None:
            for rank in sorted(self.starts):
                self._start_replay(rank)

        return min(self.starts.values()), begin

    def _compare(self, anew: ChannelPlan, first: int, timing: Timing) -> None:
        """Times the channel anew, on arrays and rank by rank over queues.

        Raises:
            ShadowError: If a rank is done at another time, or something else was sent.
        """
        starts = [self.starts[rank] - first for rank in range(self._size)]
        setting = anew.setting
        key = f"{setting.operation} of {self._size} ranks, channel {setting.channel}, from {starts}"
        again = together(anew, tuple(starts), self._traces)
        compare("picoseconds at which ranks are done, at once", key, timing[0], again[0])
        compare("messages of ranks, at once", key, timing[1], again[1])
        if anew.apart:
            alone, _ = _apart(anew, starts, trace=False, skips=False)
        else:
            alone, _ = _replayed(anew, starts, None)
        compare("picoseconds at which ranks are done, over queues", key, timing[0], alone)

    @property
    def _traces(self) -> bool:
        """Whether messages are kept: not those of ranks for which others stand."""
        return self._engine.op_log.full and self._ranks.stands is None

    def _timing(self) -> tuple[int, Timing]:
        """Returns the start of the first rank, and all times counted from this start."""
        starts = self.starts
        first = min(starts.values())
        skews = tuple([starts[rank] - first for rank in range(len(starts))])
        return first, self._together(self._prepared, skews, self._traces)

    def spans(self) -> tuple[list[Span], int]:
        """Returns the sent messages and the start of their times, once every rank is done."""
        if self._live or not self._engine.timed:
            return [], 0
        if self._replay is not None:
            return self._replay.spans(), 0
        first, (_, spans) = self._timing()
        return spans, first

    @property
    def track(self) -> str:
        """Suffix of the names of the channel's engines in traces."""
        return str(self._number) if self._number else ""

    def path(self, sender: int, receiver: int) -> Path:
        """Returns the path between two ranks."""
        return self._prepared.path(sender, receiver)

    def queue(self, sender: int, receiver: int) -> Queue:
        """Returns the queue between two ranks."""
        queue = self._queues.get((sender, receiver))
        if queue is None:
            queue = self._prepared.queue(sender, receiver)
            self._queues[sender, receiver] = queue
        return queue

    def starved(self) -> list[tuple[int, int]]:
        """Returns the senders and receivers of the queues whose sender waits for a credit."""
        return sorted(pair for pair, queue in self._queues.items() if queue.starved)

    def _owner(self, rank: int) -> Owner:
        # Channels of a rank have owners of their own, and so have its collectives, in the order in
        # which it issued them: ties have one order, whichever way the collectives are timed.
        owner = self._owners.get(rank)
        if owner is None:
            number, turn = self._ranks.rank(rank), self._ranks.command(rank).turn
            owner = self._engine.command_owner(number, self._number).turn(turn)
            self._owners[rank] = owner
            self._keys[rank] = owner.key, turn
        return owner

    def _sender(self, rank: int, pe: PeTimeline[int]) -> Sender:
        return Sender(self._engine.network, pe, self._owner(rank))

    # Live

    def _start_live(self, rank: int, start: int) -> None:
        engine = self._engine
        if self.claim is None and engine.timed:
            # A live run cannot be repeated, so it always goes through the network.
            claims = engine.network.claims
            self.claim = claims.take(self._prepared.use, self._line, never, alone=False)
        engine.loop.start(
            self._run_live,
            rank,
            start,
            owner=self._owner(rank),
            clock=start,
            name=f"{self._prepared.setting.operation} on rank "
            f"{self._ranks.command(rank).host.rank}",
        )

    def _run_live(self, rank: int, start: int) -> None:
        engine, command = self._engine, self._ranks.command(rank)
        task = engine.loop.current
        assert task is not None
        timeline = PeTimeline[int] if engine.timed else Timeless
        pe = timeline(start, self._prepared.costs.each[rank].issue, later)
        try:
            end = self._run_algorithm(rank, task, pe)
        except BaseException as error:
            engine.fail(command, told(error))
            end = later(pe.clock, engine.loop.now)  # its local time may be behind the loop
        self._ranks.timed(rank, self._number, end)

    def _run_algorithm(self, rank: int, task: Task, pe: PeTimeline[int]) -> int:
        engine, prepared = self._engine, self._prepared
        full = engine.op_log.full
        program = Program(
            task,
            pe,
            prepared.costs.pes[rank],
            channels=_Channels(self.queue, rank, prepared.setting.world_size),
            sender=self._sender(rank, pe) if engine.timed else None,
            data=engine.enable_data,
            bounded=False,
            trace=self._tracer(self._ranks.command(rank)) if full else None,
            flows=engine.op_log.new_flow if full else None,
        )
        task.subject = program
        comm = LiveComm(
            program,
            rank,
            prepared.setting,
            lambda layout: self._ranks.workspace(rank, layout),
            prepared.layout_of,
            self._combine,
            self._spec,
            prepared.costs.together.itemsize,
        )
        prepared.algorithm(comm)
        self._ranks.workspace(
            rank, comm.layout
        )  # so that a rank without exchanges has its output, too
        program.drain()
        return program.end

    def _tracer(self, command: Command) -> Trace:
        log = self._engine.op_log
        pe = f"pe{self._number}"

        def trace(
            name: str,
            category: Category,
            track: str,
            start: int,
            end: int,
            flow: int,
            args: Mapping[str, Any],
        ) -> None:
            log.add(
                Record(
                    name,
                    category,
                    command.host.rank,
                    f"{pe}.{track}",
                    command.issued,
                    start,
                    end,
                    command.site,
                    args,
                    flow,
                    command.ranges,
                    command.took,
                )
            )

        return trace


class _Channels:
    """The queues of one rank, by the peer's rank in the group."""

    peers_are = "the ranks of the group"

    def __init__(self, queue: Callable[[int, int], Queue], rank: int, peers: int) -> None:
        self.peers = peers
        self._queue = queue
        self._rank = rank

    def outgoing(self, peer: int) -> Queue:
        return self._queue(self._rank, peer)

    def incoming(self, peer: int) -> Queue:
        return self._queue(peer, self._rank)
