"""Numbers of a machine that are read off lines of a table, without a fit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Final, TypeAlias

from kernbench.calibration.cells import read_lines, wrong
from kernbench.calibration.lines import REPLAYS, Line
from kernbench.topology.spec import LibraryCallsSpec

Lines: TypeAlias = Sequence[Line]
US: Final = 1e6
_SMALL: Final = 4096
_WARM: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that is read off a table.

    Attributes:
        stage: Which step of the order it is of.
        table: The table.
        number: Where it stands under `system`.
        said: What it is of, for the file's comment.
        read: Returns it, in picoseconds, bytes or so much a second; None if the lines that tell it
            are not there.
        events: How much of the time of an event pair it holds, which is taken off.
        least, most: What is believed; anything else is a mistake of the measurement.
    """

    stage: str
    table: str
    number: str
    said: str
    read: Callable[[Lines], float | None]
    least: float
    most: float
    events: int = 0


def _mean_of(lines: Lines, wanted: Callable[[Line], bool], column: str = "us") -> float | None:
    found = [float(line[column]) for line in lines if wanted(line) and line.get(column)]
    return fmean(found) if found else None


def _called(what: str) -> Callable[[Lines], float | None]:
    """Returns what reads the mean time of the lines with a text in `what`."""

    def read(lines: Lines) -> float | None:
        found = _mean_of(lines, lambda line: line["what"] == what)
        return None if found is None else US * found

    return read


def _warm_bandwidth(lines: Lines) -> float | None:
    """The most that a sum of three arrays moves that lie in the L2."""
    rates = [float(ln["gbps"]) for ln in lines if int(ln["bytes"]) <= _WARM and ln["gbps"]]
    return 1e9 * max(rates) if rates else None


def _of_copies(lines: Lines) -> tuple[float, float] | None:
    """Returns bytes a second of large copies, and picoseconds of small ones beside their bytes."""
    sizes = sorted({int(line["bytes"]) for line in lines})
    if len(sizes) < 3:
        return None
    times = {
        size: _mean_of(lines, lambda ln, size=size: int(ln["bytes"]) == size)  # type: ignore[misc]
        for size in sizes
    }
    (small, at_small), (less, at_less), (most, at_most) = (
        (size, times[size] or 0.0) for size in (sizes[0], sizes[-2], sizes[-1])
    )
    rate = 1e6 * (most - less) / (at_most - at_less)
    return rate, US * at_small - 1e12 * small / rate


def _more(fewer: str, more: str, calls: int) -> Callable[[Lines], float | None]:
    """Returns what reads the time of one of some calls that one line has more than another.

    Pairs of lines count that were measured in the same way; their median is taken, since hosts that
    are alike differ twofold.

    Args:
        fewer: `what` of the line without the calls.
        more: `what` of the line with them.
        calls: How many more they are.
    """

    def read(lines: Lines) -> float | None:
        by_way: dict[tuple[str, ...], dict[str, float]] = {}
        for line in lines:
            way = (line["who"], line["n"], line["cpus"])
            by_way.setdefault(way, {})[line["what"]] = float(line["us"] or "nan")
        found = [
            (each[more] - each[fewer]) / calls
            for each in by_way.values()
            if fewer in each and more in each
        ]
        return US * median(found) if found else None

    return read


def _small_messages(lines: Lines) -> float | None:
    found = _mean_of(
        lines, lambda ln: ln["pattern"].startswith("send") and int(ln["bytes"]) <= _SMALL
    )
    return None if found is None else US * found


def event_us(folder: Path) -> float | None:
    """Returns what an event pair reads beside the kernel between, in microseconds.

    A graph's calls share a pair, so they hold a part of it, too.

    Args:
        folder: Has `host.csv` and `launch.csv`.

    Raises:
        UsageError: If one of them lacks a column, a number is none, or the pair with a kernel reads
            no more than the kernel (F2).
    """
    pair = _read(folder, "host", _called("event pair around one add_ (GPU time)"))
    alone = _read(folder, "launch", _called("add_ 32 floats, graph of 20"))
    if pair is None or alone is None:
        return None
    found = (pair - alone) / US * REPLAYS / (REPLAYS - 1)
    if not 0 < found < _MOST_EVENT_US:
        told = (
            f"an event pair around add_ reads {pair / US:g} us, and add_ in a graph {alone / US:g}"
        )
        raise wrong(str(folder / "host"), None, ValueError(f"{told}: one of them is wrong"))
    return found


_MOST_EVENT_US: Final = 100
_HOST: Final = (1e5, 1e9)
"""A tenth of a microsecond to a millisecond."""


READINGS: Final = (
    Reading(
        "memory",
        "memory",
        "sip.cube.sram.bandwidth",
        "largest up to 16 MiB, warm",
        _warm_bandwidth,
        1e11,
        1e14,
    ),
    Reading("host", "host", "host.loop", "x.add_(1), in a loop", _called("x.add_(1)"), *_HOST),
    Reading(
        "host",
        "host",
        "host.dispatch_of.event",
        "event record",
        _called("event record timing"),
        *_HOST,
    ),
    Reading(
        "host",
        "host",
        "host.dispatch_of.collective",
        "an all_reduce more among other work",
        _more("4 x (linear gelu linear)", "4 x (linear gelu linear all_reduce)", 4),
        *_HOST,
    ),
    Reading(
        "host", "p2p", "host.dispatch_of.message", "send of 1 to 4 KiB", _small_messages, *_HOST
    ),
    Reading(
        "host",
        "pcie",
        "host.pcie.bandwidth",
        "largest copies, both ways",
        lambda lines: (found := _of_copies(lines)) and found[0],
        1e9,
        1e13,
    ),
    Reading(
        "host",
        "pcie",
        "host.pcie.latency",
        "smallest copies, both ways, without an event pair",
        lambda lines: (found := _of_copies(lines)) and found[1],
        1e5,
        1e9,
        events=1,
    ),
)
"""All of them; those of a stage come before its fits."""


PROPORTIONAL: Final = (
    "host.dispatch",
    *(f"host.dispatch_of.{name}" for name in ("compute", "kernel", "copy", "collective")),
    *(f"host.dispatch_of.{name}" for name in ("message", "batch", "event")),
    *(f"host.eager.{name}" for name in ("among", "tensor", "view", "autograd", "backward", "step")),
    *(f"host.eager.{name}" for name in ("zero_grad", "zeroed", "hook", "shard", "dtensor")),
    *(f"host.eager.library.{field.name}" for field in fields(LibraryCallsSpec)),
)
"""Times of a host among other work, which no line tells alone: they are in proportion to `loop`."""


def readings(folder: Path, stage: str, pair_us: float) -> Mapping[Reading, float]:
    """Returns the numbers of a stage that the tables of a folder tell; they may be unbelievable.

    Args:
        folder: The tables.
        stage: Which step of the order.
        pair_us: What an event pair reads with nothing between, in microseconds.

    Raises:
        UsageError: If a table lacks a column, or a number is none (F2).
    """
    found = {}
    for reading in READINGS:
        if reading.stage == stage:
            value = _read(folder, reading.table, reading.read)
            if value is not None:
                found[reading] = value - reading.events * pair_us * US
    return found


def _read(folder: Path, table: str, read: Callable[[Lines], float | None]) -> float | None:
    lines = read_lines(folder / f"{table}.csv")
    try:
        value = read(lines) if lines else None
        if value is not None and not math.isfinite(value):
            raise ValueError(f"expected numbers, got {value}")
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise wrong(str(folder / table), None, error) from error
    return value
