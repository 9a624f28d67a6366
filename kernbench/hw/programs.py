"""How programs of one launch share PEs, as a part of what its price tells."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kernbench.des import Beside
from kernbench.hw.explained import Explained, Parts, Resource
from kernbench.units import format_bytes


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How the programs of a launch share the PEs.

    Attributes:
        programs: How many there are.
        warps: Warps of each.
        resident: How many programs a PE has at once, if there are enough.
        most: The most warps of a PE.
        places: Programs that all PEs have at once.
        limit: What allows no more: `registers`, `shared memory`, `warps` or `programs`.
        ps: What the launch takes, in picoseconds.
        work: Bytes of HBM and L2, operations of the engines `math` and `tensor`.
        roofs: Picoseconds that each of these takes at the resource's full rate.
        estimated: Whether no machine code tells registers and instructions.
        spilled: Bytes that go to and from memory for want of registers.
    """

    programs: int
    warps: int
    resident: int
    most: int
    places: int
    limit: str
    ps: int
    work: Mapping[Resource, int]
    roofs: Mapping[Resource, int]
    estimated: bool
    spilled: int = 0

    def __str__(self) -> str:
        waves = f"{self.programs / self.places:.1f} waves"
        held = self.resident * self.warps
        rates = ", ".join(f"{name} {ps / self.ps:.0%}" for name, ps in self.roofs.items())
        told = " (estimated without machine code)" if self.estimated else ""
        spilled = f"; for want of registers {format_bytes(self.spilled)} go to memory and back"
        return (
            f"{self.programs} programs of {self.warps} warps, {self.resident} at once on a PE "
            f"({held} of {self.most} warps; limit: {self.limit}), {waves}; of full rates: "
            f"{rates}{spilled if self.spilled else ''}{told}"
        )


class GridPrice(Explained):
    """A duration in picoseconds that knows its parts, and how its programs share the PEs.

    Attributes:
        occupancy: See above.
    """

    occupancy: Occupancy

    @classmethod
    def of(cls, parts: Parts, occupancy: Occupancy) -> Self:
        """Returns the price of a launch; one of fewer programs than PEs leaves PEs to others."""
        few = occupancy.programs * occupancy.resident < occupancy.places
        self = cls(Beside(occupancy.ps) if few else occupancy.ps, parts)
        self.occupancy = occupancy
        return self
