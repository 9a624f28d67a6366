"""Attention of a whole batch on one rank, in float64 and numpy alone: what the schemes must find.

Nothing here is shared with the code: masks are dense, made of (sequence, position, real) of every
row, and every matrix is formed.
"""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """What the rows of a tensor are, one entry each.

    Attributes:
        sequence: Which sequence a row belongs to.
        position: Where in it.
        real: Whether it is a token; other rows are padding.
    """

    sequence: Array
    position: Array
    real: Array


class Problem(NamedTuple):
    """What is computed; the tensors are `[rows, heads, width]`.

    Attributes:
        query: Heads are a multiple of those of key and value.
        key: Of another number of rows, perhaps.
        value: Of another width, perhaps.
        grad: Gradient of the output.
        queries: What the rows of the query are.
        keys: What the rows of key and value are.
        window: How many keys before and behind its own position a query sees; -1: all.
        scale: Factor of the scores.
        bias: `[1 or sequences, 1 or heads, positions or 1, positions]`.
        sink: `[heads]`: one more score of each row, with a value of 0.
    """

    query: Array
    key: Array
    value: Array
    grad: Array
    queries: Rows
    keys: Rows
    window: tuple[int, int]
    scale: float
    bias: Array | None = None
    sink: Array | None = None


class Answer(NamedTuple):
    """What attention is, and its gradients, in the shapes of what they are of."""

    out: Array
    dq: Array
    dk: Array
    dv: Array
    dbias: Array | None
    dsink: Array | None
    max_logit: Array


def zigzag(length: int, cp: int, rank: int) -> list[int]:
    """Returns the positions that a rank has of a sequence: chunk `rank`, then its mirror image."""
    chunks = np.arange(length).reshape(2 * cp, length // (2 * cp))
    return [int(p) for p in (*chunks[rank], *chunks[2 * cp - 1 - rank])]


def rows_of(used: list[int], allocated: list[int]) -> Rows:
    """Returns the rows of sequences that lie one behind the other, padding behind each."""
    sequence = np.repeat(np.arange(len(used)), np.array(allocated, int))
    position = np.concatenate([np.arange(n) for n in (0, *allocated)])
    return Rows(sequence, position, position < np.array(used, int)[sequence])


def solve(given: Problem) -> Answer:
    """Returns the output and all gradients; rows of padding stay 0, and are not read."""
    q, k, v, grad = (np.asarray(x, np.float64) for x in given[:4])
    heads, groups = q.shape[1], k.shape[1]
    out = np.zeros((len(q), heads, v.shape[2]))
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    dbias = None if given.bias is None else np.zeros(given.bias.shape)
    dsink = None if given.sink is None else np.zeros(heads)
    max_logit = np.full(heads, -np.inf)
    left, right = given.window
    for sequence in np.unique(given.queries.sequence):
        mine = np.flatnonzero((given.queries.sequence == sequence) & given.queries.real)
        seen = np.flatnonzero((given.keys.sequence == sequence) & given.keys.real)
        if not len(mine) or not len(seen):
            continue
        here, there = given.queries.position[mine], given.keys.position[seen]
        distance = there[None, :] - here[:, None]
        hidden = np.zeros(distance.shape, bool)
        if left >= 0:
            hidden |= distance < -left
        if right >= 0:
            hidden |= distance > right
        # [heads, rows, width]; a group's key and value serve its heads.
        Q, G = q[mine].swapaxes(0, 1), grad[mine].swapaxes(0, 1)
        K, V = (np.repeat(x[seen].swapaxes(0, 1), heads // groups, 0) for x in (k, v))
        scores = Q @ K.swapaxes(1, 2) * given.scale
        at: tuple[Array, Array] = here, there
        if given.bias is not None:
            b = int(sequence) if given.bias.shape[0] > 1 else 0
            at = (here if given.bias.shape[2] > 1 else np.zeros(1, int))[:, None], there
            scores = scores + given.bias[b][:, at[0], at[1]]
        scores[:, hidden] = -np.inf
        top = scores.max(axis=(1, 2))
        max_logit = np.maximum(max_logit, top)
        # A row's largest score, and 0 where it has none: exp(-inf - 0) is 0.
        peak = scores.max(axis=2, keepdims=True)
        if given.sink is not None:
            peak = np.maximum(peak, given.sink[:, None, None])
        peak = np.where(np.isfinite(peak), peak, 0)
        power = np.exp(scores - peak)
        total = power.sum(axis=2, keepdims=True)
        if given.sink is not None:
            alone = np.exp(given.sink[:, None, None] - peak)
            total = total + alone
        weight = power / np.where(total == 0, 1, total)
        found = weight @ V
        out[mine] = found.swapaxes(0, 1)
        delta = (G * found).sum(axis=2, keepdims=True)
        slope = weight * (G @ V.swapaxes(1, 2) - delta)
        dq[mine] = (slope @ K * given.scale).swapaxes(0, 1)
        for target, each in (
            (dk, slope.swapaxes(1, 2) @ Q * given.scale),
            (dv, weight.swapaxes(1, 2) @ G),
        ):
            of_groups = each.reshape(groups, heads // groups, *each.shape[1:]).sum(axis=1)
            target[seen] = of_groups.swapaxes(0, 1)
        if dsink is not None:
            dsink -= (alone / total * delta).sum(axis=(1, 2))
        if dbias is not None:
            b = int(sequence) if dbias.shape[0] > 1 else 0
            of_bias = slope.sum(axis=0, keepdims=True) if dbias.shape[1] == 1 else slope
            if dbias.shape[2] == 1:
                of_bias = of_bias.sum(axis=1, keepdims=True)
            dbias[b][:, at[0], at[1]] += of_bias
    return Answer(out, dq, dk, dv, dbias, dsink, max_logit)
