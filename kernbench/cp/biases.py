"""A bias of the scores, of which every step of a ring needs some rows and columns.

A dimension is 1, or a rank's rows of queries, or all rows in their own order; keys are all keys.
What all ranks have alike gets its whole gradient on each of them.
"""

from typing import Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp.problem import Members
from kernbench.cp.sequences import Sight


class Bias:
    """A bias, for the queries of one rank of several.

    Args:
        given: `[1|b, 1|heads, 1|queries, keys]`, its queries those of the rank or of all ranks.
        rows: How many queries the rank has.
        members: Who shares queries and keys.

    Attributes:
        grad: Gradient of the rank's rows; None until `start`.
    """

    def __init__(self, given: torch.Tensor, rows: int, members: Members) -> None:
        self._given, self._rows, self._members = given, rows, members
        self._cut: Final = given.shape[2] not in {1, rows}
        self._mine = self._chunks(given, 2, members.rank) if self._cut else given
        self.grad: torch.Tensor | None = None

    def _chunks(self, x: torch.Tensor, dim: int, owner: int) -> torch.Tensor:
        """Returns a rank's two chunks of a dimension that all ranks share."""
        size = self._members.size
        chunk = x.shape[dim] // (2 * size)
        places = owner, 2 * size - 1 - owner
        return torch.cat([x.narrow(dim, place * chunk, chunk) for place in places], dim)

    def part(self, owner: int, sight: Sight) -> torch.Tensor:
        """Returns what is added to the scores of another rank's keys, of the rows of a sight."""
        part = self._chunks(self._mine, 3, owner)
        if part.shape[2] > 1:
            part = part.narrow(2, sight.query, sight.queries)
        return part.narrow(3, sight.key, sight.keys)

    def start(self) -> None:
        """Makes a gradient of zeros."""
        self.grad = torch.zeros_like(self._mine)

    def add(self, slopes: torch.Tensor, owner: int, sight: Sight) -> None:
        """Takes in the gradient of what `part` returned; each owner comes once.

        Args:
            slopes: The gradient.
            owner: Whose keys.
            sight: Of which rows.
        """
        assert self.grad is not None
        grad = self.grad
        if grad.shape[2] > 1:
            grad = grad.narrow(2, sight.query, sight.queries)
        chunk = grad.shape[3] // (2 * self._members.size)
        stop = sight.key + sight.keys
        for number, place in enumerate((owner, 2 * self._members.size - 1 - owner)):
            here = number * chunk
            first, last = max(sight.key, here), min(stop, here + chunk)
            if first < last:
                into = grad.narrow(3, place * chunk + first - here, last - first)
                into.copy_(slopes.narrow(3, first - sight.key, last - first))

    def finish(self) -> torch.Tensor:
        """Returns the gradient of what was given."""
        assert self.grad is not None
        grad, members = self.grad, self._members
        if self._cut:
            whole = torch.zeros_like(self._given)
            chunk = self._rows // 2
            for number, place in enumerate((members.rank, 2 * members.size - 1 - members.rank)):
                whole.narrow(2, place * chunk, chunk).copy_(grad.narrow(2, number * chunk, chunk))
            grad = whole
        if self._cut or grad.shape[2] == 1:
            dist.all_reduce(grad, group=members.group)
        return grad
