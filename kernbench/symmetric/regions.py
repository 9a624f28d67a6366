"""Blocks that the ranks of a group share: which there are, and how ranks come to know them."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.symmetric.barriers import Barriers
from kernbench.symmetric.links import Move
from kernbench.symmetric.signals import Signals
from kernbench.units import format_bytes


class SymmetricMemoryError(KernbenchError, RuntimeError):
    """Ranks do not give blocks of one size, or ask for what is not in a block."""


class Block:
    """Memory that others may reach once it is shared.

    Args:
        sip: Whose memory it is.
        group: Name of the group to share it with if nobody says another one; None: all ranks.

    Attributes:
        label: Name in reports.
        handles: What the rank that made it has got for it, by name of the group.
        puts: Who has changed a word last that kernels may poll, by its first byte (`visits.Put`).
    """

    def __init__(self, sip: int, group: str | None = None) -> None:
        self.sip: Final = sip
        self.group: Final = group
        self.label = "symmetric memory"
        self.handles: Final[dict[str, Any]] = {}
        self.puts: Final[dict[int, Any]] = {}

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


class Region:
    """One block of each rank of a group.

    Args:
        group: The group.
        number: Which of the group's it is, from 1.
        process: A rank of the group.

    Attributes:
        name: Name in reports.
        group: See above.
        parts: What each rank gives, by rank in the group.
        sips: Device of each rank, by rank in the group.
    """

    def __init__(self, group: ProcessGroup, number: int, process: Process) -> None:
        self.name: Final = f"symmetric memory {number} of group {group.name}"
        self.group: Final = group
        self.parts: Final[dict[int, Any]] = {}
        self.sips: Final = [process.ctx.devices[rank] for rank in group.ranks]
        self._barriers: Final[dict[int, Barriers]] = {}
        self._signals: Final[dict[tuple[int, int, int], Signals]] = {}

    def barriers(self, process: Process, channel: int) -> Barriers:
        """Returns the barriers of a channel.

        Args:
            process: The rank that asks.
        """
        found = self._barriers.get(channel)
        if found is None:
            name = f"{self.name}, channel {channel}"
            found = Barriers(name, self.group.ranks, self.sips, process.engine)
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


_REGIONS: Final[WeakKeyDictionary[ProcessGroup, dict[int, Region]]] = WeakKeyDictionary()


def share(
    process: Process, group: ProcessGroup, part: Any, nbytes: int, meet: Callable[[], object]
) -> Region:
    """Shares a block of the calling rank with the others of a group, each of which shares one.

    Args:
        group: The group; the k-th call of each rank is the k-th of all.
        part: What others need to reach the block.
        nbytes: Its size.
        meet: Waits until all ranks have called.

    Raises:
        SymmetricMemoryError: If the blocks are not of one size.
    """
    place = group.place(process.rank)
    regions = _REGIONS.setdefault(group, {})
    number = next(n for n in range(1, len(regions) + 2) if place not in _parts(regions, n))
    if number not in regions:
        regions[number] = Region(group, number, process)
    region = regions[number]
    region.parts[place] = part, nbytes
    meet()
    sizes = {rank: region.parts[at][1] for at, rank in enumerate(group.ranks)}
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


def _parts(regions: Mapping[int, Region], number: int) -> Mapping[int, Any]:
    return regions[number].parts if number in regions else {}
