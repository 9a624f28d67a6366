"""Atomic operations of a launch: where they meet, and what the caches take for them.

The last cache has slices, each for some of the memory. A slice works on the atomic operations of a
request, which are those of a warp, sector by sector, and on those at one address one after another.
"""

from dataclasses import dataclass
from math import expm1, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernbench.topology.spec import ProgramsSpec

Addresses = NDArray[np.int64]
"""Bytes at which lanes of requests add, `[programs, requests, lanes]`; -1 of a lane that is off."""

_SECTOR: Final = 32
"""Bytes that a slice works on at once."""

_CHUNK: Final = 512
"""Bytes that follow each other in one slice (ADR 0081)."""

_WORD: Final = 4
"""Bytes of the smallest number that is added to by itself."""

_DRAWN: Final = (16, 32, 32)
"""Programs, requests and lanes that stand for those whose addresses nobody knows."""


@dataclass(frozen=True, slots=True)
class Contention:
    """What the atomic operations of a launch ask of the last cache.

    Attributes:
        passes: How often slices work on a sector.
        chunks: Parts of the memory, each of one slice, that are worked on.
        hottest: Operations at the address that has the most.
    """

    passes: int
    chunks: int
    hottest: int


def contention_of(seen: Addresses, itemsize: int, scale: float, extent: int) -> Contention:
    """Returns what atomic operations ask of which some were looked at.

    Args:
        seen: Where some programs add, of those spread evenly.
        itemsize: Bytes of a number.
        scale: Requests of the launch for each one that was looked at.
        extent: Bytes of the memory; there are no more chunks.
    """
    programs, requests, _ = seen.shape
    on = seen >= 0
    if not on.any():
        return Contention(0, 0, 0)
    asked = np.arange(programs * requests).reshape(programs, requests, 1)
    request = np.broadcast_to(asked, seen.shape)[on]
    address = seen[on] - seen[on].min() // _CHUNK * _CHUNK
    size = max(itemsize, _WORD)
    words, often = _pairs(request, address // size)
    begins = np.flatnonzero(np.diff(words * size // _SECTOR, prepend=-1))
    passes = np.maximum.reduceat(often, begins).sum()
    hottest = np.unique(address // size, return_counts=True)[1].max()
    chunks = address // _CHUNK
    there, of_programs = len(np.unique(chunks)), len(_pairs(request // requests, chunks)[0])
    return Contention(
        int(passes * scale),
        min(-(-extent // _CHUNK), _all(there, of_programs, scale)),
        int(hottest * scale),
    )


def _pairs(first: Addresses, second: Addresses) -> tuple[Addresses, Addresses]:
    """Returns the different pairs of numbers, as one number each, and how often each comes.

    Pairs follow each other as in the first numbers, so that no sector has words of two requests.
    """
    width = -(-(int(second.max()) + 1) // _SECTOR) * _SECTOR
    found, often = np.unique(first * width + second, return_counts=True)
    return found, often


def _all(there: int, of_programs: int, scale: float) -> int:
    """Returns how many chunks all programs work on, as far as those tell that were looked at.

    If programs share none, all others have their own. Else they are as if drawn: of `c` chunks,
    `n` draws find `c (1 - exp(-n/c))` different ones.

    Args:
        there: Chunks of those that were looked at.
        of_programs: The same, with those counted again that several of them share.
        scale: Requests of the launch for each one that was looked at.
    """
    most = of_programs * scale
    if scale <= 1:
        return there
    if there == of_programs:
        return int(most)
    low, high = float(there), most
    for _ in range(40):
        middle = (low + high) / 2
        if -middle * expm1(-of_programs / middle) < there:
            low = middle
        else:
            high = middle
    return round(high)


def spread_over(extent: int, itemsize: int) -> Addresses:
    """Returns addresses that are spread evenly, and at random, over a memory: nobody knows better.

    Args:
        extent: Bytes of the memory.
        itemsize: Bytes of a number.
    """
    numbers = np.random.default_rng(0).integers(0, max(1, extent // itemsize), _DRAWN)
    return np.asarray(numbers * itemsize, np.int64)


def contention_ps(spec: ProgramsSpec, contention: Contention) -> int:
    """Returns the picoseconds that the last cache takes for atomic operations.

    Chunks are in slices as if drawn. The slice with the most of `c` chunks has about
    `c/s + sqrt(2 ln(s) c/s)` of them, the largest of `s` sums of independent numbers [Gumbel,
    Statistics of Extremes, 1958, for normal ones].

    Args:
        spec: Of the PE.
        contention: What they ask.
    """
    if not contention.chunks or not spec.slices:
        return 0
    mean = contention.chunks / spec.slices
    busiest = max(1.0, mean + sqrt(2 * log(spec.slices) * mean))
    passes = contention.passes * min(1.0, busiest / contention.chunks)
    return max(int(passes * spec.sector), contention.hottest * spec.atomic)
