"""One type for every place where bytes can be."""

from dataclasses import dataclass
from enum import Enum


class Space(Enum):
    """A kind of memory."""

    HOST = "host"
    HBM = "hbm"
    SRAM = "sram"
    TCM = "tcm"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A byte in one memory of the machine.

    Attributes:
        space: Kind of memory.
        sip: Index of the SIP; for the host, of its rank (-1: main).
        unit: Cube of SRAM, PE of TCM; 0 for HBM, which interleaves over the cubes, and the host.
        offset: Byte inside that memory.
    """

    space: Space
    sip: int
    unit: int
    offset: int

    def __add__(self, nbytes: int) -> "Address":
        return Address(self.space, self.sip, self.unit, self.offset + nbytes)

    def __str__(self) -> str:
        unit = "" if self.space in {Space.HBM, Space.HOST} else f"[{self.unit}]"
        return f"sip{self.sip}.{self.space.value}{unit}+{self.offset:#x}"
