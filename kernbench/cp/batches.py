"""Batches for context parallelism: padding of packed sequences, and which rows a rank has.

Every sequence is cut into `2 * cp` equal chunks, of which rank r has chunk r and then chunk
`2 * cp - 1 - r`: a dense one along its dimension, packed ones each by its rows with padding.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

import kernbench.torch as torch
from kernbench import extend
from kernbench.cp.checks import members
from kernbench.cp.lengths import Cumulative, cumulative
from kernbench.parallel import parallel_state
from kernbench.parallel.members import Group, refuse_option
from kernbench.parallel.zigzag import join_zigzag, take_zigzag, zigzag_ranges

_PACKED: Final = ("cu_seqlens_padded", "cu_seqlens")
_WHOLE: Final = (
    *_PACKED,
    *(f"cu_seqlens_{of}{kind}" for of in ("q", "kv") for kind in ("", "_padded")),
    *("max_seqlen", "max_seqlen_q", "max_seqlen_kv"),
)


def zigzag_split(x: torch.Tensor, cp_size: int, cp_rank: int, seq_dim: int = 1) -> torch.Tensor:
    """Returns a rank's part of whole sequences; gradients flow back to them.

    Args:
        x: The sequences, such as `[b, s, ...]`.
        cp_size: How many ranks share them.
        cp_rank: The place of one of them.
        seq_dim: Which dimension is the sequence.

    Returns:
        Chunk `cp_rank` and behind it chunk `2 * cp_size - 1 - cp_rank`.

    Raises:
        OptionError: If the length is not a multiple of `2 * cp_size`, or there is no such rank.
    """
    return take_zigzag(x, seq_dim, cp_size, cp_rank)


def zigzag_unsplit(parts: Sequence[torch.Tensor], seq_dim: int = 1) -> torch.Tensor:
    """Returns whole sequences of the parts of all ranks; the inverse of `zigzag_split`.

    Args:
        parts: What ranks 0, 1, ... have, all of one shape.
        seq_dim: Which dimension is the sequence.

    Raises:
        OptionError: If there are no parts, or their lengths are odd or differ.
    """
    lengths = [part.size(seq_dim) for part in parts]
    if len({*lengths}) != 1:
        raise refuse_option(
            f"parts of {len(lengths)} ranks make no sequence: their lengths are {lengths}",
            "expected one length, twice that of a chunk",
        )
    return join_zigzag(torch.cat([*parts], seq_dim), seq_dim, len(parts))


def thd_partition_indices(
    cu_seqlens_padded: Cumulative,
    total_tokens: int,
    cp_size: int,
    cp_rank: int,
    *,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Returns which rows of packed sequences a rank has, in the order in which it has them.

    TransformerEngine's function of this name is `tex.thd_get_partitioned_indices`.

    Args:
        cu_seqlens_padded: Cumulative rows of the sequences, with their padding.
        total_tokens: Rows in all; those behind the last sequence are shared as one sequence more.
        cp_size: How many ranks share the sequences.
        cp_rank: The place of one of them.
        device: Where the result is.

    Returns:
        Rows, `[total_tokens / cp_size]`, int32.

    Raises:
        OptionError: If a sequence's rows are not a multiple of `2 * cp_size`, there is no such
            rank, or the sequences have more rows than there are.
    """
    bounds = cumulative("cu_seqlens_padded", cu_seqlens_padded)
    if total_tokens < bounds[-1]:
        raise refuse_option(
            f"{total_tokens} rows cannot hold packed sequences of {bounds[-1]} rows",
            f"cu_seqlens_padded ends with {bounds[-1]}",
        )
    rows: list[int] = []
    for start, stop in pairwise([*bounds, total_tokens]):
        for part in _ranges(stop - start, cp_size, cp_rank):
            rows += range(start + part.start, start + part.stop)
    return torch.tensor(rows, dtype=torch.int32, device=device)


def seqlens_on_cp_rank(
    cu_seqlens: Cumulative, cu_seqlens_padded: Cumulative, cp_size: int, cp_rank: int
) -> list[int]:
    """Returns how many tokens of each packed sequence a rank has; they are the first of its rows.

    Args:
        cu_seqlens: Cumulative tokens.
        cu_seqlens_padded: Cumulative rows, with padding; each sequence's are a multiple of
            `2 * cp_size`.
        cp_size: How many ranks share the sequences.
        cp_rank: The place of one of them.

    Raises:
        OptionError: If the two do not fit each other or the ranks, or there is no such rank.
    """
    used = cumulative("cu_seqlens", cu_seqlens)
    rows = cumulative("cu_seqlens_padded", cu_seqlens_padded)
    if len(used) != len(rows):
        raise refuse_option(
            f"cu_seqlens is of {len(used) - 1} sequences, cu_seqlens_padded of {len(rows) - 1}",
            "expected both of the same",
        )
    for at, ((start, stop), (first, end)) in enumerate(
        zip(pairwise(used), pairwise(rows), strict=True)
    ):
        _ranges(end - first, cp_size, cp_rank)
        if stop - start > end - first:
            raise refuse_option(
                f"sequence {at} has {stop - start} tokens in {end - first} rows",
                "expected at most as many tokens as rows",
            )
    lengths = [0] * (len(used) - 1)
    for segment in extend.share(used, rows, cp_size, cp_rank):
        lengths[segment.sequence] += segment.length
    return lengths


