"""Results as nccl-tests prints them: the same columns, widths and footer; simulated times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from kernbench.units import PS_PER_US

SCHEMA_VERSION: Final = 1

_NAMES: Final = ("size", "count", "type", "redop", "root")
_UNITS: Final = ("(B)", "(elements)", "", "", "")
_TIMING_NAMES: Final = ("time", "algbw", "busbw", "#wrong")
_TIMING_UNITS: Final = ("(us)", "(GB/s)", "(GB/s)", "")
_UNKNOWN: Final = "N/A"
_SIMULATED: Final = "times are simulated, not measured; 1 GB/s is 10^9 bytes a second"
_NOT_SIMULATED: Final = "times: N/A (fidelity functional)"


@dataclass(frozen=True, slots=True)
class Header:
    """The run that a table is about.

    Attributes:
        collective: Name of the operation, such as `all_reduce`.
        machine: Name of the machine.
        ranks: Number of ranks that took part.
        algorithm: Name of the algorithm in `ccl.yaml`.
        dials: Settings of the run by name, such as `data: on`.
        timed: Whether time is simulated; if not, no measurement has a time.
    """

    collective: str
    machine: str
    ranks: int
    algorithm: str
    dials: Mapping[str, str]
    timed: bool = True


@dataclass(frozen=True, slots=True)
class Timing:
    """The cost of one operation, out of place or in place.

    Attributes:
        time_us: Simulated microseconds; None if time is not simulated.
        algbw_gb_per_s: Bytes over time, in units of 10^9 bytes a second; None if no time passed.
        busbw_gb_per_s: `algbw_gb_per_s` times `busbw_factor`, comparable with the bandwidth of a
            link.
        wrong: Number of elements with a wrong value; None if they were not checked.
    """

    time_us: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row of the table.

    Attributes:
        size_bytes: Bytes of a rank's input or output, whichever is larger; where ranks exchange
            blocks, the bytes of all blocks together.
        count: Number of elements as the operation counts them: the whole message, or one block of
            it.
        dtype: Element type, as nccl-tests names it: `float`, `bfloat16`, `int32`.
        redop: Reduction, such as `sum`; `none` for operations without one.
        root: Root rank; -1 for operations without one.
        out_of_place: Timing with an output of its own.
        in_place: Timing with the input as output; None for operations that have no such form.
        algorithm: The algorithm that ran, also where the choice was automatic.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    out_of_place: Timing
    in_place: Timing | None
    algorithm: str


def _both_ways(ranks: int) -> Fraction:
    return Fraction(2 * (ranks - 1), ranks)


def _others(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


def _all(ranks: int) -> Fraction:
    del ranks
    return Fraction(1)


# Source: doc/PERFORMANCE.md of nccl-tests. It leaves out gather, scatter and sendrecv; for these
# the source is `GatherGetBw`, `ScatterGetBw` and `SendRecvGetBw` in src/.
_BUSBW_FACTORS: Final[Mapping[str, Callable[[int], Fraction]]] = {
    "all_reduce": _both_ways,
    "broadcast": _all,
    "reduce": _all,
    "all_gather": _others,
    "reduce_scatter": _others,
    "gather": _others,
    "scatter": _others,
    "all_to_all": _others,
    "sendrecv": _all,
}


def busbw_factor(operation: str, ranks: int) -> Fraction:
    """Returns bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    The factor makes rates comparable with the bandwidth of a link, whatever the number n of ranks:
    `2 (n-1)/n` for an all-reduce, which reduces and then spreads; `(n-1)/n` where every rank keeps
    a block of its own; 1 where all bytes leave one rank, or reach it.

    Args:
        operation: Name of the operation, such as `all_reduce`.
        ranks: Number of ranks that take part.
    """
    return _BUSBW_FACTORS[operation](ranks)


def timing(
    size_bytes: int,
    total_ps: int | None,
    busbw_factor: Fraction,
    *,
    iterations: int = 1,
    wrong: int | None = None,
) -> Timing:
    """Returns the timing of an operation; each figure is rounded once, from integers.

    Args:
        size_bytes: Size of the message, as in `Measurement`.
        total_ps: Simulated time of all iterations in picoseconds; None if time is not simulated.
        busbw_factor: Bus bandwidth over algorithm bandwidth.
        iterations: How many times the operation ran.
        wrong: Number of elements with a wrong value; None if they were not checked.
    """
    if total_ps is None:
        return Timing(None, None, None, wrong)
    time_us = total_ps / (iterations * PS_PER_US)
    if not total_ps:
        return Timing(time_us, None, None, wrong)
    # One byte a picosecond is 1000 GB/s.
    algbw = Fraction(1000 * size_bytes * iterations, total_ps)
    return Timing(time_us, float(algbw), float(algbw * busbw_factor), wrong)


def total_wrong(measurements: Sequence[Measurement]) -> int | None:
    """Returns the number of wrong elements in all rows; None if no row was checked."""
    counts = [timing.wrong for timing in _timings(measurements) if timing.wrong is not None]
    return sum(counts) if counts else None


def average_busbw(measurements: Sequence[Measurement]) -> float | None:
    """Returns the mean bus bandwidth in GB/s over all timings; None if time is not simulated."""
    rates = [timing.busbw_gb_per_s for timing in _timings(measurements)]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def header_lines(header: Header) -> list[str]:
    """Returns the lines above the rows."""
    dials = ", ".join(f"{name} {value}" for name, value in header.dials.items())
    blank = _columns(*[""] * len(_NAMES))
    return [
        f"# {header.collective} on {header.machine}: {header.ranks} ranks, {header.algorithm}",
        *([f"# {dials}"] if dials else []),
        f"# {_SIMULATED if header.timed else _NOT_SIMULATED}",
        "#",
        f"{blank}           out-of-place                       in-place",
        _columns(*_NAMES) + 2 * _timing_columns(*_TIMING_NAMES),
        (_columns(*_UNITS) + 2 * _timing_columns(*_TIMING_UNITS)).rstrip(),
    ]


def row_line(row: Measurement) -> str:
    """Returns the line of one row."""
    return (
        f"{row.size_bytes:12}  {row.count:12}  {row.dtype:>8}  {row.redop:>6}  {row.root:6}"
        + _timing_text(row.out_of_place)
        + (_NO_TIMING if row.in_place is None else _timing_text(row.in_place))
    )


LINK_BOUND: Final = "link_bound_gb_per_s"
"""Key of the bus bandwidth that links allow."""


def footer_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Returns the lines below the rows."""
    wrong, busbw = total_wrong(measurements), average_busbw(measurements)
    verdict = "N/A (not checked)" if wrong is None else f"{wrong} {'FAILED' if wrong else 'OK'}"
    return [
        f"# Out of bounds values : {verdict}",
        f"# Avg bus bandwidth    : {_UNKNOWN if busbw is None else f'{busbw:g}'}",
        "#",
    ]


