"""Durations of kernels that know what they would be with their operands in the L2.

Inside of a CUDA graph it is known which kernels come before. While one is captured, a
`WarmedLibrary` stands for the device's: families of the room `kernels` add and compare durations as
ever, and the price of a kernel comes out for three states of the L2 at once.
"""

from dataclasses import replace
from typing import Final

from kernbench.attention.bands import Bands
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.explained import Explained
from kernbench.hw.library import Library
from kernbench.topology.spec import KernelSpec, SipSpec, WarmSpec
from kernbench.units import Bytes


class Warmed(int):
    """A duration in picoseconds, as `Library` has it, and what it is in other states of the L2.

    Sums, differences and multiples know it as well.

    Attributes:
        cold: As `Library` has it: operands in the HBM, and results of earlier kernels in the L2,
            which products of few rows write back first.
        clean: Picoseconds if the L2 has nothing to write back.
        warm: Picoseconds if it has all that is read and written.
    """

    cold: int
    clean: int
    warm: int

    def __new__(cls, cold: int, clean: int, warm: int) -> "Warmed":
        """Returns a duration; see the class."""
        self = super().__new__(cls, cold)
        self.cold, self.clean, self.warm = cold, int(clean), int(warm)
        return self

    def __add__(self, other: int) -> "Warmed":
        cold, clean, warm = _all(other)
        return Warmed(self.cold + cold, self.clean + clean, self.warm + warm)

    __radd__ = __add__

    def __sub__(self, other: int) -> "Warmed":
        cold, clean, warm = _all(other)
        return Warmed(self.cold - cold, self.clean - clean, self.warm - warm)

    def __rsub__(self, other: int) -> "Warmed":
        return self * -1 + other

    def __mul__(self, times: int) -> "Warmed":
        return Warmed(self.cold * times, self.clean * times, self.warm * times)

    __rmul__ = __mul__

    def lasting(self, nbytes: int, found: int, back: int, most: int) -> int:
        """Returns the picoseconds of a kernel, in proportion to what it finds.

        Args:
            nbytes: What it reads and writes, at least 1.
            found: How many bytes of that are in the L2.
            back: Bytes that leave the L2 for it and have to be written.
            most: Bytes for which `cold` counts at most.
        """
        dirty = min(nbytes, most)
        written = (int(self) - self.clean) * min(back, dirty) // max(dirty, 1)
        return self.clean + written - (self.clean - self.warm) * found // nbytes


def _all(value: int) -> tuple[int, int, int]:
    if isinstance(value, Warmed):
        return value.cold, value.clean, value.warm
    return value, int(value), int(value)


def plain_of(price: int) -> int:
    """Returns a price without what it knows beside its picoseconds, but for a `des.Beside`."""
    if isinstance(price, Warmed):
        price = price.cold
    return price.plain if isinstance(price, Explained) else price


class WarmedLibrary(Library):
    """A `Library` whose durations are `Warmed`; they are the same numbers.

    Args:
        cold: The device's library.
        sip: Description of the SIP.
        warm: What its L2 keeps.
    """

    def __init__(self, cold: Library, sip: SipSpec, warm: WarmSpec) -> None:
        super().__init__(sip)
        gemm = sip.pe.gemm
        if gemm.library is not None:
            gemm = replace(gemm, library=replace(gemm.library, write_back=Bytes(0)))
        clean = replace(sip, pe=replace(sip.pe, gemm=gemm))
        hbm = replace(sip.cube.hbm, bandwidth=warm.bandwidth)
        self._three: Final = (
            cold,
            Library(clean),
            Library(replace(clean, cube=replace(sip.cube, hbm=hbm))),
        )
        # Not kept: `Library` keeps numbers, which are equal whatever the L2 has.
        vars(self).update(
            elementwise=self._elementwise,
            matmul=self._matmul,
            attention=self._attention,
            tiled=cold.tiled,
        )

    def _kernel(self, name: str) -> KernelSpec:
        return self._three[0].kernel(name)

    def _elementwise(self, nbytes: int, operations: int) -> Warmed:
        cold, clean, warm = self._three
        found: int = cold.elementwise(nbytes, operations)
        plain = int(nbytes), int(operations)  # which do not know their laws, see `explained`
        return Warmed(found, clean.elementwise(*plain), warm.elementwise(*plain))

    def _matmul(
        self, machine_dtype: str, m: int, n: int, k: int, nbytes: int, batch: int = 1
    ) -> Warmed:
        return Warmed(*(each.matmul(machine_dtype, m, n, k, nbytes, batch) for each in self._three))

    def _attention(
        self,
        backend: str,
        direction: Direction,
        machine_dtype: str,
        shape: Shape,
        patterns: tuple[Bands, ...],
        nbytes: int,
    ) -> Warmed:
        given = backend, direction, machine_dtype, shape, patterns, nbytes
        return Warmed(*(each.attention(*given) for each in self._three))
