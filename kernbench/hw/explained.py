"""Durations of library kernels that know what they consist of: which resource, by which law.

Families of the room `kernels` add, multiply and compare durations. Here these are `Explained`, and
numbers of a machine's file are `Keyed`: both are integers, with the values that `Library` has, and
carry through the same arithmetic where they come from, as dual numbers carry derivatives. So a
family need not know that it is explained, and `Library` computes as before where nobody asks.
"""

from dataclasses import replace
from typing import Final, Literal, NamedTuple, Self, SupportsIndex

from kernbench.attention.bands import Bands
from kernbench.caches import cached
from kernbench.hw.attention import Direction, Shape, kernel_of, peak_of
from kernbench.hw.library import Library
from kernbench.topology import Topology
from kernbench.topology.spec import KERNELS, KernelSpec, SipSpec
from kernbench.units import PS_PER_S, FlopRate

Resource = Literal["launch", "HBM", "L2", "atomics", "math", "tensor", "latency", "other"]
"""What a part of a kernel's time is spent on.

`latency` is waiting for what was asked for; `other` is time of which nothing is known.
"""

PEAKS: Final = "peak rates"
"""Law of a duration for which the machine's file has no constants beside the machine's rates."""

GEMM: Final = "pe.gemm"
ATTENTION: Final = "pe.attention"

_PERCENT: Final = 100


class Spent(NamedTuple):
    """A part of a duration.

    Attributes:
        ps: Picoseconds.
        roof: Picoseconds that the same work would take at the resource's full rate.
    """

    ps: int
    roof: int


Parts = dict[tuple[Resource, str], Spent]
"""Parts of a duration by resource and law; their picoseconds add up to it."""


