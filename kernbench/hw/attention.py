"""How long a device takes for attention: tiles of scores, one program after another on a PE."""

from collections.abc import Sequence
from heapq import heapreplace
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from kernbench.attention.bands import Bands
from kernbench.memory import Array
from kernbench.topology.spec import GemmSpec, PeSpec
from kernbench.units import FlopRate

Direction: TypeAlias = Literal["forward", "backward"]


class Shape(NamedTuple):
    """Extents of attention but for its rows.

    Attributes:
        batch: Batch elements.
        heads: Of queries.
        groups: Of keys and values.
        width: Of queries and keys.
        value_width: Of values.
    """

    batch: int
    heads: int
    groups: int
    width: int
    value_width: int


_OPERATIONS: Final = 5
"""Of a score: its factor, the greatest so far, the difference, the power, the sum."""

_ROWS: Final = 64
"""Few queries of divided keys take a multiple of this: what four warps multiply at once."""

_ORDERED: Final = 1 << 15
"""Up to so many programs are given to the PEs one by one: in some 8 ms of wall time."""


class Kernel(NamedTuple):
    """What the time of attention depends on: as in `AttentionSpec`, with rates of one PE."""

    start: int
    program: int
    adding: int
    tile: tuple[int, int]
    rate: FlopRate
    scores: FlopRate
    fp32: int | None = None


def peak_of(gemm: GemmSpec) -> FlopRate:
    """Returns the most that a PE reaches in products of `bf16`."""
    if gemm.library is not None:
        for kernels in gemm.library.kernels:
            if "bf16" in kernels.rate:
                return kernels.rate["bf16"]
    return gemm.rate["bf16"]


