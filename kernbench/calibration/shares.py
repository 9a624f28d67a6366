"""Constants of a library, as shares of what a chip can do: from one machine to another."""

from dataclasses import replace
from typing import Final

from kernbench.calibration.values import amount
from kernbench.topology.spec import GemmSpec, LibrarySpec, SipSpec, SystemSpec, WarmSpec
from kernbench.units import Bandwidth, Bytes, FlopRate

HOST: Final = ("dispatch", "dispatch_of", "eager", "launch_queue", "loop")

PROGRAMS: Final = ("issue", "latency", "step", "traffic", "atomic", "sector", "slices")
"""What a machine has of another one for kernels of Triton; limits are its own."""


def with_shares(chip: SystemSpec, like: SystemSpec) -> SystemSpec:
    """Returns a machine with the peaks of one, and the library, kernels and host of another.

    Shares and operations count against the machine's own bandwidths and rates. The chip's rates of
    products are its peaks, or if it has a library, that library's are: the products of the result's
    library have them, and tiles of one size the share of them that they have on the other machine.

    Args:
        chip: Datasheet numbers.
        like: The machine that is calibrated.
    """
    host = replace(chip.host, **{name: getattr(like.host, name) for name in HOST})
    sip, other = chip.sip, like.sip
    times = {name: getattr(other.pe.programs, name) for name in PROGRAMS}
    pe = replace(
        sip.pe,
        gemm=_gemm(sip.pe.gemm, other.pe.gemm),
        attention=other.pe.attention,
        programs=replace(sip.pe.programs, **times),
    )
    sip = replace(
        sip,
        launch=other.launch,
        collective_launch=other.collective_launch,
        overlap=other.overlap,
        event=other.event,
        peers=other.peers,
        warm=_warm(sip, other),
        kernels=other.kernels,
        pe=pe,
    )
    return replace(chip, host=host, sip=sip)


def _warm(sip: SipSpec, other: SipSpec) -> WarmSpec | None:
    """Returns what an L2 keeps: as much of its capacity, as much faster than the HBM."""
    warm, cube, its = other.warm, sip.cube, other.cube
    if warm is None:
        return None
    kept = warm.kept * cube.sram.capacity / its.sram.capacity
    rate = amount(warm.bandwidth) * amount(cube.hbm.bandwidth) / amount(its.hbm.bandwidth)
    return WarmSpec(Bytes(_rounded(kept)), Bandwidth(_rounded(rate)))


def _rounded(number: float) -> int:
    return max(1, round(float(f"{number:.3g}")))


def _gemm(peaks: GemmSpec, like: GemmSpec) -> GemmSpec:
    if like.library is None:
        return peaks
    rates, kernels = dict(peaks.rate), []
    own = () if peaks.library is None else peaks.library.kernels
    most = rates | {dtype: rate for tiles in own for dtype, rate in tiles.rate.items()}
    for tiles in like.library.kernels:
        known = {dtype: most[dtype] for dtype in tiles.rate if dtype in most}
        for dtype, peak in known.items():
            share = amount(like.rate[dtype]) / amount(tiles.rate[dtype])
            rates[dtype] = FlopRate(_rounded(share * peak.per_second))
        if known:
            kernels.append(replace(tiles, rate=known))
    library: LibrarySpec = replace(like.library, kernels=tuple(kernels))
    return GemmSpec(rates, like.tile, library)
