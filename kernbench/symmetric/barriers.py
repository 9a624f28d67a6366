"""Where ranks that share memory wait for each other on their devices: barriers and signals."""

from collections.abc import Collection, Sequence
from typing import Final

from kernbench.des import Event
from kernbench.kernels.host_calls import Issue
from kernbench.memory import View
from kernbench.process.act import Entered, act
from kernbench.process.process import Process
from kernbench.ranks.at_call import AtCall
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Call, Exchange
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.symmetric.links import latency, peers_of


class Barriers(ProcessGroup):
    """The barriers of one channel: the k-th of each rank is the k-th of all.

    Args:
        name: Name of the memory and the channel in reports.
        ranks: Global ranks.
        sips: Their devices.
        engine: What runs them.
        launches: Whether each is a kernel; otherwise it is a step of one, which takes no launch.
    """

    advice = "every rank of the group calls the same barriers of a channel in the same order"

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        sips: Sequence[int],
        engine: GraphEngine,
        *,
        launches: bool = True,
    ) -> None:
        super().__init__(name, ranks)
        self.sips = tuple(sips)
        self._launches: Final = launches
        self._engine: Final = engine

    def _begin(self, title: str, number: int) -> Exchange:
        exchange = super()._begin(title, number)
        together = _Together(self._engine, self.sips, launches=self._launches)
        exchange.joint = AtCall(together, len(self.ranks), lambda _: None)
        return exchange

    def enter_device(
        self,
        process: Process,
        name: str = "symm_mem::barrier",
        *,
        issue: Issue = "kernel",
    ) -> Exchange:
        """Lets the current stream of a rank wait for those of all ranks.

        The host waits until all have called, which takes no simulated time: what ranks write before
        the barrier is there after it.

        Args:
            process: The rank that calls.
            name: Name of the command.
            issue: What the host calls.
        """
        sip = process.ctx.devices[process.rank]
        site, world = process.call_site(), world_of(process)
        what = name.rpartition(":")[2]
        entered: list[Exchange] = []

        def enter() -> Entered:
            call = Call(process.rank, what, (), f"{what}()", site, process.host.clock)
            exchange = self.enter(call)
            if len(exchange.calls) == 1 and not world.exited.keys().isdisjoint(exchange.absent()):
                world.review()
            entered.append(exchange)
            assert exchange.joint is not None
            action = exchange.joint.join(self.place(process.rank), (), (), ())
            return Entered(action, exchange, {"group": self.name})

        stream = process.current_stream(sip)
        command = act(process, name, "collective", stream, enter, site=site, issue=issue)
        (exchange,) = entered
        if self._engine.moves_at_call:
            joint = exchange.joint
            assert isinstance(joint, AtCall)
            wait_for_call(process, joint.moved, command)
        return exchange


def wait_for_call(process: Process, moved: Event, label: object) -> None:
    """Parks a rank until another one has called; takes no simulated time.

    Args:
        process: The rank.
        moved: Settles when the other one has called.
        label: What the rank waits for, for reports.
    """
    if moved.time is None:
        own = Event(label)
        moved.when_settled(own.settle)
        process.wait(own)


class _Together:
    """The time of one barrier, as a `Joint`: a word goes from each device to each other one.

    As the kernel of PyTorch does: atomic operations change the words of all others at once, after a
    fence, and then look at their own.

    Args:
        engine: What runs it.
        sips: The devices, by place.
        launches: As of `Barriers`.

    Attributes:
        arrived: Places whose stream has come.
    """

    algorithm = ""

    def __init__(self, engine: GraphEngine, sips: Sequence[int], *, launches: bool) -> None:
        self.arrived: Final[set[int]] = set()
        self._engine: Final = engine
        self._sips: Final = sips
        self._launches: Final = launches and engine.timed
        self._came: dict[int, tuple[Command, int]] = {}

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int]
    ) -> "_Arrival":
        """See `Joint`: a barrier gives and takes nothing."""
        del gives, takes, sends
        return _Arrival(self, place)

    def arrive(self, place: int, command: Command, start: int) -> None:
        """Notes that the stream of a rank has come; the last one ends it for all."""
        self.arrived.add(place)
        self._came[place] = command, start
        if len(self._came) < len(self._sips):
            return
        engine = self._engine
        for here, (mine, begun) in sorted(self._came.items()):
            sip = self._sips[here]
            launch = engine.devices[sip].library.sip.launch if self._launches else 0
            peers = peers_of(engine, sip)
            ways = {there: latency(engine, self._sips[there], sip) for there in self._came}
            # It goes on when its own words are there and known to be, and it has those of others.
            sent = self._came[here][1] + 2 * max(ways.values())
            seen = max(at + ways[there] for there, (_, at) in self._came.items())
            end = launch + max(sent, seen) + peers.fence + 2 * peers.atomic
            owner = engine.command_owner(mine.host.rank)
            engine.loop.at(max(end, engine.loop.now), owner, self._end, mine, begun, end)
        self._came.clear()

    def _end(self, command: Command, start: int, end: int) -> None:
        self._engine.complete(command, start, end, None)

    def needs(self, place: int) -> Collection[int] | None:
        """See `Joint`: each place needs all."""

    def jam(self) -> None:
        """See `Joint`: it ends once all have come."""

    def drop(self) -> None:
        """See `Joint`."""
        self._came.clear()


class _Arrival:
    """The work of one rank in a barrier."""

    __slots__ = ("_place", "_together")

    def __init__(self, together: _Together, place: int) -> None:
        self._together = together
        self._place = place

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        self._together.arrive(self._place, command, start)
