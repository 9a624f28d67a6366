"""One collective under way: ranks arrive, channels are timed, ranks complete."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kernbench.ccl.alike import ALIKE_HINT
from kernbench.ccl.channel import Channel, ChannelPlan
from kernbench.ccl.delivery import Delivery, Taker
from kernbench.ccl.jams import Jam, least_slots
from kernbench.ccl.joining import Joining
from kernbench.ccl.layout import Layout
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import Reduction
from kernbench.ccl.prepared import Prepared
from kernbench.classes.partition import Apart, NotAlikeError, Standing
from kernbench.errors import UnsupportedError
from kernbench.hw.pe import PeCosts
from kernbench.memory import View
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Record, Unkept
from kernbench.sim_engine.shadow import compare
from kernbench.tl.tile import Pointer


class Collective:
    """One collective of one group.

    Args:
        model: State that all collectives of the engine share.
        prepared: Everything known of the collective before its ranks arrive.
        reduction: How values are combined; None if the operation combines none.
        line: Key that all collectives of the group share, because they run one after another; None
            for the devices of the group.
        standing: Which ranks join for others that do the same; None if each joins itself.

    Attributes:
        chosen: The algorithm and its queues.
        ranks: Number of ranks that take part.
        delivery: The bytes of the collective.
        prepared: Everything known of it before its ranks arrive.
    """

    def __init__(
        self,
        model: CollectiveModel,
        prepared: Prepared,
        reduction: Reduction | None = None,
        line: object = None,
        standing: Standing | None = None,
    ) -> None:
        shape = prepared.shape
        self.chosen: Final = shape.chosen
        self.ranks: Final = len(shape.sips)
        self._engine = model.engine
        self.prepared: Final = prepared
        self._reduction = reduction
        self._commands: dict[int, Command] = {}
        self._parts: dict[int, Joining] = {}
        self._data = self._engine.enable_data
        self._live = self._engine.fidelity == "tile" or not prepared.planned
        self.delivery: Final = Delivery(
            prepared, reduction, self._parts, enabled=self._data, live=self._live
        )
        self._timed = self._engine.timed or self._live
        self._standing: Final = standing
        self._line: Final = shape.sips if line is None else line
        # By the rank that stands for them, ends of ranks.
        self._agreed: Final[dict[int, dict[int, int]]] = {}
        combine = "add" if reduction is None else reduction.combine
        shadows: Sequence[ChannelPlan | None] = [None] * len(prepared.channels)
        if self._engine.shadow and self._timed:
            anew = prepared.anew()
            compare("start-ups of a collective, by rank", shape, prepared.start_ups, anew.start_ups)
            shadows = anew.channels
        self._channels = [
            Channel(
                self._engine,
                model.together,
                channel,
                shape.chosen.queue,
                combine,
                self,
                self._line,
                live=self._live,
                cycles=model.cycles,
                companies=model.companies,
                shadow=shadow,
            )
            for channel, shadow in zip(prepared.channels, shadows, strict=True)
        ]
        self._left = self.ranks if standing is None else len(standing.places)
        # By rank, the end of each channel that is done; kept only for several channels.
        self._ends: dict[int, dict[int, int]] = {}

    @property
    def arrived(self) -> Collection[int]:
        """Ranks inside the group whose stream has come to the collective."""
        return self._parts.keys()

    def starved(self) -> list[tuple[int, int, int]]:
        """Returns the queues whose sender waits for a credit: channel, sender, receiver."""
        return [
            (number, *pair)
            for number, channel in enumerate(self._channels)
            for pair in channel.starved()
        ]

    @property
    def pes(self) -> Sequence[PeCosts]:
        """The PE of each rank."""
        return self.prepared.channels[0].costs.pes

    @property
    def messages(self) -> int:
        """Estimated number of messages; callers decide by it whether a repetition is affordable."""
        setting = self.prepared.channels[0].setting
        return self.ranks * max(self.ranks, setting.messages) * setting.channels

    def again(self, engine: GraphEngine, n_slots: int) -> "Collective":
        """Returns the same collective on another engine, over queues of another length.

        Args:
            engine: An engine of its own, for an otherwise idle machine.
            n_slots: Slots of each queue.
        """
        chosen = replace(self.chosen, queue=replace(self.chosen.queue, n_slots=n_slots))
        shape = replace(self.prepared.shape, chosen=chosen)
        model = CollectiveModel(engine)
        return Collective(model, model.prepare(shape), self._reduction)

    @property
    def engine(self) -> GraphEngine:
        """Engine that runs the collective."""
        return self._engine

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.chosen.name

    def needs(self, place: int) -> Collection[int] | None:
        """Returns the ranks whose values a rank needs before it can complete.

        Args:
            place: Rank inside the group; the returned ranks are inside the group, too.

        Returns:
            The ranks; None for all ranks, which holds for every operation without a root.
        """
        shape, operation = self.prepared.shape, self.prepared.operation
        if not operation.rooted:
            return None
        taken = operation.taken(place, self.ranks, shape.root)
        if not any(shape.sizes[block] for block in taken):
            return ()
        return (shape.root,) if operation.gives == "root" else range(self.ranks)

    def jam(self) -> Jam:
        """Returns why the collective does not end although all ranks have arrived.

        Runs the collective again, without data, if queues are full.
        """
        full = self.starved()
        return Jam(self.chosen, full, least_slots(self) if full else 0)

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> Joining:
        """Returns the work of one rank's command.

        Args:
            place: Rank inside the group.
            gives: Views of the blocks that the rank gives, in order: all at once, or in any parts.
            takes: Views of the blocks that the rank takes, in any parts; may be the views of
                `gives`.
            sends: Must be empty: `prepared` knows how much goes to each rank.
        """
        assert not sends
        return Joining(self, place, gives, takes)

    def deliver(self, parts: Mapping[int, Taker]) -> None:
        """Moves the bytes of all ranks at once, whatever the simulated time is.

        Args:
            parts: What each rank gives and takes, by rank inside the group; nobody arrives with
                bytes of their own later.

        Raises:
            UnsupportedError: If the algorithm has no plan, so that only a run in simulated time
                finds what it computes.
        """
        if not self.prepared.planned:
            raise UnsupportedError(
                f"{self.chosen.name} computes its values in simulated time only",
                hint="choose an algorithm with a plan for programs of PyTorch: kernbench list ccl",
            )
        delivery = Delivery(self.prepared, self._reduction, parts, enabled=True, live=False)
        for part in parts.values():
            delivery.deliver(part)

    def check(self, part: Joining) -> None:
        """Notes a fault if a rank gives what was never written.

        Args:
            part: The work of the rank, whose stream has come to the collective.
        """
        if self._data:
            for view in part.sources:
                if view.buffer.unwritten is not None or view.buffer.data is None:
                    self.delivery.check(part.rank, view)

    def arrive(self, part: Joining, command: Command) -> None:
        """Takes a rank whose stream has come to the collective. Does not wait.

        Args:
            part: The work of the rank.
            command: The command of the rank.
        """
        rank = part.rank
        self._parts[rank] = part
        self._commands[rank] = command
        if self._timed:
            standing = self._standing
            if standing is not None and self._arrive_as_one(standing, part):
                return
            for place in (rank,) if standing is None else standing.places[rank]:
                begin = part.start
                if self._engine.timed:
                    # A start-up may be shorter than the device's notice.
                    begin = max(begin + self.prepared.start_ups[place], self._engine.loop.now)
                for channel in self._channels:
                    channel.arrive(place, begin)
        elif len(self._parts) == self.ranks:
            end = max(other.start for other in self._parts.values())
            for other in self._parts.values():
                self._end(other, end)

    def _arrive_as_one(self, standing: Standing, part: Joining) -> bool:
        """Times all ranks from one of them, if all are of one class and nothing tells them apart.

        Returns:
            Whether it did.
        """
        prepared, engine = self.prepared, self._engine
        if len(standing.places) > 1 or self._live or not engine.timed or not prepared.at_once:
            return False
        begin = max(part.start + prepared.start_up(part.rank), engine.loop.now)
        if not all(channel.free_at(begin) for channel in self._channels):
            return False
        end = max(channel.begin_as_one(begin) for channel in self._channels)
        self._end(part, end + part.late)
        return True

    # Calls of channels, see `Ranks`

    def command(self, rank: int) -> Command:
        """See `Ranks`."""
        standing = self._standing
        return self._commands[rank if standing is None else standing.caller[rank]]

    def rank(self, rank: int) -> int:
        """See `Ranks`."""
        standing = self._standing
        return self._commands[rank].host.rank if standing is None else standing.ranks[rank]

    @property
    def stands(self) -> object:
        """See `Ranks`."""
        return None if self._standing is None else self._line

    def timed(self, rank: int, channel: int, end: int | None) -> None:
        """See `Ranks`; the rank completes when its last channel is done.

        Args:
            rank: Rank inside the group.
            end: When the rank is done with the channel, in picoseconds; None takes an earlier end
                back.
        """
        standing = self._standing
        caller = rank if standing is None else standing.caller[rank]
        part = self._parts[caller]
        if part.done:
            return
        if caller == rank:
            part.attempt += 1
            part.end = None
        end = self._note(rank, channel, end)
        if end is not None and (standing is None or self._agree(standing, caller)):
            self._end(part, end + part.late)

    def _note(self, rank: int, channel: int, end: int | None) -> int | None:
        """Notes when a rank is done with a channel; returns when with all, None if not known."""
        if len(self._channels) > 1:
            ends = self._ends.setdefault(rank, {})
            ends.pop(channel, None)
            if end is not None:
                ends[channel] = end
            end = max(ends.values()) if len(ends) == len(self._channels) else None
        if self._standing is not None:
            known = self._agreed.setdefault(self._standing.caller[rank], {})
            known.pop(rank, None)
            if end is not None:
                known[rank] = end
        return end

    def _agree(self, standing: Standing, caller: int) -> bool:
        """Returns whether the ends of all ranks of a class are known.

        Args:
            caller: Place of the rank that stands for them.

        Raises:
            NotAlikeError: If they end at different times.
        """
        known, operation = self._agreed[caller], self.prepared.shape.operation
        if len(known) < len(standing.places[caller]):
            return False
        other = min((place for place in known if known[place] != known[caller]), default=None)
        if other is None:
            return True
        ends = {place: end for found in self._agreed.values() for place, end in found.items()}
        told = [f"that ends {operation} at {ends.get(place)} ps" for place in range(self.ranks)]
        raise NotAlikeError(
            f"ranks {standing.ranks[caller]} and {standing.ranks[other]} are of one class, and do "
            f"not end {operation} at the same time",
            [
                f"algorithm {self.chosen.name} among {self.ranks} ranks: "
                f"{known[caller]} and {known[other]} ps"
            ],
            hint=ALIKE_HINT,
            apart=Apart(standing.ranks, told),
        )

    def all_timed(self, channel: int, first: int, ends: Sequence[int]) -> None:
        """See `Ranks`.

        Args:
            first: Start of the first rank, in picoseconds.
            ends: When each rank is done with the channel, in picoseconds from `first` on.
        """
        if len(self._channels) > 1 or self._standing is not None:
            tell: Iterable[int] = range(self.ranks)
            if self._standing is not None:
                for rank in tell:
                    self._note(rank, channel, first + ends[rank])
                tell = self._standing.places  # each tells of its class, all of whose ends are known
            for rank in tell:
                self.timed(rank, channel, first + ends[rank])
            return
        loop, owners, commands = self._engine.loop, self._engine.command_owners, self._commands
        now, finish = loop.now, self._finish
        for rank, part in self._parts.items():
            attempt = part.attempt = part.attempt + 1
            end = part.end = first + ends[rank] + part.late
            owner = owners[commands[rank].host.rank, 0]
            loop.at(end if end > now else now, owner, finish, part, end, attempt)

    def workspace(self, rank: int, layout: Layout) -> Pointer:
        """See `Ranks`."""
        return self.delivery.workspace(rank, layout)

    # Completion

    @property
    def is_message(self) -> bool:
        """Whether it is a message from rank to rank."""
        return self.prepared.shape.operation == "send_recv"

    def put_off(self, part: Joining, end: int) -> None:
        """Lets a rank whose end was known complete at `end`, in picoseconds, instead."""
        part.attempt += 1
        self._end(part, end)

    def _end(self, part: Joining, end: int) -> None:
        """Lets a rank complete at `end`, unless a later end replaces this one."""
        part.end = end
        loop = self._engine.loop
        time = end if end > loop.now else loop.now
        owner = self._engine.command_owner(self._commands[part.rank].host.rank)
        loop.at(time, owner, self._finish, part, end, part.attempt)

    def _finish(self, part: Joining, end: int, attempt: int) -> None:
        if part.attempt != attempt or part.done:
            return
        faults = self.delivery.faults
        if faults and part.rank not in faults:
            # The output is worthless; the rank is aborted where it waits for the output.
            return
        part.done = True
        self._left -= 1
        if not self._left:
            if self._engine.op_log.full and self._standing is not None:
                self._log_unkept()
            for channel in self._channels:
                if self._engine.op_log.full and self._standing is None:
                    self._log_spans(channel)
                channel.free()
        command = self._commands[part.rank]
        if part.guests is not None:
            part.leave()
        self._engine.complete(command, part.start, end, partial(self.delivery.deliver, part))
        if not self._left:
            self._let_go()

    def drop(self) -> None:
        """Lets go of ranks and channels, which will not complete."""
        for channel in self._channels:
            channel.drop()
        for part in self._parts.values():
            part.leave()
        self._let_go()

    def _let_go(self) -> None:
        # They refer back to the collective; the garbage collector would find them late.
        self._commands.clear()
        self._parts.clear()
        self._channels.clear()

    def _log_unkept(self) -> None:
        """Notes when messages began that would be too many to keep."""
        joined = max(part.start for part in self._parts.values())
        for part in self._parts.values():
            command = self._commands[part.rank]
            key = command.host.rank, command.issued
            begins = joined + self.prepared.start_up(part.rank)
            self._engine.op_log.unkept[key] = Unkept(joined, begins)

    def _log_spans(self, channel: Channel) -> None:
        log, itemsize = self._engine.op_log, self.prepared.shape.dtype.itemsize
        spans, shift = channel.spans()
        for span in spans:
            sender = self._commands[span.sender]
            receiver = self._commands[span.receiver]
            flow = log.new_flow()
            nbytes = span.elements * itemsize
            links = [link.name for link in channel.path(span.sender, span.receiver).route]
            to, number = receiver.host.rank, channel.track
            log.add(
                Record(
                    f"send to {to}",
                    "send",
                    sender.host.rank,
                    f"dma{number}.send",
                    sender.issued,
                    span.sent + shift,
                    span.injected + shift,
                    sender.site,
                    {"bytes": nbytes, "links": links},
                    flow,
                    sender.ranges,
                    sender.took,
                )
            )
            log.add(
                Record(
                    f"recv from {sender.host.rank}",
                    "recv",
                    to,
                    f"dma{number}.recv",
                    receiver.issued,
                    span.arrived + shift,
                    span.received + shift,
                    receiver.site,
                    {"bytes": nbytes},
                    flow,
                    receiver.ranges,
                    receiver.took,
                )
            )
