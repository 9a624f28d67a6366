"""Ranks exchange heads for tokens: `a2a`, and the inner half of `a2a+p2p`.

A rank has all heads of its own tokens, and gets all tokens, in order, of its part of the heads.
Four all-to-alls forward (queries, keys, values, and the output on its way back), four backward.
"""

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp import kernels
from kernbench.cp.problem import Members, Problem, by_heads
from kernbench.cp.sequences import Sequences

Tensor = torch.Tensor


def to_heads(given: Problem, x: Tensor, sequences: Sequences) -> Tensor:
    """Returns all tokens of the rank's part of the heads.

    Args:
        given: Who exchanges what.
        x: The rank's tokens, with all heads.
        sequences: What the tokens belong to.
    """
    inner, parts = given.inner, given.inner.size
    if parts == 1:
        return x
    # Block d of the heads goes to rank d.
    dealt = x.unflatten(2, (parts, -1)).permute(2, 0, 1, 3, 4).contiguous()
    return kernels.in_order(_exchanged(dealt, inner), _union(given, sequences), parts, given.dim)


def to_tokens(given: Problem, x: Tensor, sequences: Sequences) -> Tensor:
    """Returns the rank's tokens with all heads: undoes `to_heads`.

    Args:
        given: Who exchanges what.
        x: All tokens, in order, of the rank's part of the heads.
        sequences: What the tokens belong to.
    """
    inner, parts = given.inner, given.inner.size
    if parts == 1:
        return x
    whole = [(0, by_heads(x, given.dim))]
    union = _union(given, sequences)
    dealt = kernels.by_rank(whole, x.shape, union, parts, x.dtype, given.dim)
    return _exchanged(dealt, inner).permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()


def all_heads(given: Problem, x: Tensor) -> Tensor:
    """Returns one number a head of all ranks, of those of the rank's part, `[heads]`."""
    inner = given.inner
    if inner.size == 1:
        return x
    whole = torch.empty(inner.size * x.shape[0], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=inner.group)
    return whole


def my_heads(given: Problem, x: Tensor) -> Tensor:
    """Returns the rank's part of one number a head: undoes `all_heads`."""
    inner = given.inner
    part = x.shape[0] // inner.size
    return x if inner.size == 1 else x.narrow(0, inner.rank * part, part)


def _exchanged(x: Tensor, inner: Members) -> Tensor:
    came = torch.empty_like(x)
    dist.all_to_all_single(came, x, group=inner.group)
    return came


def _union(given: Problem, sequences: Sequences) -> Sequences:
    return sequences.within(given.outer.size)
