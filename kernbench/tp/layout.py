"""Which ranks make up which groups: names of `parallel.layout`."""

from kernbench.parallel.layout import (
    ChooseRanks,
    Grid,
    LayoutError,
    ParallelStateError,
    Ranks,
    lay_out,
    plan_groups,
    plan_levels,
    whole_number,
)

__all__ = [
    "ChooseRanks",
    "Grid",
    "LayoutError",
    "ParallelStateError",
    "Ranks",
    "lay_out",
    "plan_groups",
    "plan_levels",
    "whole_number",
]
