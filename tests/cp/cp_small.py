"""Whole batches in float64, shared out among ranks, and attention of them without any kernbench."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A batch and what attention it gets, by the arguments of `cp_attention`.

    Attributes:
        used: Tokens of each sequence.
        room: Rows of each sequence.
        heads: Of queries.
        groups: Of keys and values.
        width: Of queries and keys.
        value_width: Of values.
        layout: `bshd`, `sbhd` or `thd`.
        mask: `attn_mask_type`.
        window: `window_size`.
        softmax: `softmax_type`.
        keys: Tokens and rows of the sequences of keys, if they differ.
        bias: Shape of a bias, with -1 for the rows of a rank.
        tail: Rows of each rank behind the last sequence.
        options: Further arguments.
    """

    used: tuple[int, ...] = (16, 16)
    room: tuple[int, ...] = (16, 16)
    heads: int = 4
    groups: int = 2
    width: int = 4
    value_width: int = 3
    layout: str = "bshd"
    mask: str = "causal"
    window: tuple[int, int] | None = None
    softmax: str = "vanilla"
    keys: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    bias: tuple[int, ...] | None = None
    tail: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def keyed(self) -> "Case":
        """Returns the case with the sequences of keys in place of those of queries."""
        used, room = self.keys or (self.used, self.room)
        return replace(self, used=used, room=room)


def rows_of(case: Case, cp: int, rank: int) -> list[list[tuple[int, int]]]:
    """Returns for each sequence a rank's rows: the position of each, and whether it is real."""
    found = []
    for used, room in zip(case.used, case.room, strict=True):
        chunk = room // (2 * cp)
        positions = [*range(rank * chunk, (rank + 1) * chunk)]
        positions += range((2 * cp - 1 - rank) * chunk, (2 * cp - rank) * chunk)
        if cp == 1:
            positions = [*range(room)]
        found.append([(position, int(position < used)) for position in positions])
    return found


def share(case: Case, whole: Sequence[Array], cp: int, rank: int, pad: float) -> Array:
    """Returns a rank's share of `[tokens, heads, width]` of each sequence, with `pad` elsewhere."""
    parts = []
    for every, tokens in zip(rows_of(case, cp, rank), whole, strict=True):
        part = np.full((len(every), *tokens.shape[1:]), float(pad))
        for row, (position, real) in enumerate(every):
            if real:
                part[row] = tokens[position]
        parts.append(part)
    if case.layout == "thd":
        parts.append(np.full((case.tail, *whole[0].shape[1:]), float(pad)))
        return np.concatenate(parts)
    return np.stack(parts, 0 if case.layout == "bshd" else 1)


@dataclass
class Batch:
    """Tokens of each sequence, a gradient of the output, and what attention finds."""

    q: list[Array]
    k: list[Array]
    v: list[Array]
    grad: list[Array]
    sink: Array
    bias: Array | None
    out: list[Array]
    dq: list[Array]
    dk: list[Array]
    dv: list[Array]
    dsink: Array
    dbias: Array | None
    peak: Array


def visible(case: Case, queries: int, keys: int) -> Array:
    """Returns which query of a sequence sees which key."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    left, right = case.window or (-1, -1)
    seen = np.ones((queries, keys), bool)
    if "causal" in case.mask:
        seen &= j <= i
    elif right >= 0:
        seen &= j <= i + right
    if left >= 0:
        seen &= j >= i - left
    return seen


def batch_of(case: Case, seed: int = 1234) -> Batch:
    """Returns a batch, and its attention and gradients with whole matrices of scores."""
    rng = np.random.default_rng(seed)

    def drawn(lengths: Sequence[int], *shape: int) -> list[Array]:
        return [np.clip(rng.normal(size=(n, *shape)), -1, 1) for n in lengths]

    keyed = case.keyed()
    q = drawn(case.used, case.heads, case.width)
    k = drawn(keyed.used, case.groups, case.width)
    v = drawn(keyed.used, case.groups, case.value_width)
    grad = drawn(case.used, case.heads, case.value_width)
    sink = np.clip(rng.normal(size=case.heads), -1, 1)
    bias = None if case.bias is None else np.clip(rng.normal(size=case.bias), -1, 1)
    batch = Batch(q, k, v, grad, sink, bias, [], [], [], [], np.zeros(case.heads), None, sink)
    batch.peak = np.full(case.heads, -np.inf)
    if bias is not None:
        batch.dbias = np.zeros_like(bias)
    powers = {"vanilla": np.zeros(case.heads), "off-by-one": np.ones(case.heads)}
    extra = powers.get(case.softmax, np.exp(sink))
    for number in range(len(q)):
        _attend(case, batch, number, extra)
    return batch


def _attend(case: Case, batch: Batch, number: int, extra: Array) -> None:
    each = case.heads // case.groups
    q, grad = batch.q[number].swapaxes(0, 1), batch.grad[number].swapaxes(0, 1)
    k, v = (np.repeat(x[number].swapaxes(0, 1), each, 0) for x in (batch.k, batch.v))
    scale = case.options.get("softmax_scale", case.width**-0.5)
    scores = np.einsum("hid,hjd->hij", q, k) * scale
    if batch.bias is not None:
        some = batch.bias[number if batch.bias.shape[0] > 1 else 0]
        scores = scores + some
    seen = visible(case, q.shape[1], k.shape[1])
    scores = np.where(seen, scores, -np.inf)
    batch.peak = np.maximum(batch.peak, scores.max(axis=(1, 2), initial=-np.inf))
    powers = np.exp(scores)
    sums = powers.sum(2) + extra[:, None]
    weights = powers / np.where(sums == 0, 1, sums)[..., None]
    out = weights @ v
    slopes = grad @ v.swapaxes(1, 2)
    along = (grad * out).sum(2)
    ds = weights * (slopes - along[..., None])
    grouped = case.groups, each
    dk = np.einsum("hij,hid->hjd", ds, q) * scale
    dv = np.einsum("hij,hid->hjd", weights, grad)
    batch.out.append(out.swapaxes(0, 1))
    batch.dq.append((ds @ k * scale).swapaxes(0, 1))
    batch.dk.append(dk.reshape(*grouped, *dk.shape[1:]).sum(1).swapaxes(0, 1))
    batch.dv.append(dv.reshape(*grouped, *dv.shape[1:]).sum(1).swapaxes(0, 1))
    part = extra[:, None] / np.where(sums == 0, 1, sums)
    batch.dsink = batch.dsink - (part * along).sum(1)
    if batch.dbias is not None:
        at = number if batch.dbias.shape[0] > 1 else 0
        kept = ds
        for axis, size in enumerate(batch.dbias.shape[1:]):
            if size == 1:
                kept = kept.sum(axis, keepdims=True)
        batch.dbias[at] += kept