def as_json(
    header: Header,
    measurements: Sequence[Measurement],
    limit: str | None = None,
    link_bound: float | None = None,
) -> dict[str, Any]:
    """Returns the results as plain values; keys name their units.

    Args:
        header: The run.
        measurements: The rows.
        limit: What limits the largest size beside link and engines; None for nothing.
        link_bound: Bus bandwidth in GB/s that the links allow to the largest size; None if nothing
            crosses a link.
    """
    wrong = total_wrong(measurements)
    return {
        "schema_version": SCHEMA_VERSION,
        "clock": "simulated" if header.timed else None,
        "collective": header.collective,
        "machine": header.machine,
        "ranks": header.ranks,
        "algorithm": header.algorithm,
        "dials": dict(header.dials),
        "rows": [
            {
                "size_bytes": row.size_bytes,
                "count": row.count,
                "type": row.dtype,
                "redop": row.redop,
                "root": row.root,
                "algorithm": row.algorithm,
                "out_of_place": _timing_json(row.out_of_place),
                "in_place": None if row.in_place is None else _timing_json(row.in_place),
            }
            for row in measurements
        ],
        "out_of_bounds_values": wrong,
        "average_busbw_gb_per_s": average_busbw(measurements),
        "limit": limit,
        LINK_BOUND: link_bound,
    }


def _timings(measurements: Sequence[Measurement]) -> list[Timing]:
    timings = [timing for row in measurements for timing in (row.out_of_place, row.in_place)]
    return [timing for timing in timings if timing is not None]


def _columns(size: str, count: str, dtype: str, redop: str, root: str) -> str:
    return f"# {size:>10}  {count:>12}  {dtype:>8}  {redop:>6}  {root:>6}"


def _timing_columns(time: str, algbw: str, busbw: str, wrong: str) -> str:
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"


_NO_TIMING: Final = _timing_columns(_UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN)


def _timing_text(timing: Timing) -> str:
    return _timing_columns(
        _fitted(timing.time_us, 7),
        _fitted(timing.algbw_gb_per_s, 6),
        _fitted(timing.busbw_gb_per_s, 6),
        _UNKNOWN if timing.wrong is None else f"{timing.wrong:g}",
    )


def _fitted(value: float | None, width: int) -> str:
    """Returns a number with the most decimals that fit, at most two, as nccl-tests does."""
    if value is None:
        return _UNKNOWN
    texts = (f"{value:.{decimals}f}" for decimals in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.{width - 6}e}")


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "time_us": timing.time_us,
        "algbw_gb_per_s": timing.algbw_gb_per_s,
        "busbw_gb_per_s": timing.busbw_gb_per_s,
        "wrong": timing.wrong,
    }
