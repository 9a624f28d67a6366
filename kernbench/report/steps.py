"""Steps of a training: from the end of one call of the optimizer to the end of the next."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from kernbench.sim_engine.op_log import Record

STEP: Final = "Optimizer.step"
"""How PyTorch calls the range around a step of an optimizer; a name and a class follow."""


def step_times(records: Iterable[Record]) -> list[int]:
    """Returns the picoseconds that each step took on its host, after the first one, in order.

    Counted are the steps of the optimizer that the lowest rank calls first.
    """
    found = sorted(
        (record.rank, record.end, record.name)
        for record in records
        if record.category == "range" and record.name.startswith(STEP)
    )
    if not found:
        return []
    rank, _, name = found[0]
    ends = [end for of, end, called in found if (of, called) == (rank, name)]
    return [after - before for before, after in pairwise(ends)]
