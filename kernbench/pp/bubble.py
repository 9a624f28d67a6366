"""How much of a step the stages of a pipeline have nothing to do."""

from collections.abc import Iterable
from typing import Final, Protocol

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.pp.plans import Size, check_size

MICROBATCH: Final = "microbatch "
"""How the names of ranges begin in which a schedule computes; a microbatch has one for all passes.

What a backward pass issues belongs to the ranges of its forward pass (ADR 0016), so ranges of their
own would not tell the two apart.
"""


class RangeTime(Protocol):
    """What is read of a row of `kernbench.report.range_breakdown`; times in picoseconds."""

    rank: int
    name: str
    compute_ps: int
    exposed_ps: int
    copy_ps: int
    idle_ps: int


def ideal_bubble_fraction(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Returns the share of a step in which a stage waits, if all stages take the same time.

    `(stages - 1) / (chunks * microbatches + stages - 1)`, with messages that take no time: GPipe
    and 1F1B with one chunk, interleaved 1F1B with several. The paper named in
    `plans.one_forward_one_backward` gives it as a share of the time without waiting,
    `(stages - 1) / (chunks * microbatches)`.

    Args:
        stages: Ranks of the pipeline.
        microbatches: Of a step.
        chunks: Pieces of the model that each stage holds.

    Raises:
        OptionError: If there is no such pipeline, see `plans.check_size`.
    """
    check_size(Size(stages, chunks, microbatches))
    return (stages - 1) / (chunks * microbatches + stages - 1)


def measured_bubble_fraction(rows: Iterable[RangeTime]) -> float:
    """Returns the share of a run in which ranks were at no microbatch of a schedule.

    At a microbatch, time counts in which a kernel, a copy or a collective was under way; waiting
    for the host does not. The run should be one step: what else is in it counts as waiting. Its
    span is from the first command of any rank to the end of the last.

    Args:
        rows: `kernbench.report.range_breakdown` of the run, of any ranks.

    Raises:
        OptionError: If no row is of a microbatch.
    """
    busy = span = 0
    for row in rows:
        span += row.compute_ps + row.exposed_ps + row.copy_ps + row.idle_ps
        if row.name.startswith(MICROBATCH):
            busy += row.compute_ps + row.exposed_ps + row.copy_ps
    if busy == 0:
        raise OptionError(
            "measured_bubble_fraction: no row is of a microbatch",
            [
                site_fact(call_site()),
                "expected the ranges `microbatch 0`, `microbatch 1` and so on",
            ],
            hint="pass range_breakdown of a run that called a function of kernbench.pp.schedules",
        )
    return 1 - busy / span