class Explained(int):
    """A duration in picoseconds that knows its parts.

    Sums, differences and multiples of explained durations are explained; a plain number that is
    added is a part of the resource `other`.

    Attributes:
        parts: What it consists of.
        plain: What `Library` has in its place: a plain number, or a `des.Beside`.
    """

    parts: Parts
    plain: int

    def __new__(cls, plain: int, parts: Parts) -> Self:
        """Returns a duration.

        Args:
            plain: Picoseconds, as many as the parts have together.
            parts: What it consists of.
        """
        self = super().__new__(cls, plain)
        self.parts, self.plain = parts, plain
        return self

    def __add__(self, other: int) -> "Explained":
        return Explained(int(self) + int(other), _sum(self.parts, _parts_of(other), 1))

    def __radd__(self, other: int) -> "Explained":
        return Explained(int(self) + int(other), _sum(_parts_of(other), self.parts, 1))

    def __sub__(self, other: int) -> "Explained":
        return Explained(int(self) - int(other), _sum(self.parts, _parts_of(other), -1))

    def __rsub__(self, other: int) -> "Explained":
        return -self + other

    def __mul__(self, times: int) -> "Explained":
        parts = {key: Spent(ps * times, roof * times) for key, (ps, roof) in self.parts.items()}
        return Explained(int(self) * times, parts)

    __rmul__ = __mul__

    def __neg__(self) -> "Explained":
        return self * -1

    def __floordiv__(self, other: int) -> "Explained":
        return self.lasting(int(self) // int(other))

    def lasting(self, ps: int) -> "Explained":
        """Returns a duration whose parts have the same shares.

        Args:
            ps: Its picoseconds. What rounding leaves is of the largest part.
        """
        whole, parts = int(self), dict[tuple[Resource, str], Spent]()
        if not whole:
            return Explained(ps, _parts_of(ps))
        for key, (took, roof) in self.parts.items():
            parts[key] = Spent(took * ps // whole, roof * ps // whole)
        largest = max(parts, key=lambda key: parts[key].ps)
        took, roof = parts[largest]
        parts[largest] = Spent(took + ps - sum(each.ps for each in parts.values()), roof)
        return Explained(ps, parts)


def _parts_of(value: int) -> Parts:
    if isinstance(value, Explained):
        return value.parts
    return {("other", ""): Spent(value, value)} if value else {}


def _plain(value: int) -> int:
    return value.plain if isinstance(value, Explained) else value


def _sum(left: Parts, right: Parts, sign: int) -> Parts:
    found = dict(left)
    for key, (ps, roof) in right.items():
        before = found.get(key, _NOTHING)
        after = Spent(before.ps + sign * ps, before.roof + sign * roof)
        if any(after):
            found[key] = after
        else:
            found.pop(key, None)
    return found


_NOTHING: Final = Spent(0, 0)


class Keyed(int):
    """A number that knows by which constants of the machine's file it was found.

    Attributes:
        law: Key in the machine's file.
        whole: Bytes that are moved, if this is bytes over the share of the bandwidth.
    """

    law: str
    whole: int

    def __new__(cls, value: SupportsIndex, law: str, whole: int = 0) -> "Keyed":
        """Returns a number; see the class."""
        self = super().__new__(cls, value)
        self.law, self.whole = law, whole
        return self

    def __add__(self, other: int) -> "Keyed":
        return Keyed(int(self) + int(other), self.law)

    __radd__ = __add__

    def __mul__(self, other: int) -> "Keyed":
        return Keyed(int(self) * int(other), self.law)

    __rmul__ = __mul__

    def __rfloordiv__(self, scaled: int) -> "Keyed":
        """Returns `bytes * 100 // share`, which knows the bytes."""
        return Keyed(int(scaled) // int(self), self.law, scaled // _PERCENT)


class _L2Rate(int):
    """Bytes a second of the L2; what they take is explained."""

    def __rfloordiv__(self, scaled: int) -> Explained:
        ps = int(scaled) // int(self)
        return Explained(ps, {_L2: Spent(ps, ps)})


_L2: Final[tuple[Resource, str]] = ("L2", "")


class ExplainedLibrary(Library):
    """A `Library` whose durations are `Explained`; they are the same numbers.

    Args:
        sip: Description of the SIP.
    """

    def __init__(self, sip: SipSpec) -> None:
        super().__init__(sip)
        vars(self).update(_sram_bytes_per_s=_L2Rate(self._sram_bytes_per_s))
        # Not kept: numbers that are equal may be of different laws.
        vars(self).update(elementwise=self._elementwise, tiled=self._tiled)

    def _kernel(self, name: str) -> KernelSpec:
        spec, key = super()._kernel(name), name
        while not self.has(key):
            like = KERNELS[key]
            if like is None:
                break
            key = like
        law = f"kernels.{key}" if self.has(key) else PEAKS
        numbers = ("share", "element", "row", "alone")
        return replace(spec, **{each: Keyed(getattr(spec, each), law) for each in numbers})

    def _elementwise(self, nbytes: int, operations: int) -> Explained:
        plain, work = int(nbytes), int(operations)
        launch, total = super()._elementwise(0, 0), super()._elementwise(plain, work)
        whole, law = plain, PEAKS if plain or work else ""  # a launch more has no law of its own
        if isinstance(nbytes, Keyed):
            whole, law = nbytes.whole, nbytes.law
        parts: Parts = {("launch", law): Spent(launch, launch)} if launch else {}
        took = total - launch
        if took > super()._elementwise(plain, 0) - launch:
            law = operations.law if isinstance(operations, Keyed) else law
            parts["math", law] = Spent(took, took)
        elif took:
            parts["HBM", law] = Spent(took, self._traffic(whole))
        return Explained(total, parts)

    def _matmul(
        self, machine_dtype: str, m: int, n: int, k: int, nbytes: int, batch: int = 1
    ) -> Explained:
        found = super()._matmul(machine_dtype, m, n, k, nbytes, batch)
        total, added = _plain(found), _parts_of(found).get(_L2, _NOTHING).ps
        engines = super()._matmul(machine_dtype, m, n, k, 0, batch)
        chosen = self.sip.pe.gemm.library
        begun = 0 if chosen is None or machine_dtype not in self.tiles else chosen.start
        fixed = super()._elementwise(0, 0) + begun
        parts: Parts = {("launch", GEMM): Spent(fixed, fixed)} if fixed else {}
        if added:  # parts of a sum went through it
            parts["L2", GEMM] = Spent(added, added)
        took = total - fixed - added
        if total > engines:
            parts["HBM", GEMM] = Spent(took, self._traffic(nbytes))
        elif min(m, n) == 1:  # the MATH engines multiply with a vector
            parts["math", GEMM] = Spent(took, -(-batch * m * n * k * PS_PER_S // self._math_per_s))
        else:
            flop = 2 * batch * m * n * k
            parts["tensor", GEMM] = Spent(took, self._engines(machine_dtype, flop))
        return Explained(total, parts)

    def _tiled(
        self, machine_dtype: str, batch: int, m: int, n: int, k: int, kernel: KernelSpec
    ) -> Explained:
        found = super()._tiled(machine_dtype, batch, m, n, k, kernel)
        law = kernel.share.law if isinstance(kernel.share, Keyed) else PEAKS
        added = _parts_of(found).get(_L2, _NOTHING).ps
        roof = self._engines(machine_dtype, 2 * batch * m * n * k)
        parts: Parts = {("tensor", law): Spent(int(found) - added, roof)}
        if added:  # parts of a sum went through it
            parts["L2", law] = Spent(added, added)
        return Explained(int(found), parts)

    def _tiles_ps(
        self, machine_dtype: str, m: int, n: int, k: int, kernel: KernelSpec
    ) -> tuple[int, int]:
        """See `Library`."""
        law = kernel.share.law if isinstance(kernel.share, Keyed) else PEAKS
        roof = self._engines(machine_dtype, 2 * m * n * k)
        whole, tile = super()._tiles_ps(machine_dtype, m, n, k, kernel)
        return tuple(  # type: ignore[return-value]
            Explained(int(ps), {("tensor", law): Spent(int(ps), roof)}) for ps in (whole, tile)
        )

    def _attention(
        self,
        backend: str,
        direction: Direction,
        machine_dtype: str,
        shape: Shape,
        patterns: tuple[Bands, ...],
        nbytes: int,
    ) -> Explained:
        given, law = (backend, direction, machine_dtype, shape, patterns), f"{ATTENTION}.{backend}"
        total, engines = super()._attention(*given, nbytes), super()._attention(*given, 0)
        fixed = super()._elementwise(0, 0) + kernel_of(self.sip.pe, backend, direction).start
        traffic = self._reading(nbytes) if direction == "forward" else self._traffic(nbytes)
        parts: Parts = {("launch", law): Spent(fixed, fixed)} if fixed else {}
        streamed = total - engines
        if streamed < traffic and streamed:  # it goes on beside the engines, and takes longer
            streamed = total - fixed
        if streamed:
            parts["HBM", law] = Spent(streamed, self._traffic(nbytes))
        took = total - fixed - streamed
        if took:
            widths = shape.width + shape.value_width
            if direction == "backward":  # five products
                widths += 2 * shape.width + shape.value_width
            heads = shape.heads * (shape.batch if len(patterns) == 1 else 1)
            seen = heads * sum(band.seen() for bands in patterns for band in bands)
            rates = self.sip.pe.gemm.rate
            flop = 2 * seen * widths * rates["bf16"].per_second
            flop = -(-flop // rates[machine_dtype].per_second)
            roof = self._at_peak(peak_of(self.sip.pe.gemm), flop)
            parts["tensor", law] = Spent(took, roof)
        return Explained(total, parts)

    def _held(self, duration: int, programs: int) -> int:
        plain = super()._held(_plain(duration), programs)
        return Explained(plain, duration.parts) if isinstance(duration, Explained) else plain

    def _engines(self, machine_dtype: str, flop: int) -> int:
        """Returns the picoseconds of all matrix engines at their peak."""
        chosen = self.tiles.get(machine_dtype)
        rates = self.sip.pe.gemm.rate if chosen is None else chosen.rate
        return self._at_peak(rates[machine_dtype], flop)

    def _at_peak(self, rate: FlopRate, flop: int) -> int:
        return -(-flop * PS_PER_S // (rate.per_second * self.num_pes))


@cached("hw.machines")
def explained_libraries_of(topology: Topology) -> dict[int, Library]:
    """Returns libraries whose durations are explained, by kind of SIP.

    Of equal machines it is the same object.
    """
    return dict(enumerate(map(ExplainedLibrary, topology.machine.system.kinds)))
