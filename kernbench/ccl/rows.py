"""Values of a small recipe, computed all of one depth at a time."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kernbench.ccl.operations import Ints
from kernbench.ccl.values import Array, Operands, Recipe, Run
from kernbench.memory.arithmetic import Function

SMALL: Final = 1 << 22
"""Largest size of rows in bytes; larger recipes are computed by `values.evaluate`."""


class Rows:
    """The values of a small recipe as rows of one array; numpy computes those of a depth at once.

    Each use of an input has a row, in the order of use. Sums of one depth lie in the order of
    their operands, where the operands are sums as well. So most operands are runs of rows, which
    numpy uses in place.

    Args:
        nominal: Elements of a row, which is a full chunk.
        scratch: At least `needed` bytes; their contents have no meaning between two calls.
    """

    def __init__(
        self, how: Recipe, nominal: int, dtype: np.dtype[Any], scratch: np.ndarray[Any, Any]
    ) -> None:
        inputs, sums = how.inputs, len(how.left)
        depths, begin, used = how.depths, inputs, inputs + sums
        self._row: Final = np.arange(used)
        uses = [np.empty(0, np.int64)]
        steps: list[tuple[Ints, Ints, slice]] = []
        for depth in range(1, depths.max(initial=0) + 1):
            numbers = np.flatnonzero(depths == depth)
            for side in (how.right, how.left):
                operands = side[numbers - inputs]
                if (operands >= inputs).all():
                    numbers = numbers[np.argsort(self._row[operands], kind="stable")]
                    break
            left, right = how.left[numbers - inputs], how.right[numbers - inputs]
            rows = []
            for operands in (left, right):
                given = operands < inputs
                rows.append(self._row[operands])
                rows[-1][given] = np.arange(used, used + given.sum())
                uses.append(operands[given])
                used += len(uses[-1])
            end = begin + len(numbers)
            self._row[numbers] = np.arange(begin, end)
            steps.append((rows[0], rows[1], slice(begin, end)))
            begin = end
        self._how: Final = how
        self._uses: Final = np.concatenate(uses)
        size = used * nominal * dtype.itemsize
        self._all: Final[Array] = scratch[:size].view(dtype).reshape(used, nominal)
        self._inputs: Final[Array] = self._all[:inputs]
        self._used: Final[Array] = self._all[inputs + sums :]
        self._steps: Final = [
            (*self._operand(left), *self._operand(right), self._all[out])
            for left, right, out in steps
        ]

    @staticmethod
    def needed(how: Recipe, nominal: int, dtype: np.dtype[Any]) -> int:
        """Returns the most bytes that the rows of a recipe can take.

        Args:
            nominal: Elements of a row, which is a full chunk.
        """
        return (how.inputs + 3 * len(how.left)) * nominal * dtype.itemsize

    def _operand(self, rows: Ints) -> tuple[Array, Ints | None]:
        """Returns an array and the indices of its meant rows; None for the whole array."""
        if (np.diff(rows) == 1).all():
            return self._all[rows[0] : rows[-1] + 1], None
        return self._all, rows

    def evaluate(self, operands: Operands, combine: Function, runs: Sequence[Run]) -> None:
        """Computes the final values of chunks, as `values.evaluate` does.

        Args:
            operands: The inputs.
            combine: Combines two arrays of values; rounds to the element type.
            runs: Chunks to compute, and arrays for the results, which share no memory with the
                inputs.
        """
        operands.spread(self._inputs, self._how.chunks)
        self._inputs.take(self._uses, 0, self._used, "clip")
        for left, left_rows, right, right_rows, out in self._steps:
            combine(
                left if left_rows is None else left.take(left_rows, 0),
                right if right_rows is None else right.take(right_rows, 0),
                out=out,
            )
        for rank, chunks, output in runs:
            numbers = self._how.final[rank, chunks.start : chunks.stop]
            output[...] = self._all.take(self._row[numbers], 0).reshape(-1)[: len(output)]
