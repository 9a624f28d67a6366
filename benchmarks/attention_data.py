"""Attention with data, against the same blocks of scores in bare numpy.

Causal, batch 1, 4 heads of width 64 for queries and 2 for keys and values, one BLAS thread. The
limit is the same loop over blocks, written for this one case: no rows, no bands, no tensors. Time
is that of the processor.
"""

import time
from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Any

import _measure
import numpy as np

from kernbench import torch
from kernbench.runtime_api.context import RuntimeContext

Array = np.ndarray[Any, Any]

HEADS, GROUPS, WIDTH = 4, 2, 64
LENGTHS = 2048, 8192
REPEATS = {2048: 5, 8192: 3}
LIMIT = 1.5
EDGE = min(max(isqrt((1 << 19) // HEADS), 64), 512)


def bare_forward(q: Array, k: Array, v: Array, scale: np.float32) -> tuple[Array, Array]:
    """Returns attention of `[heads, s, width]` and the logarithms of the sums of its rows."""
    s, each = q.shape[1], HEADS // GROUPS
    out = np.empty_like(q)
    lse = np.empty((HEADS, s), q.dtype)
    for top in range(0, s, EDGE):
        rows = slice(top, min(top + EDGE, s))
        n = rows.stop - top
        mine = (q[:, rows] * scale).reshape(GROUPS, each * n, WIDTH)
        peak = np.full((HEADS, n), -np.inf, q.dtype)
        total = np.zeros((HEADS, n), q.dtype)
        found = np.zeros((HEADS, n, WIDTH), q.dtype)
        for left in range(0, rows.stop, EDGE):
            keys = slice(left, min(left + EDGE, s))
            scores = (mine @ k[:, keys].swapaxes(1, 2)).reshape(HEADS, n, -1)
            if left == top:
                scores[:, ~np.tri(n, dtype=np.bool_)] = -np.inf
            now = np.maximum(peak, scores.max(2))
            scores -= now[..., None]
            np.exp(scores, out=scores)
            shrunk = np.exp(peak - now)
            total = total * shrunk + scores.sum(2)
            found *= shrunk[..., None]
            parts = scores.reshape(GROUPS, each * n, -1) @ v[:, keys]
            found += parts.reshape(HEADS, n, WIDTH)
            peak = now
        out[:, rows] = found / total[..., None]
        lse[:, rows] = peak + np.log(total)
    return out, lse


def bare_backward(
    q: Array, k: Array, v: Array, scale: np.float32, grad: Array, found: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Returns the gradients, the weights computed once more."""
    out, lse = found
    s, each = q.shape[1], HEADS // GROUPS
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    along = np.einsum("hsd,hsd->hs", grad, out)
    for top in range(0, s, EDGE):
        rows = slice(top, min(top + EDGE, s))
        n = rows.stop - top
        mine, given = (x[:, rows].reshape(GROUPS, each * n, WIDTH) for x in (q, grad))
        for left in range(0, rows.stop, EDGE):
            keys = slice(left, min(left + EDGE, s))
            weights = ((mine * scale) @ k[:, keys].swapaxes(1, 2)).reshape(HEADS, n, -1)
            if left == top:
                weights[:, ~np.tri(n, dtype=np.bool_)] = -np.inf
            weights -= lse[:, rows, None]
            np.exp(weights, out=weights)
            grouped = weights.reshape(GROUPS, each * n, -1)
            dv[:, keys] += grouped.swapaxes(1, 2) @ given
            slopes = (given @ v[:, keys].swapaxes(1, 2)).reshape(weights.shape)
            slopes -= along[:, rows, None]
            slopes *= weights
            slopes *= scale
            grouped = slopes.reshape(GROUPS, each * n, -1)
            dq[:, rows] += (grouped @ k[:, keys]).reshape(HEADS, n, WIDTH)
            dk[:, keys] += grouped.swapaxes(1, 2) @ mine
    return dq, dk, dv


def seconds(function: Callable[[], object]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def case(length: int, name: str) -> list[tuple[str, float, float]]:
    """Returns the seconds of bare numpy and of kernbench, forward and with backward."""
    numbers = np.random.default_rng(0)
    shapes = (HEADS, length, WIDTH), (GROUPS, length, WIDTH), (GROUPS, length, WIDTH)
    drawn = [numbers.standard_normal(shape, np.float32) for shape in (*shapes, shapes[0])]
    dtype = getattr(torch, name)
    stored = [each.astype(dtype.numpy) for each in drawn]
    scale = np.float32(WIDTH**-0.5)

    def bare(backward: bool) -> None:
        q, k, v, grad = (each.astype(np.float32) for each in stored)
        found = bare_forward(q, k, v, scale)
        out = found[0].astype(dtype.numpy)
        if backward:
            found = out.astype(np.float32), found[1]
            for each in bare_backward(q, k, v, scale, grad, found):
                each.astype(dtype.numpy)

    with RuntimeContext() as ctx:
        q, k, v, grad = (
            torch.tensor(each[None], device="cuda").to(dtype).requires_grad_(number < 3)
            for number, each in enumerate(drawn)
        )

        def ours(backward: bool) -> None:
            for each in (q, k, v):
                each.grad = None
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
            if backward:
                out.backward(grad)
            torch.cuda.synchronize()

        assert ctx.main is not None
        rows = []
        for backward in (False, True):
            times: list[list[float]] = [[], []]
            for _ in range(REPEATS[length]):
                times[0].append(seconds(partial(bare, backward)))
                times[1].append(seconds(partial(ours, backward)))
            what = "forward and backward" if backward else "forward"
            rows.append((f"{what}, {length} tokens, {name}", min(times[0]), min(times[1])))
    return rows


def main() -> None:
    found = [
        row for length in LENGTHS for name in ("float32", "bfloat16") for row in case(length, name)
    ]
    _measure.show(
        f"causal attention, {HEADS} heads of {WIDTH}, data on",
        ["case", "bare numpy ms", "kernbench ms", "ratio", "target"],
        [
            [
                name,
                f"{limit * 1e3:.0f}",
                f"{time * 1e3:.0f}",
                f"{time / limit:.2f}",
                _measure.verdict(time / limit, LIMIT, at_least=False),
            ]
            for name, limit, time in found
        ],
    )


if __name__ == "__main__":
    main()
