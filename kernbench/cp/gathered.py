"""Each rank gathers the keys and values of all, puts them in order, and attends chunk by chunk.

Two gathers forward; backward gathers again, and gives the gradients back by two reduce-scatters.
Each of a rank's two chunks of queries is one call of attention, over the keys that it sees.
"""

from collections.abc import Sequence
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.cp import kernels
from kernbench.cp.lanes import Lanes
from kernbench.cp.problem import Found, Grads, Problem, attention_of, by_heads, wide
from kernbench.cp.sequences import Sight, seen_by_chunk, sight

Tensor = torch.Tensor


def patterns(given: Problem, chunk: int) -> tuple[extend.Bands, ...]:
    """Returns what the queries of one of the rank's two chunks see of all keys."""
    ranks = given.outer
    return seen_by_chunk(given.queries, given.keys, given.mask, ranks.size, ranks.rank, chunk)


def forward(given: Problem, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Found:
    """Returns attention of the rank's queries over the keys of all ranks.

    Args:
        given: What is computed.
        q: The rank's queries.
        k: Its keys.
        v: Its values.
        sink: A score more for each row, `[heads]`, or None.
    """
    dim = given.dim
    key, value = (by_heads(_gathered(given, each), dim) for each in (k, v))
    lanes = Lanes(given.stream)
    pieces: list[tuple[int, Tensor]] = []
    peaks: list[Tensor] = []
    sums: list[Tensor | None] = []
    for chunk in range(2):
        part = sight(patterns(given, chunk))
        if part is None:
            sums.append(None)
            continue
        with lanes.at(chunk):
            some = attention_of(given, by_heads(q, dim), key, value, part, sink=sink)
            found = extend.attend(some, wants_peak=given.wants_peak)
            lanes.note(found.out, found.lse, found.peak)
        pieces.append((part.query, found.out))
        sums.append(found.lse)
        if found.peak is not None:
            peaks.append(found.peak)
    lanes.close()
    shape = [*q.shape[:-1], v.shape[-1]]
    out = (
        kernels.joined(pieces, shape, q.dtype, dim)
        if pieces
        else torch.zeros(shape, dtype=q.dtype, device=q.device)
    )
    peak = None
    if given.wants_peak:
        peak = kernels.largest(peaks, q)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=given.outer.group)
    return Found(out, peak, (q, k, v, out, *sums, sink))


def backward(given: Problem, saved: Sequence[Any], grad: Tensor, needs_sink: bool) -> Grads:
    """Returns the gradients of what forward was given.

    Args:
        given: As in forward.
        saved: What forward has saved.
        grad: Gradient of `out`; rows that are no tokens are not read.
        needs_sink: Whether the gradient of the sink is wanted.
    """
    q, k, v, out, *sums, sink = saved
    dim, size, kind = given.dim, given.outer.size, wide(q.dtype)
    query, above, below = (by_heads(each, dim) for each in (q, grad, out))
    key, value = (by_heads(_gathered(given, each), dim) for each in (k, v))
    lanes = Lanes(given.stream)
    found: list[tuple[Sight, extend.Slopes]] = []
    for chunk, lse in enumerate(sums):
        part = sight(patterns(given, chunk))
        if part is None:
            continue
        with lanes.at(chunk):
            some = attention_of(given, query, key, value, part, sink=sink)
            its = [each.narrow(2, part.query, part.queries) for each in (above, below)]
            slopes = extend.attend_backward(some, its[0], its[1], lse, dtype=kind)
            lanes.note(*slopes)
        found.append((part, slopes))
    lanes.close()
    main: list[Tensor] = []
    if found:
        pieces = [(part.query, slopes.query) for part, slopes in found]
        main.append(kernels.joined(pieces, q.shape, q.dtype, dim))
    else:
        main.append(torch.zeros_like(q))
    for number, given_by in enumerate((k, v)):
        shape = [each * size if at == dim else each for at, each in enumerate(given_by.shape)]
        mine = torch.empty(given_by.shape, dtype=given.message, device=q.device)
        if found:
            pieces = [(part.key, (slopes.key, slopes.value)[number]) for part, slopes in found]
            dealt = kernels.by_rank(pieces, shape, given.keys, size, given.message, dim)
        else:
            dealt = torch.zeros(size, *given_by.shape, dtype=given.message, device=q.device)
        dist.reduce_scatter_tensor(mine, dealt.view(-1, *mine.shape[1:]), group=given.outer.group)
        main.append(mine.to(given_by.dtype))
    dsink = None
    if sink is not None and needs_sink:
        dsink = torch.zeros_like(sink)
        for _, slopes in found:
            if slopes.sink is not None:
                dsink.add_(slopes.sink)
        dist.all_reduce(dsink, group=given.outer.group)
    return Grads(main[0], main[1], main[2], dsink)


def _gathered(given: Problem, x: Tensor) -> Tensor:
    """Returns what all ranks have, each sequence in order."""
    size = given.outer.size
    came = torch.empty(size, *x.shape, dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(
        came.view(-1, *x.shape[1:]), x.contiguous(), group=given.outer.group
    )
    return kernels.in_order(came, given.keys, size, given.dim)
