"""Bytes that go between devices without a collective: copies, and kernels that reach over links."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kernbench.des import Fifo
from kernbench.hw.claims import Use, never
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.topology.spec import PeersSpec

_VC_CHUNK: Final = 256
"""Bytes of a virtual-channel chunk of a copy between devices."""


class Move(NamedTuple):
    """Bytes that go from one SIP to another.

    Attributes:
        source: SIP that sends.
        destination: SIP that receives.
        nbytes: Number of bytes.
        asked: Whether the receiver asks for them, which takes the way there, too.
    """

    source: int
    destination: int
    nbytes: int
    asked: bool = False


def latency(engine: GraphEngine, source: int, destination: int) -> int:
    """Returns how long a word is on its way between two SIPs, in picoseconds."""
    if not engine.timed or source == destination:
        return 0
    return sum(link.latency for link in engine.topology.sip_route(source, destination))


def away(engine: GraphEngine, moves: Iterable[Move]) -> int:
    """Returns how much longer loads are on their way than in the device, in picoseconds."""
    ways = (latency(engine, each.source, each.destination) for each in moves if each.asked)
    return 2 * max(ways, default=0)


def peers_of(engine: GraphEngine, sip: int) -> PeersSpec:
    """Returns what it takes a SIP to reach memory of others; nothing if no time is kept."""
    return engine.devices[sip].library.sip.peers if engine.timed else PeersSpec()


def send(
    engine: GraphEngine,
    rank: int,
    moves: Sequence[Move],
    start: int,
    arrived: Callable[[int], None],
) -> None:
    """Sends bytes over the machine's links, beside whatever else is on them; does not wait.

    Args:
        rank: The rank whose command it is; orders it among others.
        moves: What goes where; at least one.
        start: When the first bytes leave; the loop has come so far.
        arrived: Called at the time at which the last byte has arrived, with that time.
    """
    network, topology = engine.network, engine.topology
    owner, chunk = engine.command_owner(rank), topology.machine.system.sips.network.chunk
    paths = [
        network.path(
            topology.cube_node(move.source),
            topology.cube_node(move.destination),
            engine.devices[move.source].sip.pe.dma,
            _VC_CHUNK,
        )
        for move in moves
    ]
    # Whoever claims these links meanwhile learns that they are shared.
    claim = network.claims.take(Use(paths), object(), never, alone=False)
    ends: list[int] = []

    def over(end: int) -> None:
        network.claims.drop(claim)
        arrived(end)

    def came(back: int, time: int) -> None:
        ends.append(time + back)
        if len(ends) == len(moves):
            # The moment is known while the last byte is still on its way.
            engine.loop.at(max(ends), owner, over, max(ends))

    for move, path in zip(moves, paths, strict=True):
        back = path.latency if move.asked else 0
        copy = network.copy(path, move.nbytes, chunk, start, owner)
        copy.when_settled(partial(came, back))


def as_they_are(to: Any, given: Any) -> bool:
    """Returns whether a copy moves bytes as they are, which engines do that only copy.

    Args:
        to: A tensor, which knows its shape, its type, and whether it has gaps.
        given: Another one, which is copied there.
    """
    alike = to.dtype == given.dtype and to.shape == given.shape
    return bool(alike and to.is_contiguous() and given.is_contiguous())


class Reach(Hold):
    """Action of a kernel that reads or writes memory of other devices.

    It holds its own device for as long as it would take if all of its memory were there, and ends
    when its bytes have come over the links, too. A copy sends them once its engine has started.

    Args:
        resource: What it holds of its device; None if it only copies.
        duration: How long, or what the engine takes to start a copy, in picoseconds.
        moves: What goes over links.
    """

    __slots__ = ("_moves",)

    def __init__(
        self, engine: GraphEngine, resource: Fifo | None, duration: int, moves: Sequence[Move]
    ) -> None:
        super().__init__(engine, resource, duration, None)
        self._moves: Final = moves

    def held(self, command: Command, begin: int, end: int) -> None:
        """See `Hold`: sends its bytes from the beginning on, or once the engine has started."""
        self.reach(command, begin, end if self.resource is None else begin, end)

    def reach(self, command: Command, begin: int, sends: int, end: int) -> None:
        """Ends the command at a time, or when its bytes have come if that is later.

        Args:
            begin: When it began, in picoseconds.
            sends: When its first bytes leave.
            end: When all else is done.
        """
        engine, rank = self._engine, command.host.rank
        loop, owner = engine.loop, engine.command_owner(rank)

        def over(last: int) -> None:
            engine.complete(command, begin, max(end, last), None)

        if engine.timed and self._moves:
            at = max(sends, loop.now)
            loop.at(at, owner, send, engine, rank, self._moves, at, over)
        else:
            loop.at(max(end, loop.now), owner, over, end)
