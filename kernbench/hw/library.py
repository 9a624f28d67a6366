"""Durations of library kernels: launch, then the slower of memory and engines."""

from typing import Final

from kernbench.caches import cached
from kernbench.topology import Topology
from kernbench.topology.spec import SipSpec
from kernbench.units import PS_PER_S


class Library:
    """Durations of library kernels on one SIP, all of whose PEs work together.

    Args:
        sip: Description of the SIP.

    Attributes:
        num_pes: PEs of the SIP.
        hbm_bytes_per_s: HBM bandwidth of all cubes together, in bytes a second.
        elementwise: `_elementwise`, with all answers kept.
        matmul: `_matmul`, with all answers kept.
    """

    def __init__(self, sip: SipSpec) -> None:
        cubes = sip.cubes.shape[0] * sip.cubes.shape[1]
        self._sip: Final = sip
        self.num_pes: Final = cubes * sip.cube.pes
        self.hbm_bytes_per_s: Final = cubes * sip.cube.hbm.bandwidth.per_second
        self._math_per_s: Final = self.num_pes * sip.pe.math.per_second
        self.elementwise: Final = cached("hw.elementwise")(self._elementwise)
        self.matmul: Final = cached("hw.matmul")(self._matmul)

    def _elementwise(self, nbytes: int, operations: int) -> int:
        """Returns picoseconds: launch, then the slower of HBM traffic and the MATH engines."""
        return self._sip.launch + max(
            -(-nbytes * PS_PER_S // self.hbm_bytes_per_s),
            -(-operations * PS_PER_S // self._math_per_s),
        )

    def _matmul(self, machine_dtype: str, m: int, n: int, k: int, nbytes: int) -> int:
        """Returns picoseconds: launch, then the slower of HBM traffic and waves of output tiles.

        A PE computes one tile at a time and the last wave is as long as a full one, so sizes that
        leave PEs idle cost what they cost on a GPU.
        """
        gemm = self._sip.pe.gemm
        rows, columns = gemm.tile
        tiles = -(-m // rows) * -(-n // columns)
        waves = -(-tiles // self.num_pes)
        tile_time = gemm.rate[machine_dtype].duration_ps(2 * rows * columns * k)
        return self._sip.launch + max(
            waves * tile_time, -(-nbytes * PS_PER_S // self.hbm_bytes_per_s)
        )


@cached("hw.machines")
def libraries_of(_topology: Topology) -> dict[int, Library]:
    """Returns the libraries of a machine by kind of SIP, filled by its devices.

    Of equal machines it is the same object.
    """
    return {}
