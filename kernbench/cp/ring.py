"""Keys and values go around a ring of ranks, and meet the queries of each: `p2p`.

Forward, in step i a rank has the keys of rank `r - i`, and gives them to rank `r + 1` while it
computes. Backward the ring turns the other way. It begins with the keys that came last, those of
rank `r + 1`, which forward kept in place of the rank's own; their gradients travel one step behind
them, and end where they belong. The message of a step hides behind its attention; only the wait
for it, before the next step, may show.

Keys and values are one message, their gradients another: forward sends `size - 1`, backward
`2 * (size - 1)`. Parts are added in float32 or float64.
"""

from collections.abc import Sequence
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.cp import kernels
from kernbench.cp.biases import Bias
from kernbench.cp.lanes import Lanes
from kernbench.cp.problem import (
    Found,
    Grads,
    Members,
    Problem,
    attention_of,
    by_heads,
    by_rows,
    wide,
)
from kernbench.cp.sequences import Sight, seen, sight

Tensor = torch.Tensor


def patterns(given: Problem, owner: int) -> tuple[extend.Bands, ...]:
    """Returns what the rank's queries see of the keys of another one."""
    ring = given.outer
    return seen(given.queries, given.keys, given.mask, ring.size, ring.rank, owner)


def _alone(
    given: Problem, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, bias: Tensor | None
) -> extend.Attention:
    """Returns attention of a rank that has all keys."""
    query, key, value = (by_heads(each, given.dim) for each in (q, k, v))
    return extend.Attention(query, key, value, patterns(given, 0), given.scale, bias, sink)


def forward(
    given: Problem, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, bias: Tensor | None
) -> Found:
    """Returns attention of the rank's queries over the keys of all ranks in the ring.

    Args:
        given: What is computed.
        q: The rank's queries.
        k: Its keys.
        v: Its values.
        sink: A score more for each row, `[heads]`, or None.
        bias: What is added to the scores, see `Bias`, or None.
    """
    ring, dim = given.outer, given.dim
    if ring.size == 1:
        alone = extend.attend(_alone(given, q, k, v, sink, bias), wants_peak=given.wants_peak)
        out = by_rows(alone.out, dim).contiguous()
        return Found(out, alone.peak, (q, k, v, out, alone.lse, sink, bias))
    added = None if bias is None else Bias(bias, q.shape[dim], ring)
    query, kind = by_heads(q, dim), wide(q.dtype)
    held = torch.cat((k.reshape(-1), v.reshape(-1)))
    total: tuple[Tensor, Tensor] | None = None
    peaks: list[Tensor] = []
    message: Any = None
    spare: Tensor | None = None
    lanes = Lanes(given.stream)
    for step in range(ring.size):
        owner = (ring.rank - step) % ring.size
        with lanes.at(step):
            if message is not None:
                message.wait()
            came = held
            if step < ring.size - 1:
                came = torch.empty_like(held) if spare is None else spare
                message = _pass_on(ring, 1, held, came)
            key, value = _parts(held, (k.shape, v.shape), dim)
            bands = patterns(given, owner)
            part = sight(bands)
            # The first part is of all rows, to which the others are added.
            if part is not None and total is None:
                part = Sight(bands, 0, q.shape[dim], 0, k.shape[dim])
            if part is not None:
                bias_part = None if added is None else added.part(owner, part)
                some = attention_of(given, query, key, value, part, bias_part)
                found = extend.attend(some, dtype=kind, wants_peak=given.wants_peak)
                if found.peak is not None:
                    peaks.append(found.peak)
                if total is None:
                    total = by_rows(found.out, dim).contiguous(), found.lse
                else:
                    lanes.after_last()
                    total = kernels.merge(*total, found.out, found.lse, part.query, dim)
                lanes.note(*total, *peaks[-1:])
            # Of two streams, one may still read what the other one would receive into.
            spare = held if given.stream is None else None
            held = came
    lanes.close()
    out, lse = _nothing(given, q, v) if total is None else total
    if sink is None:
        out = out.to(q.dtype)
    else:
        out, lse = kernels.add_sink(out, lse, sink, q.dtype, dim)
    return Found(out, _peak(given, peaks, q), (q, held, None, out, lse, sink, bias))


