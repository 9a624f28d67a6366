"""Links that several senders use: reservations in simulated-time order, an event per hop."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kernbench.des import Event, EventLoop, Fifo, Owner, order
from kernbench.hw.claims import Claims
from kernbench.hw.fluid import Fluid
from kernbench.hw.path import HopTimes, Path
from kernbench.topology import Topology
from kernbench.units import Bandwidth


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
            fifo = self._fifos[link] = Fifo(shared=True)
        return fifo

    def fluid(self) -> Fluid:
        """Returns the flows through the machine's switches."""
        if self._fluid is None:
            capacity = {
                link.index: link.bandwidth for link in self.topology.links if link.kind == "fluid"
            }
            self._fluid = Fluid(self.loop, self.loop.owner(order.FLOWS), dict(capacity))
        return self._fluid


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
        "_owner",
        "_path",
        "_start",
        "_times",
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
        self._owner = owner
        self._injected = injected
        self._arrived = arrived
        self._hop = 0
        self._start = 0
        self._end = 0

    def request(self, hop: int, time: int) -> None:
        """Asks for a hop, by its index in the path, at `time` in picoseconds."""
        self._hop, self._start = hop, time
        self._network.loop.at(time, self._owner, self._reserve)

    def _reserve(self) -> None:
        hop, duration = self._path.hops[self._hop], self._times[self._hop].full
        if hop.fluid:
            ports = [port.index for port in self._path.route if port.kind == "fluid"]
            self._network.fluid().start(
                self._owner, ports, hop.bandwidth, self._nbytes, self._through
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
