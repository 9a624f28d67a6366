"""The numbers of attention, tile by tile, in memory that grows with the rows and not their product.

Forward is FlashAttention's (Dao et al., 2022, algorithm 1): a row keeps its largest score so far
and the sum of its powers, and both are put right when a larger score comes. Backward computes the
weights once more, from the logarithm of that sum (algorithm 4).
"""

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.attention.bands import Bands, Tile, hidden, tiles

Array = np.ndarray[Any, Any]

_SCORES: Final = 1 << 19
"""How many scores a tile has at most, of all heads together: so few stay in a processor's cache."""

_EDGES: Final = 64, 512
"""The fewest and the most rows of a tile, whatever the number of heads."""


class Dropout(NamedTuple):
    """Weights that are dropped, and drawn again in backward.

    Attributes:
        p: Probability of each.
        seed: Of the numbers that decide.
    """

    p: float
    seed: int


class Operands(NamedTuple):
    """What attention is computed of; arrays of one type, float32 or float64.

    Attributes:
        query: `[b, heads, queries, width]`.
        key: `[b, groups, keys, width]`; heads are a multiple of groups.
        value: `[b, groups, keys, value width]`.
        patterns: What is seen: bands of all batch elements, or of each. Rows in no band are never
            read.
        scale: Factor of the products of queries and keys.
        bias: Added to the scores: `[b, heads, queries, keys]`, each or 1; bools: what is seen.
        sink: `[heads]`: a score that each row has besides, with a value of 0.
        dropout: Which weights are dropped.
    """

    query: Array
    key: Array
    value: Array
    patterns: Sequence[Bands]
    scale: float
    bias: Array | None = None
    sink: Array | None = None
    dropout: Dropout | None = None


class Found(NamedTuple):
    """What forward finds.

    Attributes:
        out: `[b, heads, queries, value width]`; 0 in rows that see no key.
        lse: Logarithms of the sums of the powers of a row's scores, `[b, heads, queries]`; -inf in
            rows without any.
        peak: The largest score of each row but the sink, in the shape of `lse`; -inf without one.
    """

    out: Array
    lse: Array
    peak: Array


