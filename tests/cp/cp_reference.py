"""Attention of a whole batch on one rank, in float64 and numpy alone: what the schemes must find.

Nothing here is shared with the code: masks are dense, made of (sequence, position, real) of every
row, and every matrix is formed.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


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
    q, k, v, _ = given[:4]
    heads, groups = q.shape[1], k.shape[1]
    answer = Answer(
        np.zeros((len(q), heads, v.shape[2])),
        np.zeros(q.shape),
        np.zeros(k.shape),
        np.zeros(v.shape),
        None if given.bias is None else np.zeros(given.bias.shape),
        None if given.sink is None else np.zeros(heads),
        np.full(heads, -np.inf),
    )
    for sequence in np.unique(given.queries.sequence):
        mine = np.flatnonzero((given.queries.sequence == sequence) & given.queries.real)
        seen = np.flatnonzero((given.keys.sequence == sequence) & given.keys.real)
        if len(mine) and len(seen):
            for head in range(heads):
                group = head // (heads // groups)
                _head(given, answer, int(sequence), mine, seen, head, group)
    return answer


def _head(
    given: Problem,
    answer: Answer,
    sequence: int,
    mine: Array,
    seen: Array,
    head: int,
    group: int,
) -> None:
    """Adds one head of one sequence: queries and keys are all its tokens."""
    q, grad = (np.asarray(x[mine, head], np.float64) for x in (given.query, given.grad))
    k, v = (np.asarray(x[seen, group], np.float64) for x in (given.key, given.value))
    here, there = given.queries.position[mine][:, None], given.keys.position[seen][None, :]
    left, right = given.window
    hidden = np.zeros((len(mine), len(seen)), bool)
    if left >= 0:
        hidden |= there - here < -left
    if right >= 0:
        hidden |= there - here > right
    scores = q @ k.T * given.scale
    at: tuple[Any, ...] = ()
    if given.bias is not None:
        full = given.bias.shape
        at = (
            sequence if full[0] > 1 else 0,
            head if full[1] > 1 else 0,
            here if full[2] > 1 else np.zeros((1, 1), int),
            there,
        )
        scores = scores + given.bias[at]
    scores[hidden] = -np.inf
    answer.max_logit[head] = max(answer.max_logit[head], scores.max())
    sink = -np.inf if given.sink is None else float(given.sink[head])
    peak = np.maximum(scores.max(axis=1, keepdims=True), sink)
    # A row that sees nothing has no largest score: exp(-inf - 0) is 0.
    peak = np.where(np.isfinite(peak), peak, 0)
    power, alone = np.exp(scores - peak), np.exp(sink - peak)
    total = power.sum(axis=1, keepdims=True) + alone
    total = np.where(total == 0, 1, total)
    weight = power / total
    found = weight @ v
    delta = (grad * found).sum(axis=1, keepdims=True)
    slope = weight * (grad @ v.T - delta)
    answer.out[mine, head] = found
    answer.dq[mine, head] = slope @ k * given.scale
    answer.dk[seen, group] += slope.T @ q * given.scale
    answer.dv[seen, group] += weight.T @ grad
    if answer.dsink is not None:
        answer.dsink[head] -= (alone / total * delta).sum()
    if answer.dbias is not None:
        one_row = slope.sum(axis=0, keepdims=True)
        answer.dbias[at] += slope if answer.dbias.shape[2] > 1 else one_row
