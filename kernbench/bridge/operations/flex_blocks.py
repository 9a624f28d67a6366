"""Which blocks of scores `flex_attention` computes, as bands of queries and keys."""

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from kernbench.attention.bands import Band, Bands
from kernbench.caches import cached
from kernbench.memory import Array

_CHUNK: Final = 1 << 24
"""Pairs of a query and a key for which a mask is computed at once."""


class BlockMask(NamedTuple):
    """A `BlockMask` of PyTorch, flattened: `BlockMask.as_tuple()`.

    Attributes:
        queries: Length that it was made for.
        keys: Length that it was made for.
        partial_counts: How many blocks of keys a block of queries sees in part, `[b, h, rows]`.
        partial: Which: the first of `[b, h, rows, columns]`.
        full_counts: How many it sees as a whole; None: such ones are among the others.
        full: Which.
        q_counts: As before, for blocks of keys; None if no gradient was to be computed.
        q_indices: As before.
        full_q_counts: As before.
        full_q_indices: As before.
        write_order: What the kernel need not know.
        write_order_full: What the kernel need not know.
        order: What the kernel need not know.
        order_spt: What the kernel need not know.
        block_queries: Queries of a block.
        block_keys: Keys of a block.
        seen: The function `mask_mod`.
    """

    queries: int
    keys: int
    partial_counts: torch.Tensor
    partial: torch.Tensor
    full_counts: torch.Tensor | None
    full: torch.Tensor | None
    q_counts: torch.Tensor | None
    q_indices: torch.Tensor | None
    full_q_counts: torch.Tensor | None
    full_q_indices: torch.Tensor | None
    write_order: torch.Tensor | None
    write_order_full: torch.Tensor | None
    order: torch.Tensor | None
    order_spt: bool | None
    block_queries: int
    block_keys: int
    seen: Callable[..., torch.Tensor]


def patterns_of(mask: BlockMask, rows: int, columns: int) -> tuple[int, tuple[Bands, ...]]:
    """Returns what each head of each batch element computes, from the numbers of a mask.

    Args:
        rows: How many queries there are.
        columns: How many keys.

    Returns:
        How many heads have patterns of their own, and the patterns, batch element by batch element.
    """
    lists = [(mask.partial_counts, mask.partial)]
    if mask.full_counts is not None and mask.full is not None:
        lists.append((mask.full_counts, mask.full))
    given = [each.numpy().astype(np.int64) for pair in lists for each in pair]
    shape = np.broadcast_shapes(*(each.shape[:3] for each in given))
    width = max(each.shape[3] for each in given[1::2])
    computed = np.zeros((*shape, width), np.bool_)
    for counts, indices in zip(given[::2], given[1::2], strict=True):
        batch, head, row, place = np.nonzero(np.arange(indices.shape[3]) < counts[..., None])
        computed[batch, head, row, indices[batch, head, row, place]] = True
    return _patterns(computed, mask, rows, columns)


def every_block(mask: BlockMask, rows: int, columns: int) -> tuple[int, tuple[Bands, ...]]:
    """Returns what heads compute if they leave out nothing, as `patterns_of`.

    Args:
        rows: How many queries there are.
        columns: How many keys.
    """
    shape = -(-rows // mask.block_queries), -(-columns // mask.block_keys)
    return _patterns(np.ones((1, 1, *shape), np.bool_), mask, rows, columns)


_BY_FUNCTION: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


def patterns_by_function(mask: BlockMask, rows: int, columns: int) -> tuple[int, tuple[Bands, ...]]:
    """Returns what heads compute, as `patterns_of`, if the mask itself has no numbers.

    Args:
        mask: The mask; its function needs no numbers of a device.
        rows: How many queries there are.
        columns: How many keys.
    """
    key = (tuple(mask.partial.shape), mask.block_queries, mask.block_keys, rows, columns)
    try:
        known = _BY_FUNCTION.setdefault(mask.seen, {})
    except TypeError:  # a function that no weak reference takes
        known = {}
    found = known.get(key)
    if found is None:
        computed = _computed(mask, rows, columns)
        found = known[key] = _patterns(computed, mask, rows, columns)
    return found


def _computed(mask: BlockMask, rows: int, columns: int) -> Array:
    """Returns which blocks have a pair that is seen, `[b, h, rows, columns]`."""
    batch, heads = mask.partial.shape[:2]
    high, wide = mask.block_queries, mask.block_keys
    down, across = -(-rows // high), -(-columns // wide)
    found = np.zeros((batch, heads, down, across), np.bool_)
    keys = torch.arange(columns)
    step = max(1, _CHUNK // max(1, high * columns))
    seen: Any = mask.seen
    for dims in ((None, None, None, 0), (None, None, 0, None)):
        seen = torch.vmap(seen, in_dims=dims)
    for b in range(batch):
        for h in range(heads):
            for top in range(0, down, step):
                queries = torch.arange(top * high, min(rows, (top + step) * high))
                part = seen(torch.tensor(b), torch.tensor(h), queries, keys)
                part = part.expand(len(queries), columns).numpy()
                part = np.pad(part, ((0, -len(queries) % high), (0, -columns % wide)))
                blocks = np.any(part.reshape(-1, high, across, wide), axis=(1, 3))
                found[b, h, top : top + len(blocks)] = blocks
    return found


def _patterns(
    computed: Array, mask: BlockMask, rows: int, columns: int
) -> tuple[int, tuple[Bands, ...]]:
    batch, heads = computed.shape[:2]
    size = mask.block_queries, mask.block_keys
    found = tuple(
        _bands(computed[b, h].tobytes(), computed.shape[2:], size, (rows, columns))
        for b in range(batch)
        for h in range(heads)
    )
    return heads, found


@cached("bridge.flex_bands")
def _bands(
    computed: bytes, shape: tuple[int, int], block: tuple[int, int], extents: tuple[int, int]
) -> Bands:
    """Returns a band for each run of blocks in a row of blocks; all pairs in it are computed."""
    grid = np.frombuffer(computed, np.bool_).reshape(shape)
    edges = np.diff(np.pad(grid, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    found = []
    for row, first, stop in zip(*np.nonzero(edges == 1), np.nonzero(edges == -1)[1], strict=True):
        top, left = int(row) * block[0], int(first) * block[1]
        n = min(block[0], extents[0] - top)
        m = min(int(stop) * block[1], extents[1]) - left
        if n > 0 and m > 0:
            found.append(Band(top, n, left, m, 1 - n, m))
    return tuple(found)
