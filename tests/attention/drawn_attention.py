"""Attention drawn at random, and what it is by definition: a matrix of scores in float64."""

from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st

from kernbench.attention.bands import Mask
from kernbench.attention.numbers import Operands
from kernbench.attention.rows import Rows, share

Array = np.ndarray[Any, Any]

PADDING: Final = -1


class Tokens(NamedTuple):
    """By row: which sequence, and which place in it; `PADDING` for rows that are no token."""

    sequence: Array
    position: Array


class Case(NamedTuple):
    """Rows of queries and of keys, and what a query sees of its sequence."""

    queries: Rows
    keys: Rows
    rows: int
    mask: Mask

    def visible(self) -> Array:
        """Returns for each row of queries and of keys whether one sees the other."""
        q, k = (tokens(each, self.rows) for each in (self.queries, self.keys))
        seen: Array = (q.sequence[:, None] == k.sequence[None]) & (q.sequence[:, None] != PADDING)
        apart = k.position[None] - q.position[:, None]
        if self.mask.left is not None:
            seen &= apart >= -self.mask.left
        if self.mask.right is not None:
            seen &= apart <= self.mask.right
        return seen


def tokens(rows: Rows, count: int) -> Tokens:
    """Returns the tokens of rows one by one."""
    sequence, position = (np.full(count, PADDING) for _ in range(2))
    for each in rows:
        for step in range(each.length):
            assert sequence[each.row + step] == PADDING, "a row is one token"
            sequence[each.row + step] = each.sequence
            position[each.row + step] = each.position + step
    return Tokens(sequence, position)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draws packed and padded sequences, and two ranks that share them."""
    parts = draw(st.integers(1, 3))
    rooms = [2 * parts * each for each in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))]
    used = [draw(st.integers(0, room)) for room in rooms]
    cu, cu_padded = (np.cumsum([0, *each]).tolist() for each in (used, rooms))
    queries, keys = (share(cu, cu_padded, parts, draw(st.integers(0, parts - 1))) for _ in range(2))
    window = st.none() | st.integers(0, 8)
    return Case(queries, keys, cu_padded[-1] // parts, Mask(draw(window), draw(window)))


def weights(operands: Operands, visible: Array) -> Array:
    """Returns the softmax of all scores `[b, heads, queries, keys]`; 0 where nothing is seen."""
    q, k, scale = operands.query, operands.key, operands.scale
    k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    if operands.bias is not None:
        bias = operands.bias
        scores = np.where(bias, scores, -np.inf) if bias.dtype == np.bool_ else scores + bias
    scores = np.where(visible, scores, -np.inf)
    if operands.sink is not None:
        more = np.broadcast_to(operands.sink[None, :, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, more], 3)
    peak = scores.max(3, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = powers.sum(3, keepdims=True)
    found: Array = (powers / np.where(total == 0, 1, total))[..., : k.shape[2]]
    return found


def dense(operands: Operands, visible: Array, dropped: Array | float = 1.0) -> Array:
    """Returns attention by its definition.

    Args:
        operands: Of float64, without padding that must not be read.
        visible: Which query sees which key, `[queries, keys]` or with leading dimensions.
        dropped: Factors of the weights.
    """
    v = operands.value
    v = np.repeat(v, operands.query.shape[1] // v.shape[1], 1)
    found: Array = np.einsum("bhqk,bhkd->bhqd", weights(operands, visible) * dropped, v)
    return found
