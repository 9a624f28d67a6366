"""One call of `cp_attention`, with all that its arguments say, as every scheme gets it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import kernbench.torch as torch
from kernbench import extend
from kernbench.cp.sequences import Sequences, Sight
from kernbench.errors import OptionError
from kernbench.parallel.members import Group, refuse_option


def bad_option(text: str, *facts: str, hint: str = "") -> OptionError:
    """Returns the error of a refused argument of `cp_attention`, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report.
    """
    return refuse_option(f"cp_attention: {text}", *facts, hint=hint)


class Members(NamedTuple):
    """Ranks that share sequences or heads.

    Attributes:
        group: Their group; None for a rank alone.
        size: How many.
        rank: The calling one's place.
    """

    group: Group | None = None
    size: int = 1
    rank: int = 0


class Arguments(NamedTuple):
    """What `cp_attention` is called with but for tensors of heads; see there."""

    cp_group: Any
    cp_comm_type: Any
    qkv_format: Any
    attn_mask_type: Any
    window_size: Any
    softmax_type: Any
    softmax_scale: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    cu_seqlens_q_padded: Any
    cu_seqlens_kv_padded: Any
    max_seqlen_q: Any
    max_seqlen_kv: Any
    pad_between_seqs: Any
    return_max_logit: Any
    grad_comm_dtype: Any
    cp_stream: Any


class Problem(NamedTuple):
    """What is computed, by whom.

    Attributes:
        comm: The name of the scheme.
        dim: The dimension of tokens: 1 in `[b, s, heads, width]`, 0 in `[s, b, heads, width]`.
            Packed tokens are of the second kind, with b = 1.
        queries: Their sequences.
        keys: Sequences of keys and values.
        mask: What a query sees of its own sequence.
        scale: Factor of the scores.
        inner: Ranks that exchange heads for tokens.
        outer: Ranks among which keys and values go around, or are gathered.
        wants_peak: Whether the largest scores are wanted.
        message: Type in which gradients of keys and values travel.
        stream: Stream of every second step; None: all steps run on the current one.
    """

    comm: str
    dim: int
    queries: Sequences
    keys: Sequences
    mask: extend.Mask
    scale: float
    inner: Members
    outer: Members
    wants_peak: bool
    message: torch.dtype
    stream: "torch.cuda.Stream | None"


class Found(NamedTuple):
    """What a scheme finds.

    Attributes:
        out: As the query is laid out.
        peak: The largest score of each head, `[heads]`; None unless wanted.
        saved: Tensors that backward needs.
    """

    out: torch.Tensor
    peak: torch.Tensor | None
    saved: "Sequence[torch.Tensor | None]"


class Grads(NamedTuple):
    """Gradients, each in the shape and type of its tensor; None for those that were not given."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    sink: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def attention_of(
    given: Problem,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    part: Sight,
    bias: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
) -> extend.Attention:
    """Returns attention of the rows of a sight.

    Args:
        given: What is computed.
        query: All queries of the rank, `[b, heads, rows, width]`.
        key: Keys that the sight is of.
        value: Their values.
        part: What the queries see of them.
        bias: Added to the scores of the sight's rows.
        sink: A score more for each row, `[heads]`.
    """
    return extend.Attention(
        query.narrow(2, part.query, part.queries),
        key.narrow(2, part.key, part.keys),
        value.narrow(2, part.key, part.keys),
        part.patterns,
        given.scale,
        bias,
        sink,
    )


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which parts of a result are added up."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def by_heads(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns a view `[b, heads, rows, width]`."""
    return x.permute(0, 2, 1, 3) if dim else x.permute(1, 2, 0, 3)


def by_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Undoes `by_heads`."""
    return x.permute(0, 2, 1, 3) if dim else x.permute(2, 0, 1, 3)