def backward(
    given: Problem,
    shapes: tuple[Sequence[int], Sequence[int]],
    saved: Sequence[Any],
    grad: Tensor,
    needs_bias: bool,
    needs_sink: bool,
) -> Grads:
    """Returns the gradients of what forward was given.

    Args:
        given: As in forward.
        shapes: Of the rank's own keys and values.
        saved: What forward has saved.
        grad: Gradient of `out`; rows that are no tokens are not read.
        needs_bias: Whether the gradient of the bias is wanted.
        needs_sink: Whether that of the sink is.
    """
    q, held, v, out, lse, sink, bias = saved
    ring, dim = given.outer, given.dim
    if ring.size == 1:
        alone = _alone(given, q, held, v, sink, bias)
        sides = by_heads(grad, dim), by_heads(out, dim)
        found = extend.attend_backward(alone, *sides, lse, wants_bias=needs_bias)
        dq, dk, dv = (by_rows(each, dim).contiguous() for each in found[:3])
        return Grads(dq, dk, dv, found.sink, found.bias)
    added = None if bias is None else Bias(bias, q.shape[dim], ring)
    if added is not None and needs_bias:
        added.start()
    kind, size = wide(q.dtype), ring.size
    query, above, below = (by_heads(each, dim) for each in (q, grad, out))
    total: Tensor | None = None
    gathered: Any = None
    spare: Tensor | None = None
    spare_gradients: Tensor | None = None
    # One stream alone: what a step adds is what the next one sends.
    for step in range(size):
        owner = (ring.rank + 1 + step) % size
        messages, came, arrived = [], held, None
        # One behind the other: together they would take as long, each in the way of the other.
        if step < size - 1:
            came = torch.empty_like(held) if spare is None else spare
            messages.append(_pass_on(ring, -1, held, came))
        if step:
            arrived = torch.empty_like(gathered) if spare_gradients is None else spare_gradients
            messages.append(_pass_on(ring, -1, gathered, arrived))
        key, value = _parts(held, shapes, dim)
        part = sight(patterns(given, owner))
        new: list[tuple[int, Tensor]] = []
        if part is not None:
            bias_part = None if added is None else added.part(owner, part)
            some = attention_of(given, query, key, value, part, bias_part)
            its = (each.narrow(2, part.query, part.queries) for each in (above, below, lse))
            slopes = extend.attend_backward(some, *its, dtype=kind, wants_bias=needs_bias)
            if added is not None and slopes.bias is not None:
                added.add(slopes.bias, owner, part)
            new = [(part.key, slopes.key), (part.key, slopes.value)]
            if total is None:
                total = kernels.joined([(part.query, slopes.query)], q.shape, kind, dim)
            else:
                by_heads(total, dim).narrow(2, part.query, part.queries).add_(slopes.query)
        for message in messages:
            message.wait()
        if step == size - 1:
            dk, dv = _own(arrived, new, shapes, q.dtype, dim)
        elif arrived is not None:
            for sums, (first, slope) in zip(_parts(arrived, shapes, dim), new, strict=False):
                sums.narrow(2, first, slope.shape[2]).add_(slope)
            gathered, spare_gradients = arrived, gathered
        elif new:
            gathered = kernels.add_gradients(None, new, shapes, given.message, dim)
        else:
            gathered = torch.zeros(held.numel(), dtype=given.message, device=q.device)
        # What forward has saved stays as it is.
        spare = held if step else None
        held = came
    dq = torch.zeros_like(q) if total is None else total.to(q.dtype)
    dsink = None
    if sink is not None and needs_sink:
        tokens = given.queries.rows(size, ring.rank)
        dsink = kernels.sink_gradient(grad, out, lse, sink, tokens, dim)
        dist.all_reduce(dsink, group=ring.group)
    return Grads(dq, dk, dv, dsink, None if added is None or not needs_bias else added.finish())


def _own(
    arrived: Any,
    new: Sequence[tuple[int, Tensor]],
    shapes: tuple[Sequence[int], Sequence[int]],
    dtype: torch.dtype,
    dim: int,
) -> list[Tensor]:
    """Returns the gradients of the rank's own keys and values: what came home, and its own part."""
    found, start = [], 0
    for number, shape in enumerate(shapes):
        size = torch.Size(shape).numel()
        came = arrived.narrow(0, start, size)
        if new:
            came = kernels.add_gradients(came, new[number : number + 1], [shape], dtype, dim)
        found.append(came.to(dtype).view(shape))
        start += size
    return found


def _parts(held: Tensor, shapes: tuple[Sequence[int], Sequence[int]], dim: int) -> list[Tensor]:
    """Returns views of the keys and values of a message, `[b, heads, rows, width]`."""
    first, second = (torch.Size(shape).numel() for shape in shapes)
    return [
        by_heads(held.narrow(0, 0, first).view(shapes[0]), dim),
        by_heads(held.narrow(0, first, second).view(shapes[1]), dim),
    ]


def _pass_on(ring: Members, by: int, sent: Tensor, received: Tensor) -> Any:
    """Sends a tensor to the rank that is `by` further on, and receives one from the rank before.

    Ranks of an even place name first what they send, the others what they receive.
    """
    to, of = (ring.rank + by) % ring.size, (ring.rank - by) % ring.size
    messages = [
        dist.P2POp(dist.isend, sent, group=ring.group, group_peer=to),
        dist.P2POp(dist.irecv, received, group=ring.group, group_peer=of),
    ]
    works = dist.batch_isend_irecv(messages[::-1] if ring.rank % 2 else messages)
    return works[0] if len(works) == 1 else _All(works)


class _All:
    """Several messages, waited for together."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _nothing(given: Problem, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the results of queries that see no key at all."""
    kind = wide(q.dtype)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=kind, device=q.device)
    b, heads, rows, _ = by_heads(q, given.dim).shape
    return out, torch.full((b, heads, rows), float("-inf"), dtype=kind, device=q.device)


def _peak(given: Problem, peaks: list[Tensor], q: Tensor) -> Tensor | None:
    if not given.wants_peak:
        return None
    peak = kernels.largest(peaks, q)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=given.outer.group)
    return peak