class Gradients(NamedTuple):
    """What backward finds, each in the shape of its operand; None for an operand that is none."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    sink: Array | None


def forward(operands: Operands) -> Found:
    """Returns `softmax(query @ key.T * scale + bias) @ value`, and what backward needs of it."""
    query, value = operands.query, operands.value
    out = np.zeros((*query.shape[:3], value.shape[3]), query.dtype)
    peak = np.full(query.shape[:3], -np.inf, query.dtype)
    total = np.zeros_like(peak)
    for step in _steps(operands):
        weights, rows = step.scores(), step.rows
        before = peak[rows]
        now = np.maximum(before, weights.max(axis=3))
        base = _finite(now)
        weights -= base[..., None]
        np.exp(weights, out=weights)
        shrunk = np.exp(before - base)
        total[rows] *= shrunk
        total[rows] += weights.sum(axis=3)
        out[rows] *= shrunk[..., None]
        out[rows] += step.times_values(step.dropped(weights))
        peak[rows] = now
    out /= np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        lse = peak + np.log(total)
    if operands.sink is not None:
        alone, lse = lse, np.logaddexp(lse, operands.sink[None, :, None])
        out *= np.exp(alone - _finite(lse))[..., None]
    return Found(out, lse, peak)


def backward(
    operands: Operands, grad: Array, out: Array, lse: Array, *, wants_bias: bool = True
) -> Gradients:
    """Returns the gradients of the operands.

    `out` and `lse` may be of more keys than the operands have: then these are the gradients that
    pass through these keys.

    Args:
        operands: As in forward.
        grad: Gradient of `out`.
        out: What attention found.
        lse: What attention found.
        wants_bias: Whether the gradient of a bias of numbers is wanted.
    """
    bias, sink = operands.bias, operands.sink
    dq, dk, dv = (np.zeros_like(each, order="C") for each in operands[:3])
    dbias = None
    if wants_bias and bias is not None and bias.dtype != np.bool_:
        dbias = np.zeros_like(bias)
    along = _along(operands, grad, out)
    for step in _steps(operands):
        weights, rows = step.scores(), step.rows
        weights -= _finite(lse[rows])[..., None]
        np.exp(weights, out=weights)
        given = step.grouped(grad[rows])
        dv[step.keys] += step.transposed(step.dropped(weights)) @ given
        slopes = given @ operands.value[step.keys].swapaxes(2, 3)
        slopes = step.dropped(slopes.reshape(weights.shape))
        slopes -= along[rows][..., None]
        slopes *= weights
        if dbias is not None:
            step.add_to(dbias, slopes)
        slopes *= operands.query.dtype.type(operands.scale)
        dq[rows] += step.ungrouped(step.grouped(slopes) @ operands.key[step.keys])
        dk[step.keys] += step.transposed(slopes) @ step.grouped(operands.query[rows])
    dsink = None
    if sink is not None:
        dsink = -(np.exp(sink[None, :, None] - _finite(lse)) * along).sum((0, 2))
    return Gradients(dq, dk, dv, dbias, dsink)


def _finite(scores: Array) -> Array:
    """Returns scores with 0 for -inf, from which -inf can be taken."""
    return np.where(np.isneginf(scores), 0, scores)


def _along(operands: Operands, grad: Array, out: Array) -> Array:
    """Returns by row the sum of `grad * out`; 0 for rows in no band, whatever they hold."""
    sums = np.zeros(out.shape[:3], out.dtype)
    for at, pattern in batches(operands.patterns):
        for band in pattern:
            rows = at, slice(None), slice(band.query, band.query + band.queries)
            np.einsum("bhsd,bhsd->bhs", grad[rows], out[rows], out=sums[rows])
    return sums


def batches(patterns: Sequence[Bands]) -> Iterator[tuple[slice, Bands]]:
    """Yields which batch elements see what.

    Args:
        patterns: As in `Operands`.
    """
    if len(patterns) == 1:
        yield slice(None), patterns[0]
        return
    for number, pattern in enumerate(patterns):
        yield slice(number, number + 1), pattern


def _steps(operands: Operands) -> Iterator["_Step"]:
    b, heads = operands.query.shape[:2]
    if not b * heads:
        return
    least, most = _EDGES
    number = 0
    for at, pattern in batches(operands.patterns):
        both = heads * (b if at == slice(None) else 1)
        edge = min(max(isqrt(_SCORES // both), least), most)
        for band in pattern:
            for tile in tiles(band, edge, edge):
                yield _Step(operands, at, tile, number)
                number += 1


class _Step:
    """A tile of all heads, of some batch elements. Heads that share keys are multiplied as one."""

    def __init__(self, operands: Operands, at: slice, tile: Tile, number: int) -> None:
        self._operands, self._tile, self._number = operands, tile, number
        self.rows = at, slice(None), tile.queries
        self.keys = at, slice(None), tile.keys

    def scores(self) -> Array:
        """Returns a new array `[b, heads, n, m]`: -inf for keys that a query does not see."""
        given, tile = self._operands, self._tile
        query = self.grouped(given.query[self.rows]) * given.query.dtype.type(given.scale)
        scores = self.ungrouped(query @ given.key[self.keys].swapaxes(2, 3))
        if given.bias is not None:
            bias = given.bias[self._places(given.bias)]
            if bias.dtype == np.bool_:
                np.copyto(scores, -np.inf, where=~bias)
            else:
                scores += bias
        if not tile.whole:
            n, m = scores.shape[2:]
            np.copyto(scores, -np.inf, where=hidden(n, m, tile.first, tile.stop))
        return scores

    def dropped(self, weights: Array) -> Array:
        """Returns weights, or their gradients, of which some are dropped."""
        dropout = self._operands.dropout
        if dropout is None:
            return weights
        if dropout.p == 1:
            return np.zeros_like(weights)
        draw = np.random.Generator(np.random.Philox(key=dropout.seed, counter=self._number << 64))
        kept = draw.random(weights.shape, np.float32) >= dropout.p
        result: Array = weights * kept * weights.dtype.type(1 / (1 - dropout.p))
        return result

    def times_values(self, weights: Array) -> Array:
        """Returns the weighted sums of values, `[b, heads, n, value width]`."""
        return self.ungrouped(self.grouped(weights) @ self._operands.value[self.keys])

    def grouped(self, each: Array) -> Array:
        """Returns `[b, heads, n, x]` as `[b, groups, heads of a group * n, x]`."""
        b, heads, n, x = each.shape
        groups = self._operands.key.shape[1]
        return each.reshape(b, groups, heads // groups * n, x)

    def ungrouped(self, each: Array) -> Array:
        """Undoes `grouped`."""
        heads, tile = self._operands.query.shape[1], self._tile.queries
        return each.reshape(each.shape[0], heads, tile.stop - tile.start, each.shape[3])

    def transposed(self, each: Array) -> Array:
        """Returns `[b, heads, n, m]` as `[b, groups, m, heads of a group * n]`."""
        return self.grouped(each).swapaxes(2, 3)

    def add_to(self, total: Array, slopes: Array) -> None:
        """Adds the gradients of scores to those of a bias that was broadcast."""
        places = self._places(total)
        axes = tuple(axis for axis in range(4) if total.shape[axis] == 1 != slopes.shape[axis])
        total[places] += slopes.sum(axis=axes, keepdims=True)

    def _places(self, bias: Array) -> tuple[slice, ...]:
        here = *self.rows, self._tile.keys
        return tuple(
            slice(None) if size == 1 else place
            for size, place in zip(bias.shape, here, strict=True)
        )
