"""How even ranks that share experts were loaded, and what waiting for the busiest took."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kernbench.report.records import is_engine
from kernbench.routing import Load, coefficient_of_variation, overload
from kernbench.sim_engine.op_log import OpLog, TogetherArgs
from kernbench.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.console import Console


_PHASES: Final = ("dispatch", "combine")

Waits = dict[tuple[int, str], Counter[str]]
"""Picoseconds that ranks waited for the last one, by layer and direction, and by phase."""


@dataclass(frozen=True, slots=True)
class LoadRow:
    """How even the load of a layer was, of all its calls.

    Attributes:
        layer: Number of the layer; -1 for exchanges with uneven splits of no known layer.
        direction: `forward`, `backward` or `exchange`.
        calls: How often ranks exchanged.
        overload: Rows of the busiest rank over the mean: Megatron-LM's overload factor, the mean of
            the calls.
        most_overload: The largest of them.
        expert_cv: Deviation of experts' rows over their mean, the mean of the calls; None if
            nothing says which expert rows are for.
        dropped: Choices that a capacity cut off, of all ranks and calls; None if nothing says it.
        padded: Rows without a choice, likewise.
        sent_bytes: The most that a rank sent to others in a call, there and back.
        wait_dispatch_ps: Time that ranks waited for the last one where tokens leave, the mean of
            ranks and calls; None if the log has no records, or nothing says which they are: of
            backward passes of PyTorch.
        wait_combine_ps: Likewise where they come back.
    """

    layer: int
    direction: str
    calls: int
    overload: float
    most_overload: float
    expert_cv: float | None
    dropped: int | None
    padded: int | None
    sent_bytes: int
    wait_dispatch_ps: int | None
    wait_combine_ps: int | None


def load_rows(op_log: OpLog) -> list[LoadRow]:
    """Returns how even loads were, by layer and direction.

    Args:
        op_log: Log of the run.
    """
    calls: dict[tuple[int, str], dict[tuple[object, ...], list[Load]]] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for load in op_log.loads:
        row = calls.setdefault((load.layer, load.direction), {})
        whose = load.rank, load.layer, load.step, load.direction, load.ranks
        # Calls without a number, or repeated ones, are matched by their order on each rank.
        row.setdefault((load.step, load.ranks, seen[whose]), []).append(load)
        seen[whose] += 1
    waits = _waits(op_log) if op_log.full else {}
    return [
        _row(layer, direction, [*found.values()], waits)
        for (layer, direction), found in sorted(calls.items())
    ]


def print_loads(rows: Sequence[LoadRow], console: "Console") -> None:
    """Prints them as a table."""
    # rich takes longer to import than the rest of the package.
    from rich.table import Table

    table = Table(title="Load of ranks that share experts")
    names = ("layer", "direction", "calls", "max/mean", "largest", "experts' CV")
    for column in (*names, "dropped", "padded", "sent", "wait: dispatch", "combine"):
        table.add_column(column, justify="left" if column == "direction" else "right")
    for row in rows:
        table.add_row(
            "?" if row.layer < 0 else str(row.layer),
            row.direction,
            str(row.calls),
            f"{row.overload:.3f}",
            f"{row.most_overload:.3f}",
            "?" if row.expert_cv is None else f"{row.expert_cv:.3f}",
            "?" if row.dropped is None else str(row.dropped),
            "?" if row.padded is None else str(row.padded),
            format_bytes(row.sent_bytes),
            *(
                "?" if wait is None else format_time(wait)
                for wait in (row.wait_dispatch_ps, row.wait_combine_ps)
            ),
        )
    console.print(table)


def _row(
    layer: int,
    direction: str,
    calls: Sequence[Sequence[Load]],
    waits: Waits,
) -> LoadRow:
    factors = [overload(np.array([load.rows for load in call])) for call in calls]
    spreads = [
        coefficient_of_variation(np.concatenate([load.by_expert for load in call]))
        for call in calls
        if all(load.by_expert for load in call)
    ]
    every = [load for call in calls for load in call]
    dropped = [load.dropped for load in every]
    padded = [load.padded for load in every]
    steps = {(load.rank, load.step) for load in every}
    found = waits.get((layer, direction))
    wait = [None if found is None else found[phase] // len(steps) for phase in _PHASES]
    return LoadRow(
        layer,
        direction,
        len(calls),
        float(np.mean(factors)),
        max(factors),
        float(np.mean(spreads)) if spreads else None,
        None if None in dropped else sum(each or 0 for each in dropped),
        None if None in padded else sum(each or 0 for each in padded),
        max(load.sent for load in every),
        *wait,
    )


def _waits(op_log: OpLog) -> Waits:
    """Returns how long ranks waited in exchanges for the last of them."""
    meetings: dict[tuple[int, str, str, object, object], list[int]] = {}
    for record in op_log.records:
        if record.category != "collective" or is_engine(record.track) or not record.ranges:
            continue
        word, _, rest = record.ranges[-1].partition(" ")
        layer, _, phase = rest.partition(" ")
        if word == "moe" and layer.isdecimal():
            args = record.args
            back = isinstance(args, TogetherArgs) and args.together.backward
            way = "backward" if back else "forward"
            meeting = (int(layer), way, phase, args.get("group"), args.get("sequence"))
            meetings.setdefault(meeting, []).append(record.start)
    found: Waits = {}
    for (number, way, phase, *_), starts in meetings.items():
        spent = sum(max(starts) - start for start in starts)
        found.setdefault((number, way), Counter())[phase] += spent
    return found
