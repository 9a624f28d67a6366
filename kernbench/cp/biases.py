"""A bias of the scores, of which every step of a ring needs some rows and columns.

A dimension is 1, or a rank's rows of queries, or all rows in their own order; keys are all keys.
What all ranks have alike gets its whole gradient on each of them.
"""

from typing import Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp.problem import Members
from kernbench.cp.sequences import Sight
from kernbench.parallel.zigzag import take_zigzag, zigzag_ranges


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
        self._given, self._members = given, members
        self._cut: Final = given.shape[2] not in {1, rows}
        self._mine = take_zigzag(given, 2, members.size, members.rank) if self._cut else given
        self.grad: torch.Tensor | None = None

    def part(self, owner: int, sight: Sight) -> torch.Tensor:
        """Returns what is added to the scores of another rank's keys, of the rows of a sight."""
        part = take_zigzag(self._mine, 3, self._members.size, owner)
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
        here, stop = 0, sight.key + sight.keys
        for chunk in zigzag_ranges(grad.shape[3], self._members.size, owner):
            first, last = max(sight.key, here), min(stop, here + len(chunk))
            if first < last:
                into = grad.narrow(3, chunk.start + first - here, last - first)
                into.copy_(slopes.narrow(3, first - sight.key, last - first))
            here += len(chunk)

    def finish(self) -> torch.Tensor:
        """Returns the gradient of what was given."""
        assert self.grad is not None
        grad, members = self.grad, self._members
        if self._cut:
            whole = torch.zeros_like(self._given)
            mine = zigzag_ranges(whole.shape[2], members.size, members.rank)
            for into, part in zip(mine, grad.chunk(2, 2), strict=True):
                whole.narrow(2, into.start, len(into)).copy_(part)
            grad = whole
        if self._cut or grad.shape[2] == 1:
            dist.all_reduce(grad, group=members.group)
        return grad
