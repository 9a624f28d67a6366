"""A verdict of a run that has kept no records: how long its devices were idle at least."""

from collections.abc import Mapping
from typing import Final

from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.sim_engine.op_log import Category, Total

_MUCH: Final = 0.2
"""Share of idle time above which a run says it."""


def idle_line(totals: Mapping[tuple[int, Category], Total], span_ps: int) -> str:
    """Returns how long devices were idle at least, and what says why; empty if it is not much.

    Sums count commands twice that ran side by side, so the devices were idle for longer.

    Args:
        totals: Sums of records by rank and category.
        span_ps: Simulated time of the run, in picoseconds.
    """
    busy: dict[int, int] = {}
    for (rank, category), total in totals.items():
        if category in (*COMPUTE, *COMMUNICATION, "copy") and rank >= 0:
            busy[rank] = busy.get(rank, 0) + total.busy_ps
    if not busy or not span_ps:
        return ""
    idle = 1 - sum(min(each, span_ps) for each in busy.values()) / len(busy) / span_ps
    if idle < _MUCH:
        return ""
    return f"devices are idle for at least {idle:.0%} of the time; --explain-time says why"
