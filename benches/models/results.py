"""Results of the benches that run models: tables and plain values. All times are simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benches.models.measure import Measured
from kernbench.report import RangeBreakdown, mean_of_ranks, range_breakdown
from kernbench.report.ranges import OUTSIDE
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US

SCHEMA_VERSION: Final = 1

_NO_TIME: Final = "N/A (fidelity functional)"
_MIB: Final = 1 << 20
_MOST_LOSSES: Final = 10


@dataclass(frozen=True)
class Bubble:
    """Which part of a step stages of a pipeline wait.

    Attributes:
        ideal: If all stages took the same time, and messages none.
        measured: In which they were in no pass, of the simulated time.
    """

    ideal: float
    measured: float


@dataclass(frozen=True)
class Section:
    """What was measured of one kind of step.

    Attributes:
        name: Of the kind.
        steps: Counted ones.
        warmup: Those before.
        ranks: What each rank has measured.
        breakdown: Where the time of the counted steps went, by rank and range; None if no time is
            simulated.
        bubble: Of a pipeline; None if there is none, or no time is simulated.
    """

    name: str
    steps: int
    warmup: int
    ranks: Sequence[Measured]
    breakdown: Sequence[RangeBreakdown] | None
    bubble: Bubble | None = None

    @property
    def step_us(self) -> float | None:
        """Simulated microseconds of a step: of all counted ones, over their number."""
        if self.breakdown is None:
            return None
        # The rows of a rank add up to the span, which is the same for all ranks.
        first = self.breakdown[0].rank if self.breakdown else 0
        span = sum(row.device_ps for row in self.breakdown if row.rank == first)
        return span / (self.steps * PS_PER_US)


def breakdown(
    ctx: RuntimeContext, name: str, through: Sequence[str] = ()
) -> list[RangeBreakdown] | None:
    """Returns where the time went in ranges of a name; None if no time is simulated.

    Args:
        ctx: Of the run.
        name: Of the ranges.
        through: How the names of ranges begin that are looked through.
    """
    engine = ctx.engine
    if not engine.timed:
        return None
    return range_breakdown(engine.op_log, engine.dispatch_ps, [name], through)


def header_lines(
    ctx: RuntimeContext, title: str, dials: Sequence[Mapping[str, object]]
) -> list[str]:
    """Returns what comes before the tables: the title and lines of settings."""
    times = "times are simulated, not measured" if ctx.engine.timed else f"times: {_NO_TIME}"
    lines = [", ".join(f"{name} {value}" for name, value in line.items()) for line in dials]
    return [f"# {title}", *(f"# {line}" for line in lines), f"# {times}"]


def section_lines(section: Section, unit: str) -> list[str]:
    """Returns the tables of a section.

    Args:
        section: What was measured.
        unit: Of the loss, such as `nats/token`.
    """
    step = _NO_TIME if section.step_us is None else f"{section.step_us:.2f} us a step"
    return [
        "#",
        f"# {section.name}: {step}",
        "#",
        *_losses(section, unit),
        "#",
        *_breakdown(section),
        *_bubble(section),
        "#",
        "# memory of a rank; activations: the most that the forward pass adds; peak: of everything",
        *_memory(section),
    ]


def dials(ctx: RuntimeContext, **more: object) -> dict[str, object]:
    """Returns settings of the run by name."""
    data = "on" if ctx.engine.enable_data else "off"
    return {"data": data, "fidelity": ctx.engine.fidelity, **more}


def document(
    bench: str, ctx: RuntimeContext, flags: Mapping[str, object], sections: Sequence[Section]
) -> dict[str, Any]:
    """Returns all results as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "clock": "simulated" if ctx.engine.timed else None,
        "bench": bench,
        "machine": ctx.engine.topology.name,
        "flags": dict(flags),
        "dials": {**dials(ctx), "seed": ctx.spec.seed},
        "sections": [_section_json(section) for section in sections],
    }


def _section_json(section: Section) -> dict[str, Any]:
    """Returns a section as plain values; keys say their units."""
    return {
        "name": section.name,
        "steps": section.steps,
        "warmup": section.warmup,
        "step_us": section.step_us,
        "losses": list(section.ranks[0].losses),
        **({} if section.bubble is None else {"bubble": asdict(section.bubble)}),
        "breakdown": [{**asdict(row), "name": _named(row)} for row in section.breakdown or ()],
        "memory_bytes": [{"rank": n, **asdict(r.memory)} for n, r in enumerate(section.ranks)],
    }


def _losses(section: Section, unit: str) -> list[str]:
    losses = section.ranks[0].losses
    if not losses:
        return ["# loss: N/A (data off)"]
    last = len(losses) - 1
    shown = sorted({round(last * at / (_MOST_LOSSES - 1)) for at in range(_MOST_LOSSES)})
    rows = [(str(at + 1), f"{losses[at]:.6f}") for at in shown]
    return table([("step", ""), ("loss", f"({unit})")], rows)


def _breakdown(section: Section) -> list[str]:
    title = "# where the time of a step goes"
    if section.breakdown is None:
        return [f"{title}: {_NO_TIME}"]
    means = mean_of_ranks(section.breakdown)

    def cells(name: str, rows: Sequence[RangeBreakdown]) -> tuple[str, ...]:
        fields = ("compute_ps", "exposed_ps", "copy_ps", "idle_ps", "device_ps", "host_ps")
        sums = (sum(getattr(row, field) for row in rows) for field in fields)
        return name, *(f"{total / (section.steps * PS_PER_US):.2f}" for total in sums)

    columns = ("compute", "exposed", "copy", "idle", "total", "host")
    rows = [cells(_named(row), [row]) for row in means]
    return [
        f"{title}, mean of {len(section.ranks)} ranks and {section.steps} steps",
        *table(
            [("layer", ""), *((name, "(us)") for name in columns)], [*rows, cells("all", means)]
        ),
        "# exposed: communication while no kernel runs; idle: nothing to do until the next command",
        "# begins; host: issues commands, beside the device",
    ]


def _bubble(section: Section) -> list[str]:
    if section.bubble is None:
        return []
    found = section.bubble
    return [
        f"# stages wait {found.measured:.1%} of a step; ideal bubble of the schedule: "
        f"{found.ideal:.1%}"
    ]


def _named(row: RangeBreakdown) -> str:
    return "(other)" if row.name == OUTSIDE else row.name


def _memory(section: Section) -> list[str]:
    alike: dict[Any, list[int]] = {}
    for rank, measured in enumerate(section.ranks):
        alike.setdefault(measured.memory, []).append(rank)
    columns = ("parameters", "gradients", "optimizer", "activations", "peak")
    rows = [
        (_folded(ranks), *(f"{getattr(memory, column) / _MIB:.3f}" for column in columns))
        for memory, ranks in alike.items()
    ]
    return table([("ranks", ""), *((name, "(MiB)") for name in columns)], rows)


def _folded(ranks: Sequence[int]) -> str:
    """Returns `0-3,6` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns names and units of columns behind a `#`, then the rows."""
    widths = [
        max(len(cell) for cell in (*column, *(row[at] for row in rows)))
        for at, column in enumerate(columns)
    ]

    def line(mark: str, cells: Sequence[str]) -> str:
        texts = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{mark} {'  '.join(texts)}".rstrip()

    names, units = zip(*columns, strict=True)
    return [line("#", names), line("#", units), *(line(" ", row) for row in rows)]
