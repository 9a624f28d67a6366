"""Links that several senders use: reservations in simulated-time order, an event per hop."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kernbench.des import Call, Event, EventLoop, Fifo, Owner, order
from kernbench.hw.claims import Claims
from kernbench.hw.fluid import Flow, Fluid
from kernbench.hw.path import HopTimes, Path
from kernbench.topology import Topology
from kernbench.units import Bandwidth


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of some senders, while nobody else's are under way.

    Attributes:
        state: All that becomes of the messages depends on this; times are counted from now.
        others: When something may happen that is no part of the traffic, in picoseconds; None if
            nothing else is known to happen.
        calls: Queued calls.
        messages: Messages that have asked for a link or are on one.
        flows: Messages on switches.
    """

    state: Any
    others: int | None
    calls: "Sequence[Call]"
    messages: "Sequence[_Message]"
    flows: "Sequence[Flow]"


class Network:
    """The links of a machine, with the reservations on each.

    Attributes:
        topology: The machine.
        loop: The clock, in picoseconds.
        claims: Which activity uses which links.
    """

    def __init__(self, topology: Topology, loop: EventLoop) -> None:
        self.topology: Final = topology
        self.loop: Final = loop
        self._fifos: dict[int, Fifo] = {}
        self._fluid: Fluid | None = None
        self.claims: Final = Claims(loop)

    def path(self, source: str, destination: str, dma: Bandwidth, vc_chunk: int) -> Path:
        """Returns the path between two nodes for a sender with this DMA rate.

        Args:
            source: Name of the node that sends.
            destination: Name of the node that receives.
            dma: Rate of the sender's DMA engine.
            vc_chunk: Size of the virtual-channel chunks into which messages are cut, in bytes.
        """
        return Path(self.topology.route(source, destination), dma, vc_chunk)

    def forget(self) -> None:
        """Drops all claims, reservations and flows, after a failure."""
        self.claims.clear()
        self._fifos.clear()
        self._fluid = None

    def send(
        self,
        path: Path,
        nbytes: int,
        time: int,
        owner: Owner,
        injected: Callable[[int], None],
        arrived: Callable[[int], None],
    ) -> None:
        """Sends one message over links that others use too; does not wait.

        Args:
            path: Way of the message.
            nbytes: Bytes on the links; the message holds each FIFO link as one unit.
            time: When the message asks for its first link, in picoseconds.
            owner: The sender; orders events at equal times.
            injected: Called with the time at which the sender is free again, once this time is
                known.
            arrived: Called with the time at which the last byte arrives, once this time is known.
        """
        _Message(self, path, nbytes, owner, injected, arrived).request(0, time)

    def copy(self, path: Path, nbytes: int, chunk: int, time: int, owner: Owner) -> Event:
        """Sends bulk data in chunks, between which others may have the links; does not wait.

        Args:
            path: Way of the data.
            nbytes: Size of the data in bytes.
            chunk: Size of a chunk in bytes.
            time: When the first chunk asks for its first link, in picoseconds.
            owner: The sender; orders events at equal times.

        Returns:
            Event that settles when the last byte arrives.
        """
        done = Event("copy")
        sizes = deque([chunk] * (nbytes // chunk) + ([nbytes % chunk] if nbytes % chunk else []))
        if not sizes:
            sizes.append(0)

        def send_next(at: int) -> None:
            if sizes:
                last = len(sizes) == 1
                size = sizes.popleft()
                self.send(path, size, at, owner, send_next, done.settle if last else _ignore)

        send_next(time)
        return done

    def fifo(self, link: int) -> Fifo:
        """Returns the reservations of a link, by its index."""
        fifo = self._fifos.get(link)
        if fifo is None:
            fifo = self._fifos[link] = Fifo(shared=True, loop=self.loop)
        return fifo

    def fluid(self) -> Fluid:
        """Returns the flows through the machine's switches."""
        if self._fluid is None:
            capacity = {
                link.index: link.bandwidth for link in self.topology.links if link.kind == "fluid"
            }
            self._fluid = Fluid(self.loop, self.loop.owner(order.FLOWS), dict(capacity))
        return self._fluid

    def traffic(self, senders: Mapping[Owner, int]) -> "Traffic | None":
        """Returns the messages of some senders that are under way, if nobody else's are.

        To be called when nothing more happens at this instant.

        Args:
            senders: Number of each sender.

        Returns:
            The messages; None if a message of another sender is under way.
        """
        loop = self.loop
        now = loop.now
        own: list[Call] = []
        messages: dict[_Message, None] = {}
        flows: list[Flow] = []
        state: list[Any] = []
        others = loop.horizon
        for call in loop.calls():
            time, key, _, function, args = call
            subject = getattr(function, "__self__", None)
            parts: Sequence[Flow] = ()
            carried: list[Any] = []
            if isinstance(subject, _Message):
                carried = [subject]
            elif isinstance(subject, Fluid):
                found = subject.flows_of(*args)
                if found is None:
                    return None
                parts = found
                carried = [getattr(flow.finished, "__self__", None) for flow in parts]
            else:
                others = time if others is None or time < others else others
                continue
            own.append(call)
            state.append((time - now, key))
            flows += parts
            for message in carried:
                sender = senders.get(message.owner) if isinstance(message, _Message) else None
                if sender is None:
                    return None
                messages[message] = None
                state.append((sender, *message.state(now)))
            state += [flow.state(now) for flow in parts]
        # Flows that end together are reported in the order of their keys.
        state.append(sorted(range(len(flows)), key=lambda number: flows[number].key))
        fifos = self._fifos.items()
        busy = sorted((link, fifo.free - now) for link, fifo in fifos if fifo.free > now)
        return Traffic((state, busy), others, own, list(messages), flows)

    def shift(self, traffic: "Traffic", by: int) -> None:
        """Moves all messages under way to later times, by the same number of picoseconds."""
        now = self.loop.now
        self.loop.skip(traffic.calls, by)
        for message in traffic.messages:
            message.shift(by)
        for flow in traffic.flows:
            flow.shift(by)
        for fifo in self._fifos.values():
            if fifo.free > now:
                fifo.free += by


def _ignore(_: int) -> None:
    pass


class _Message:
    """A message under way, hop after hop."""

    __slots__ = (
        "_arrived",
        "_end",
        "_hop",
        "_injected",
        "_nbytes",
        "_network",
        "_path",
        "_start",
        "_times",
        "owner",
    )

    def __init__(
        self,
        network: Network,
        path: Path,
        nbytes: int,
        owner: Owner,
        injected: Callable[[int], None],
        arrived: Callable[[int], None],
    ) -> None:
        self._network = network
        self._path = path
        self._nbytes = nbytes
        self._times: Sequence[HopTimes] = path.times(nbytes)
        self.owner = owner
        self._injected = injected
        self._arrived = arrived
        self._hop = 0
        self._start = 0
        self._end = 0

    def state(self, now: int) -> tuple[Any, ...]:
        """Returns all that becomes of the message depends on; times are counted from `now`."""
        end = self._end - now if self._hop else 0
        return self._path.links, self._nbytes, self._hop, self._start - now, end

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self._start += by
        self._end += by

    def request(self, hop: int, time: int) -> None:
        """Asks for a hop, by its index in the path, at `time` in picoseconds."""
        self._hop, self._start = hop, time
        self._network.loop.at(time, self.owner, self._reserve)

    def _reserve(self) -> None:
        hop, duration = self._path.hops[self._hop], self._times[self._hop].full
        if hop.fluid:
            ports = [port.index for port in self._path.route if port.kind == "fluid"]
            self._network.fluid().start(
                self.owner, ports, hop.bandwidth, self._nbytes, self._through
            )
        elif hop.link < 0:
            self._through(self._start + duration)
        else:
            fifo = self._network.fifo(hop.link)
            end = fifo.reserve(self._start, duration)
            self._start = end - duration
            self._through(end, fifo)

    def _through(self, end: int, fifo: Fifo | None = None) -> None:
        here, hops = self._hop, self._path.hops
        times = self._times[here]
        if here:
            last_byte = self._end + hops[here - 1].latency + times.tail
            if last_byte > end:
                end = last_byte
            if fifo is not None and end > fifo.free:
                fifo.free = end
        else:
            self._injected(end)
        self._end = end
        if here + 1 < len(hops):
            self.request(here + 1, self._start + times.head + hops[here].latency)
        else:
            self._arrived(end + hops[here].latency)
