"""How uneven loads are."""

from typing import NamedTuple

import numpy as np

from kernbench.routing.choices import Array


class Load(NamedTuple):
    """What a rank got in one exchange of tokens with those that share its experts.

    Attributes:
        rank: Global rank.
        layer: Number of the layer; -1 if nothing says it.
        step: Number of the layer's call on its rank; -1 if nothing says it.
        direction: `forward` or `backward`; `exchange` if nothing says it.
        time: When its host issued the exchange, in simulated picoseconds.
        ranks: Global ranks of the group.
        rows: Rows that the rank got for its experts.
        by_expert: The same for each of its experts; empty if nothing says it.
        dropped: Choices of its tokens that a capacity cut off; None if the host does not know it.
        padded: Rows without a choice that it got, likewise.
        sent: Bytes that it sent to other ranks: rows for their experts, and rows back.
    """

    rank: int
    layer: int
    step: int
    direction: str
    time: int
    ranks: tuple[int, ...]
    rows: int
    by_expert: tuple[int, ...]
    dropped: int | None
    padded: int | None
    sent: int


def overload(loads: Array) -> float:
    """Returns the largest load over the mean, Megatron-LM's overload factor; 1 for no load."""
    total = int(np.sum(loads))
    return float(np.max(loads) * len(loads) / total) if total else 1.0


def coefficient_of_variation(loads: Array) -> float:
    """Returns the standard deviation of loads over their mean, of the population; 0 for no load."""
    mean = float(np.mean(loads)) if len(loads) else 0.0
    return float(np.std(loads)) / mean if mean else 0.0