def kernel_of(pe: PeSpec, backend: str, direction: Direction) -> Kernel:
    """Returns what a machine file says of a kernel, or what follows from the engines.

    Args:
        backend: Whose kernel.
        direction: Forward, or backward.
    """
    for each in pe.attention:
        if (each.backend, each.direction) == (backend, direction):
            rate, scores = (
                FlopRate(max(1, whole.per_second * percent // 100))
                for whole, percent in ((peak_of(pe.gemm), each.share), (pe.math, each.scores))
            )
            times = each.start, each.program, each.adding
            return Kernel(*times, each.tile, rate, scores, each.fp32)
    scores = FlopRate(max(1, pe.math.per_second // _OPERATIONS))
    return Kernel(0, 0, 0, (128, 128), pe.gemm.rate["bf16"], scores)


def duration_ps(
    pe: PeSpec,
    pes: int,
    backend: str,
    direction: Direction,
    machine_dtype: str,
    shape: Shape,
    patterns: Sequence[Bands],
    traffic_ps: int,
) -> tuple[int, int]:
    """Returns the picoseconds of attention beside the launch of its kernel, and its programs.

    A program takes one tile of queries (backward: of keys) of one head through all tiles of scores
    in which something is seen; a tile on a diagonal takes as long as a whole one. PEs take programs
    in the order of rows, then batch elements, then heads, each PE when it is free. Forward, the
    traffic goes on meanwhile; backward, kernels before and after it (products of gradients with
    outputs, sums of the queries' gradients) do most of it. Source: FlashAttention 2, whose grid is
    (tiles, batch, heads).

    Few queries: all heads of a group are rows of one tile. If there are fewer programs than PEs,
    some PEs may work on parts of a program's keys, in tiles of fewer rows, and their sums are
    added.

    More of anything makes no attention faster.

    Args:
        pes: How many.
        backend: Whose kernel.
        direction: Forward, or backward.
        machine_dtype: Element type as the machine file names it, such as `bf16`.
        shape: Extents but for the rows.
        patterns: Which rows see which: bands of all batch elements, or of each.
        traffic_ps: Time of the HBM for all operands and results.
    """
    spec = kernel_of(pe, backend, direction)
    widths = shape.width + shape.value_width
    if direction == "backward":  # also the scores once more, and both sides of their gradients
        widths += 2 * shape.width + shape.value_width
    rows, columns = spec.tile
    repeats = shape.heads * (shape.batch if len(patterns) == 1 else 1)
    few = rows
    if direction == "forward":
        share = max(1, shape.heads // max(1, shape.groups))
        most = max((band.queries for bands in patterns for band in bands), default=0) * share
        if most <= rows:
            repeats //= share
            few = min(rows, -(-most // _ROWS) * _ROWS)
    rates = pe.gemm.rate

    def tile_of(rows: int) -> int:
        slower = spec.fp32 if machine_dtype == "fp32" else None
        like = "bf16" if slower else machine_dtype
        flop = 2 * rows * columns * widths * rates["bf16"].per_second
        multiplied = spec.rate.duration_ps(-(-flop // rates[like].per_second))
        whole = multiplied + spec.scores.duration_ps(rows * columns)
        return -(-100 * whole // slower) if slower else whole

    turned = direction == "backward"
    lengths = np.concatenate([_lengths(each, spec.tile, turned=turned) for each in patterns])
    whole = _makespan(lengths, repeats, pes, spec.program, tile_of(rows))
    programs = len(lengths) * repeats
    if turned:
        return spec.start + whole + traffic_ps, programs
    whole, parts = max(whole, traffic_ps), pes // max(1, programs)
    if parts > 1:
        longest = spec.program + -(-int(lengths.max(initial=0)) // parts) * tile_of(few)
        cut = max(longest, traffic_ps) + spec.adding
        if cut < whole:  # as many programs as PEs, or nearly
            whole, programs = cut, pes
    return spec.start + whole, programs


def _lengths(bands: Bands, tile: tuple[int, int], *, turned: bool) -> Array:
    """Returns for each program of one head how many tiles of scores it computes, in order of rows.

    Args:
        bands: Which rows see which.
        tile: Rows of queries and of keys.
        turned: Whether a program has keys and goes through queries.
    """
    rows, columns = tile
    if not bands:
        return np.zeros(0, np.int64)
    start, length, _, others, first, stop = np.array(bands, np.int64).T
    if turned:  # key j is seen by queries `j - stop + 1` to `j - first`
        start, length, others = np.array(bands, np.int64).T[[2, 3, 1]]
        first, stop = 1 - stop, 1 - first
        rows, columns = columns, rows
    counts = -(-length // rows)
    band = np.repeat(np.arange(len(bands)), counts)
    top = rows * (np.arange(len(band)) - np.repeat(np.cumsum(counts) - counts, counts))
    bottom = np.minimum(top + rows, length[band])
    left = np.maximum(top + first[band], 0) // columns
    right = -(-np.minimum(bottom - 1 + stop[band], others[band]) // columns)
    _, program = np.unique(start[band] + top, return_inverse=True)
    return np.bincount(program, right - left).astype(np.int64)


def _makespan(lengths: Array, repeats: int, pes: int, program: int, tile_ps: int) -> int:
    """Returns the picoseconds until the last PE is done.

    Args:
        lengths: Tiles of each program of one head, in order.
        repeats: Heads.
        pes: How many.
        program: Picoseconds of a program beside its tiles.
        tile_ps: Picoseconds of a tile.
    """
    if not len(lengths):
        return 0
    count, longest = len(lengths) * repeats, program + int(lengths.max()) * tile_ps
    if count <= pes:
        return longest
    total = count * program + repeats * int(lengths.sum()) * tile_ps
    if count > _ORDERED:  # Graham: no order takes longer; by less than 1 % with so many
        return -(-(total + (pes - 1) * longest) // pes)
    if total == count * longest:
        return -(-count // pes) * longest
    free = [0] * pes
    for duration in (program + tile_ps * np.tile(lengths, repeats)).tolist():
        heapreplace(free, free[0] + duration)
    return max(free)
