"""Durations of library kernels: launch, then the slower of memory and engines."""

from collections.abc import Hashable, Iterator
from typing import Final

from kernbench.attention.bands import Bands
from kernbench.caches import Table, cached
from kernbench.des import Beside
from kernbench.hw import attention
from kernbench.hw.attention import Direction, Shape
from kernbench.topology import Topology
from kernbench.topology.spec import KERNELS, KernelSpec, LibrarySpec, SipSpec
from kernbench.units import PS_PER_S


class Library:
    """Durations of library kernels on one SIP, all of whose PEs work together.

    Args:
        sip: Description of the SIP.

    Attributes:
        sip: See above.
        num_pes: PEs of the SIP.
        hbm_bytes_per_s: HBM bandwidth of all cubes together, in bytes a second.
        sram_bytes: Capacity of the SRAM of all cubes together.
        elementwise: `_elementwise`, with all answers kept.
        matmul: `_matmul`, with all answers kept.
        attention: `_attention`, with all answers kept.
        tiled: `_tiled`, with all answers kept.
        kernel: `_kernel`, with all answers kept.
        priced: Durations of kernels by what they read and write, see `kernels.prices`.
        tiles: What the library chooses among, by element type; types with one tile are not in it.
    """

    def __init__(self, sip: SipSpec) -> None:
        cubes = sip.cubes.shape[0] * sip.cubes.shape[1]
        self.sip: Final = sip
        self.num_pes: Final = cubes * sip.cube.pes
        self.hbm_bytes_per_s: Final = cubes * sip.cube.hbm.bandwidth.per_second
        self._sram_bytes_per_s: Final = cubes * sip.cube.sram.bandwidth.per_second
        self.sram_bytes: Final = cubes * sip.cube.sram.capacity
        self._math_per_s: Final = self.num_pes * sip.pe.math.per_second
        chosen = () if sip.pe.gemm.library is None else sip.pe.gemm.library.kernels
        self.tiles: Final = {dtype: kernels for kernels in chosen for dtype in kernels.rate}
        self.elementwise: Final = cached("hw.elementwise")(self._elementwise)
        self.matmul: Final = cached("hw.matmul")(self._matmul)
        self.tiled: Final = cached("hw.tiled")(self._tiled)
        self.tiles_ps: Final = cached("hw.tiled")(self._tiles_ps)
        self.attention: Final = cached("hw.attention")(self._attention)
        self.priced: Final[Table[Hashable, int]] = Table("hw.priced")
        self.kernel: Final = cached("hw.kernels")(self._kernel)

    def multiplies(self, machine_dtype: str) -> bool:
        """Returns whether the machine file gives a rate for products of an element type."""
        return machine_dtype in self.tiles or machine_dtype in self.sip.pe.gemm.rate

    def has(self, name: str) -> bool:
        """Returns whether the machine's file says something of a kernel itself."""
        return name in self.sip.kernels

    def _kernel(self, name: str) -> KernelSpec:
        """Returns what a kernel takes: as the machine's file says of it, or of the one it is like.

        Args:
            name: One of `topology.spec.KERNELS`.
        """
        like: str | None = name
        while like is not None:
            if like in self.sip.kernels:
                return self.sip.kernels[like]
            like = KERNELS[like]
        return KernelSpec()

    def _elementwise(self, nbytes: int, operations: int) -> int:
        """Returns picoseconds: launch, then the slower of HBM traffic and the MATH engines."""
        return self.sip.launch + max(
            self._traffic(nbytes),
            -(-operations * PS_PER_S // self._math_per_s),
        )

    def _matmul(
        self, machine_dtype: str, m: int, n: int, k: int, nbytes: int, batch: int = 1
    ) -> int:
        """Returns the picoseconds of a batch of products of m x k and k x n, with the launch.

        A batch is one launch, and the tiles of all its products fill the PEs together. A PE
        computes one tile at a time and the last wave is as long as a full one, so sizes that leave
        PEs idle cost what they cost on a GPU. If the machine file says what the library chooses
        among, the fastest choice counts; else there is one tile.

        Args:
            machine_dtype: Element type as the machine file names it, such as `bf16`.
            m: Rows of each result.
            n: Columns of each result.
            k: Extent that is summed over.
            nbytes: Bytes of all operands and results.
            batch: Number of products.
        """
        gemm = self.sip.pe.gemm
        if gemm.library is not None and machine_dtype in self.tiles:
            return min(self._choices(gemm.library, machine_dtype, (batch, m, n, k), nbytes))
        tile_time = gemm.rate[machine_dtype].duration_ps(2 * gemm.tile[0] * gemm.tile[1] * k)
        tiles = _tiles(1, (batch, m, n, k), gemm.tile)
        waves = -(-tiles // self.num_pes)
        whole = self.sip.launch + max(waves * tile_time, self._traffic(nbytes))
        return self._held(whole, tiles)

    def _choices(
        self,
        library: LibrarySpec,
        machine_dtype: str,
        sizes: tuple[int, int, int, int],
        nbytes: int,
    ) -> Iterator[int]:
        """Yields the picoseconds of each way in which the library could compute products.

        More of m, n, k or bytes makes no way faster, and none of them adds a way; so a larger
        product is never faster. A way with fewer tiles than PEs leaves PEs to others.
        """
        batch, m, n, k = sizes
        fixed = self.sip.launch + library.start
        traffic = self._reading(nbytes)
        kernels = self.tiles[machine_dtype]
        rate = kernels.rate[machine_dtype]
        if min(m, n) == 1:  # the MATH engines multiply with a vector
            yield fixed + max(traffic, -(-batch * m * n * k * PS_PER_S // self._math_per_s))
        for parts in range(1, library.split_k + 1):
            adding = 0
            if parts > 1:  # the parts are written, read and added
                moved = (2 * parts + 1) * batch * m * n * _SUM_BYTES.get(machine_dtype, 4)
                adding = self.sip.launch - (-moved * PS_PER_S // self._sram_bytes_per_s)
            for a, b in kernels.tiles:
                work = 2 * -(-k // parts) * (a * b + kernels.edge * (a + b))
                tile_time = rate.duration_ps(work)
                tiles = min(_tiles(parts, sizes, (a, b)), _tiles(parts, sizes, (b, a)))
                waves = -(-tiles // self.num_pes)
                yield self._held(fixed + max(waves * tile_time, traffic) + adding, tiles)

    def _tiled(
        self, machine_dtype: str, batch: int, m: int, n: int, k: int, kernel: KernelSpec
    ) -> int:
        """Returns the picoseconds of the matrix engines for products, without launch and traffic.

        For kernels that are none of cuBLAS: they choose among tiles of 32 and more, and divide the
        sum among more PEs than cuBLAS does. As in `_choices`, a larger product adds no way.

        Args:
            machine_dtype: Element type as the machine file names it, such as `bf16`.
            batch: Number of products.
            m: Rows of each result.
            n: Columns of each result.
            k: Extent that is summed over.
            kernel: The share of the engines' rate that it reaches, and the operations of one PE
                beside each tile.
        """
        gemm = self.sip.pe.gemm
        chosen = self.tiles.get(machine_dtype)
        rate = gemm.rate[machine_dtype] if chosen is None else chosen.rate[machine_dtype]
        tiles = (gemm.tile,) if chosen is None else chosen.tiles
        edge = 0 if chosen is None else chosen.edge
        beside = kernel.row * self.num_pes * PS_PER_S // self._math_per_s
        ways = []
        for parts in (1,) if chosen is None else _PARTS:
            adding = 0
            if parts > 1:
                moved = (2 * parts + 1) * batch * m * n * _SUM_BYTES.get(machine_dtype, 4)
                adding = self.sip.launch - (-moved * PS_PER_S // self._sram_bytes_per_s)
            for a, b in tiles:
                if chosen is not None and min(a, b) < _LEAST_TILE:
                    continue
                work = 2 * -(-k // parts) * (a * b + edge * (a + b))
                tile_time = rate.duration_ps(work) * 100 // kernel.share + beside
                waves = min(
                    self._waves(batch * parts, m, n, (a, b)),
                    self._waves(batch * parts, m, n, (b, a)),
                )
                ways.append(waves * tile_time + adding)
        return min(ways)

    def _tiles_ps(
        self, machine_dtype: str, m: int, n: int, k: int, kernel: KernelSpec
    ) -> tuple[int, int]:
        """Returns the picoseconds of a product's tiles on all PEs together, and of one tile.

        Tiles are those of `gemm.tile`, cut to half of their rows as long as that covers them all.

        Args:
            machine_dtype: Element type as the machine file names it, such as `bf16`.
            m: Rows of the result.
            n: Columns of the result.
            k: Extent that is summed over.
            kernel: The share of the engines' rate that it reaches, and the operations of one PE
                beside each tile.
        """
        gemm = self.sip.pe.gemm
        rows, columns = gemm.tile
        if 2 * m <= rows:
            rows //= 2
        chosen = self.tiles.get(machine_dtype)
        rate = gemm.rate[machine_dtype] if chosen is None else chosen.rate[machine_dtype]
        beside = kernel.row * self.num_pes * PS_PER_S // self._math_per_s
        tile = rate.duration_ps(2 * rows * columns * k) * 100 // kernel.share + beside
        tiles = -(-m // rows) * -(-n // columns)
        return tiles * tile // self.num_pes, tile

    def _attention(
        self,
        backend: str,
        direction: Direction,
        machine_dtype: str,
        shape: Shape,
        patterns: tuple[Bands, ...],
        nbytes: int,
    ) -> int:
        """Returns the picoseconds of attention, with the launch: `attention.duration_ps`.

        Args:
            backend: Whose kernel.
            direction: Forward, or backward.
            machine_dtype: Element type as the machine file names it, such as `bf16`.
            shape: Extents but for the rows.
            patterns: Which rows see which: bands of all batch elements, or of each.
            nbytes: Bytes of all operands and results.
        """
        forward = direction == "forward"  # with few queries, it reads as a product does
        found, programs = attention.duration_ps(
            self.sip.pe,
            self.num_pes,
            backend,
            direction,
            machine_dtype,
            shape,
            patterns,
            self._reading(nbytes) if forward else self._traffic(nbytes),
        )
        return self._held(self.sip.launch + found, programs)

    def _reading(self, nbytes: int) -> int:
        """Returns the picoseconds of traffic that displaces results of earlier kernels."""
        library = self.sip.pe.gemm.library
        back = 0 if library is None else min(nbytes, library.write_back)
        return self._traffic(nbytes + back)

    def _held(self, duration: int, programs: int) -> int:
        """Returns the duration of a kernel; one with fewer programs than PEs leaves PEs to others.

        Args:
            duration: Picoseconds.
            programs: How many.
        """
        return Beside(duration) if programs < self.num_pes else duration

    def _waves(self, batch: int, m: int, n: int, tile: tuple[int, int]) -> int:
        """Returns how often the PEs take one tile each until all tiles are computed."""
        return -(-_tiles(1, (batch, m, n, 0), tile) // self.num_pes)

    def _traffic(self, nbytes: int) -> int:
        return -(-nbytes * PS_PER_S // self.hbm_bytes_per_s)


def _tiles(parts: int, sizes: tuple[int, int, int, int], tile: tuple[int, int]) -> int:
    """Returns the number of tiles of a batch of products, each of whose sums is cut into parts."""
    batch, m, n, _ = sizes
    return batch * parts * -(-m // tile[0]) * -(-n // tile[1])


_PARTS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Among how many PEs kernels of convolutions divide a sum."""

_LEAST_TILE: Final = 32
"""Shortest side of tiles that kernels of convolutions have."""

_SUM_BYTES: Final = {"fp64": 8}
"""Bytes of a partial sum; of types that are not here, 4."""


@cached("hw.machines")
def libraries_of(_topology: Topology) -> dict[int, Library]:
    """Returns the libraries of a machine by kind of SIP, filled by its devices.

    Of equal machines it is the same object.
    """
    return {}
