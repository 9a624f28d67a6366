"""What tokens choose, as one value, and who says it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.errors import KernbenchError, UnsupportedError

Array = np.ndarray[Any, Any]


class RoutingError(KernbenchError, ValueError):
    """A routing does not fit the program, or a file of one is not well formed."""


class Asked(NamedTuple):
    """For what choices are asked.

    Attributes:
        step: Number of the layer's call on its rank, from 0.
        layer: Number of the layer, from 0.
        rank: Rank among those that share the experts.
        tokens: Tokens of the rank.
        experts: Experts of the layer.
        topk: Choices of a token.
    """

    step: int
    layer: int
    rank: int
    tokens: int
    experts: int
    topk: int


@dataclass(frozen=True, eq=False)
class Choices:
    """What the tokens of a rank choose in one call of a layer.

    Attributes:
        experts: Expert of each choice, `[tokens, topk]`, int64; a row has no expert twice.
        gates: Weight of each choice, of the same shape; None for those that the program computes.
        total: Experts of the layer.
    """

    experts: Array
    gates: Array | None
    total: int

    @cached_property
    def counts(self) -> Array:
        """Rows that each expert gets, `[total]`."""
        return np.bincount(self.experts.reshape(-1), minlength=self.total)


class Routing(ABC):
    """Says what tokens choose, without their values.

    Attributes:
        name: As the user gave it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<routing {self.name}>"

    def tokens_of(self, rank: int) -> int | None:
        """Returns the tokens of a rank that shares the experts; None for the program's own."""
        del rank
        return None

    @abstractmethod
    def choices(self, asked: Asked) -> Choices:
        """Returns what the tokens of a rank choose.

        Raises:
            RoutingError: If it says nothing of this call, or does not fit the program.
        """

    def without_gates(self, asked: Asked) -> Array:
        """Returns the experts of choices whose weights the program computes itself.

        Raises:
            RoutingError: As `choices`.
            UnsupportedError: If the routing has weights, too.
        """
        found = self.choices(asked)
        if found.gates is not None:
            raise UnsupportedError(
                f"gates of routing {self.name} for a router that computes its own weights",
                hint="leave `gates` out of the file",
            )
        return found.experts


@cached("routing.counts")
def counts_of(routing: Routing, asked: Asked, ranks: int) -> Array:
    """Returns rows from each rank for each expert in one call of a layer, `[ranks, experts]`.

    All ranks of a layer ask for it, so that it is kept.

    Args:
        routing: Who says it.
        asked: Of any rank; tokens are those of ranks of which the routing does not say how many.
        ranks: Ranks that share the experts.

    Raises:
        RoutingError: As `Routing.choices`.
    """
    found = np.empty((ranks, asked.experts), np.int64)
    for rank in range(ranks):
        tokens = routing.tokens_of(rank)
        of_rank = asked._replace(rank=rank, tokens=asked.tokens if tokens is None else tokens)
        found[rank] = routing.choices(of_rank).counts
    found.flags.writeable = False
    return found


def spread(counts: Array, tokens: int, topk: int) -> Array:
    """Returns choices of tokens that give each expert a number of rows, `[tokens, topk]`.

    Experts in order, each as often as it is chosen, fill the choices column by column: no token has
    an expert twice, if none is chosen by more than all tokens.
    """
    column = np.repeat(np.arange(len(counts)), counts)
    return np.sort(column.reshape(topk, tokens).T, axis=1)
