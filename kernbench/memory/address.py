"""`Address`: the one type for every place where bytes can be."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

HOST_SIP: Final = -1
"""Stands for a SIP where bytes, or the commands of a stream, are on the host of a rank."""


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
        sip: Index of the SIP; for host memory, the rank whose host it is (-1: main).
        unit: Index of the cube for SRAM and of the PE for TCM; 0 for host memory and for HBM, which
            interleaves over the cubes.
        offset: Number of the byte inside the memory, from 0.
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