def pad_thd_sequences_for_cp(
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: Cumulative,
    divisibility_factor: int,
    pad_id: int = 0,
    pad_label: int = -100,
) -> tuple[torch.Tensor, torch.Tensor, Cumulative]:
    """Pads each of several packed sequences at its end, to a multiple of a factor.

    Args:
        input_ids: Ids of the sequences, one behind the other: `[t]` or `[1, t]`.
        labels: What is to be predicted, in the same shape.
        cu_seqlens: Cumulative tokens.
        divisibility_factor: Rows of a sequence become a multiple of it: `2 * cp`, or with sequence
            parallelism a common multiple of it and the tensor-parallel size.
        pad_id: Id of a row of padding.
        pad_label: Label of a row of padding; -100 is what losses ignore.

    Returns:
        The ids and the labels with padding, `[rows]` each, and cumulative rows, as `cu_seqlens`
        was given: ints, an array or a tensor.

    Raises:
        OptionError: If the factor is below 1, or ids, labels and lengths do not fit each other.
    """
    bounds = cumulative("cu_seqlens", cu_seqlens)
    padded = _padded(bounds, divisibility_factor)
    for name, x in (("input_ids", input_ids), ("labels", labels)):
        if tuple(x.shape) not in {(bounds[-1],), (1, bounds[-1])}:
            raise refuse_option(
                f"{name} of shape {[*x.shape]} do not hold the {bounds[-1]} tokens of cu_seqlens",
                f"expected shape [{bounds[-1]}] or [1, {bounds[-1]}]",
            )

    def filled(x: torch.Tensor, value: int) -> torch.Tensor:
        x, pieces = x.reshape(-1), []
        for (start, stop), (first, end) in zip(pairwise(bounds), pairwise(padded), strict=True):
            pieces += [x[start:stop], x.new_full((end - first - (stop - start),), value)]
        return torch.cat(pieces)

    return filled(input_ids, pad_id), filled(labels, pad_label), _as_given(padded, cu_seqlens)


def positional_ids_for_cp(
    cu_seqlens: Cumulative,
    divisibility_factor: int,
    dtype: torch.dtype = torch.int64,
    *,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Returns the positions of rows that `pad_thd_sequences_for_cp` made, in their sequences.

    Args:
        cu_seqlens: Cumulative tokens, without padding.
        divisibility_factor: What each sequence's rows become a multiple of.
        dtype: Type of the positions.
        device: Where the result is.

    Returns:
        `[rows]`: 0, 1, ... of each sequence, on through its padding.

    Raises:
        OptionError: If the factor is below 1, or the lengths are not cumulative.
    """
    padded = _padded(cumulative("cu_seqlens", cu_seqlens), divisibility_factor)
    positions = [row for start, stop in pairwise(padded) for row in range(stop - start)]
    return torch.tensor(positions, dtype=dtype, device=device)


def get_batch_on_this_cp_rank(
    batch: Mapping[str, Any], cp_group: Group | Sequence[Group] | None = None
) -> dict[str, Any]:
    """Returns the calling rank's part of a batch that all ranks of a group have whole.

    As Megatron-Core's, tensors are cut along dimension 1, `attention_mask` along dimension 2, and
    None stays None. A batch with `cu_seqlens_padded` (or, without padding, `cu_seqlens`) holds
    packed sequences `[1, t, ...]`; cumulative and largest lengths are of the whole batch, and stay.

    Args:
        batch: The tensors by name.
        cp_group: Who shares the sequences; of `a2a+p2p` the two groups; None for the
            context-parallel group of `parallel_state`.

    Raises:
        OptionError: If a tensor cannot be cut in equal parts.
        GroupError: If the calling rank is not in the group.
    """
    if cp_group is None:
        cp_group = parallel_state.get_context_parallel_group()
    cp_size, cp_rank = _place(cp_group)
    if cp_size == 1:
        return {**batch}
    cu_seqlens = next((batch[name] for name in _PACKED if batch.get(name) is not None), None)

    def part(name: str, x: Any) -> Any:
        dim = 2 if name == "attention_mask" else 1
        if x is None or name in _WHOLE:
            return x
        if len(x.shape) <= dim:
            raise refuse_option(
                f"{name} of shape {[*x.shape]} has no dimension {dim} to cut among ranks",
                "expected [b, s, ...]; of attention_mask [b, 1, s, s]",
            )
        if cu_seqlens is None:
            return take_zigzag(x, dim, cp_size, cp_rank)
        rows = thd_partition_indices(cu_seqlens, x.shape[dim], cp_size, cp_rank, device=x.device)
        return x.index_select(dim, rows)

    return {name: part(name, x) for name, x in batch.items()}


def _place(cp_group: Group | Sequence[Group]) -> tuple[int, int]:
    """Returns how many ranks share the sequences, and which of them this one is."""
    two = isinstance(cp_group, list | tuple)
    inner, outer = members("a2a+p2p" if two else "p2p", cp_group)
    return inner.size * outer.size, outer.rank * inner.size + inner.rank


def _ranges(length: int, cp_size: int, cp_rank: int) -> tuple[range, ...]:
    """Returns the positions of a rank's rows; one rank alone has all, in any number."""
    if (cp_size, cp_rank) == (1, 0):
        return (range(length),)
    return zigzag_ranges(length, cp_size, cp_rank)


def _padded(bounds: Sequence[int], factor: int) -> list[int]:
    """Returns cumulative rows when the rows of each sequence are a multiple of a factor."""
    if factor < 1:
        raise refuse_option(
            f"divisibility_factor is {factor}", "expected 2 * cp or a multiple of it"
        )
    lengths = (stop - start for start, stop in pairwise(bounds))
    return [0, *accumulate(-(-length // factor) * factor for length in lengths)]


def _as_given(values: list[int], like: Cumulative) -> Cumulative:
    if isinstance(like, np.ndarray):
        return np.array(values, like.dtype)
    if not isinstance(like, torch.Tensor):
        return values
    return torch.tensor(values, dtype=like.dtype, device=like.device)


extend.guard(globals())
