"""Blocks that the ranks of a group share: which there are, and how ranks come to know them."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import Storage
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.symmetric.barriers import Barriers
from kernbench.symmetric.links import Move
from kernbench.symmetric.orders import Order
from kernbench.symmetric.signals import Signals
from kernbench.units import format_bytes


class SymmetricMemoryError(KernbenchError, RuntimeError):
    """Ranks do not give blocks of one size, or ask for what is not in a block."""


class Block:
    """Memory that others may reach once it is shared.

    Args:
        sip: Whose memory it is.
        array: Its bytes; None without numbers.
        group: Name of the group to share it with if nobody says another one; None: all ranks.

    Attributes:
        label: Name in reports.
        handles: What the rank that made it has got for it, by name of the group.
        order: Who touches it, and after whom.
        puts: Who has changed a word last that kernels may poll, by its first byte (`visits.Put`).
    """

    def __init__(self, sip: int, array: Any = None, group: str | None = None) -> None:
        self.sip: Final = sip
        self.array: Final = array
        self.group: Final = group
        self.label = "symmetric memory"
        self.handles: Final[dict[str, Any]] = {}
        self.order = Order(0 if array is None else array.nbytes)
        self.puts: dict[int, Any] = {}

    def twin(self, label: str) -> "Block":
        """Returns the same memory, as others reach it: it keeps no handles, which keep it."""
        twin = Block(self.sip, self.array)
        twin.label, twin.puts, twin.order = label, self.puts, self.order
        self.order.label = label
        return twin

    def moves(self, sip: int, nbytes: int, *, writes: bool) -> list[Move]:
        """Returns what goes over links if a device touches some of it.

        Args:
            sip: The device.
            nbytes: How much.
            writes: Whether it writes; otherwise it asks for the bytes.
        """
        if sip == self.sip or not nbytes:
            return []
        return [Move(sip, self.sip, nbytes) if writes else Move(self.sip, sip, nbytes, True)]


class Part(NamedTuple):
    """What others need to reach a block: what it takes of its device, its size, and the block."""

    memory: Storage
    nbytes: int
    block: Block


class Region:
    """One block of each rank of a group.

    Args:
        number: Which of the group's it is, from 1.
        process: A rank of the group.

    Attributes:
        name: Name in reports.
        group: See above.
        parts: What each rank gives, a block and a signal pad, by rank in the group; empty once all
            ranks have taken it.
        sips: Device of each rank, by rank in the group.
    """

    def __init__(self, group: ProcessGroup, number: int, process: Process) -> None:
        self.name: Final = f"symmetric memory {number} of group {group.name}"
        self.group: Final = group
        self.parts: Final[dict[int, tuple[Part, Part]]] = {}
        self._taken = 0
        self.sips: Final = [process.ctx.devices[rank] for rank in group.ranks]
        self._barriers: Final[dict[int | str, Barriers]] = {}
        self._signals: Final[dict[tuple[int, int, int], Signals]] = {}

    def take(self) -> list[tuple[Part, Part]]:
        """Returns what each rank has given, by rank in the group; each rank calls it once."""
        found = [self.parts[place] for place in range(len(self.sips))]
        self._taken += 1
        if self._taken == len(self.sips):
            self.parts.clear()  # the memory is free again when handles and tensors are gone
        return found

    def barriers(self, process: Process, channel: int | str) -> Barriers:
        """Returns the barriers of a channel, or those inside of kernels.

        Args:
            process: The rank that asks.
            channel: Number of the channel, or name of the kernels.
        """
        found = self._barriers.get(channel)
        if found is None:
            own = isinstance(channel, int)
            name = f"{self.name}, channel {channel}" if own else f"{self.name}, {channel}"
            ranks, engine = self.group.ranks, process.engine
            found = Barriers(name, ranks, self.sips, engine, launches=own)
            self._barriers[channel] = world_of(process).groups[name] = found
        return found

    def signals(self, process: Process, source: int, destination: int, channel: int) -> Signals:
        """Returns the signals of a channel from one rank of the group to another."""
        key = source, destination, channel
        found = self._signals.get(key)
        if found is None:
            ends = self.group.ranks[source], self.group.ranks[destination]
            sips = self.sips[source], self.sips[destination]
            name = f"{self.name}, channel {channel}"
            found = self._signals[key] = Signals(name, ends, sips, process.engine)
        return found


_REGIONS: Final[WeakKeyDictionary[ProcessGroup, list[Region]]] = WeakKeyDictionary()
_CALLS: Final[WeakKeyDictionary[ProcessGroup, Counter[int]]] = WeakKeyDictionary()


def share(
    process: Process, group: ProcessGroup, part: Part, pad: Part, meet: Callable[[], object]
) -> Region:
    """Shares a block of the calling rank with the others of a group, each of which shares one.

    Args:
        group: The group; the k-th call of each rank is the k-th of all.
        part: What others need to reach the block.
        pad: The same of its signal pad.
        meet: Waits until all ranks have called.

    Raises:
        SymmetricMemoryError: If the blocks are not of one size.
    """
    regions, calls = _REGIONS.setdefault(group, []), _CALLS.setdefault(group, Counter())
    calls[process.rank] += 1
    if len(regions) < calls[process.rank]:
        regions.append(Region(group, calls[process.rank], process))
    region = regions[calls[process.rank] - 1]
    region.parts[group.place(process.rank)] = part, pad
    pad.block.order.forget()  # nobody else knows it yet
    meet()
    sizes = {rank: region.parts[at][0].nbytes for at, rank in enumerate(group.ranks)}
    if len(set(sizes.values())) > 1:
        raise SymmetricMemoryError(
            f"{region.name}: ranks give blocks of different sizes",
            [
                site_fact(call_site()),
                *(f"rank {rank}: {format_bytes(size)}" for rank, size in sizes.items()),
            ],
            hint="every rank calls rendezvous() with a tensor of the same shape and type",
            code="C3",
        )
    return region
