"""`cp_attention`: attention over sequences that are cut among ranks."""

from typing import Any, Final

import kernbench.torch as torch
from kernbench.cp import checks, gathered, heads, ring
from kernbench.cp.checks import Groups
from kernbench.cp.lengths import Cumulative
from kernbench.cp.plan import plan_of
from kernbench.cp.problem import Arguments, Problem, wide

Tensor = torch.Tensor
_BYTES_PER_PAIR: Final = 128


class CpAttention(torch.autograd.Function):
    """All schemes: heads for tokens among some ranks, then keys and values among others."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Problem,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        bias: Tensor | None,
    ) -> Any:
        """Returns the output in the layout of `q`, or it and the largest scores.

        Args:
            ctx: What backward gets.
            given: What is computed.
            q: The rank's queries, packed ones with a batch dimension; so are the others.
            k: Keys.
            v: Values.
            sink: `[heads]`, or None.
            bias: Added to the scores, or None.
        """
        ctx.given, ctx.heads = given, q.shape[2]
        ctx.set_materialize_grads(False)
        q = heads.to_heads(given, q, given.queries)
        k, v = (heads.to_heads(given, each, given.keys) for each in (k, v))
        ctx.shapes = k.shape, v.shape
        if sink is not None:
            ctx.sink_type = sink.dtype
            sink = heads.my_heads(given, sink.to(wide(q.dtype)))
        if _gathers(given):
            found = gathered.forward(given, q, k, v, sink)
        else:
            found = ring.forward(given, q, k, v, sink, bias)
        ctx.save_for_backward(*found.saved)
        out = heads.to_tokens(given, found.out, given.queries)
        if found.peak is None:
            return out
        peak = heads.all_heads(given, found.peak)
        ctx.mark_non_differentiable(peak)
        return out, peak

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Returns the gradients of all tensors."""
        given: Problem = ctx.given
        needs_sink, needs_bias = ctx.needs_input_grad[4:6]
        # Held until all commands are issued.
        workspace = _workspace(given, ctx.heads, grad)
        grad = heads.to_heads(given, grad, given.queries)
        if _gathers(given):
            found = gathered.backward(given, ctx.saved_tensors, grad, needs_sink)
        else:
            found = ring.backward(
                given, ctx.shapes, ctx.saved_tensors, grad, needs_bias, needs_sink
            )
        dq = heads.to_tokens(given, found.query, given.queries)
        dk, dv = (heads.to_tokens(given, each, given.keys) for each in (found.key, found.value))
        dsink = found.sink
        if dsink is not None:
            dsink = heads.all_heads(given, dsink).to(ctx.sink_type) if needs_sink else None
        del workspace
        return None, dq, dk, dv, dsink, found.bias if needs_bias else None


def _workspace(given: Problem, count: int, grad: Tensor) -> Tensor | None:
    """Returns memory that backward of packed sequences needs if results must be deterministic.

    TransformerEngine leaves out tests with 2**30 pairs of a query and a key or more, for which
    cuDNN wants about 128 bytes each.

    Args:
        given: The sequences.
        count: Heads of the query.
        grad: Gradient of the output, on the device of the memory.
    """
    if not (given.queries.packed and torch.are_deterministic_algorithms_enabled()):
        return None
    longest = max(given.queries.room, default=0) * max(given.keys.room, default=0)
    pairs = len(given.queries.room) * count * longest
    return torch.empty(_BYTES_PER_PAIR * pairs, dtype=torch.uint8, device=grad.device)


def _gathers(given: Problem) -> bool:
    return given.comm == "all_gather" and given.outer.size > 1


def cp_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cp_group: Groups,
    cp_comm_type: str = "p2p",
    qkv_format: str = "bshd",
    attn_mask_type: str = "causal",
    window_size: tuple[int, int] | None = None,
    softmax_type: str = "vanilla",
    softmax_offset: Tensor | None = None,
    softmax_scale: float | None = None,
    cu_seqlens_q: Cumulative | None = None,
    cu_seqlens_kv: Cumulative | None = None,
    cu_seqlens_q_padded: Cumulative | None = None,
    cu_seqlens_kv_padded: Cumulative | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    pad_between_seqs: bool | None = None,
    return_max_logit: bool = False,
    core_attention_bias: Tensor | None = None,
    grad_comm_dtype: torch.dtype | None = None,
    cp_stream: "torch.cuda.Stream | None" = None,
    return_plan: bool = False,
) -> Any:
    """Returns attention over sequences that the ranks of a group share, as TransformerEngine does.

    Each sequence is cut into `2 * cp` equal chunks; rank r holds chunk r, then chunk
    `2 * cp - 1 - r`. Packed sequences are cut one by one, by their allocated lengths. All schemes
    return the same, but for rounding. Rows that are no tokens are never computed with, whatever
    they hold, and are exactly 0 in the output and in gradients; they travel with the others, so
    they must have been written. The host waits for nothing.

    | `cp_comm_type` | what travels |
    |---|---|
    | `p2p` | keys and values, around a ring, beside the attention of the step before |
    | `all_gather` | keys and values, all at once |
    | `a2a` | heads for tokens, and back; heads must be multiples of the ranks |
    | `a2a+p2p` | heads among the ranks of one group, keys and values around the other |

    What every rank has whole, `softmax_offset` and a bias of all queries, gets its whole gradient
    on every rank.

    Args:
        q: This rank's queries, `[b, s/cp, H, D]`, `[s/cp, b, H, D]` or `[t, H, D]`.
        k: Its keys, with G heads; H is a multiple of G.
        v: Its values, of any width Dv.
        cp_group: The ranks that share the sequences; None for a rank alone. For `a2a+p2p` two
            groups: ranks next to each other, and ranks that are as far apart as the first is large.
        cp_comm_type: The scheme.
        qkv_format: `bshd`, `sbhd`, or `thd` for packed sequences.
        attn_mask_type: `no_mask`, `causal`, `padding` or `padding_causal`. Packed sequences need a
            padding mask; `causal` is taken as `padding_causal`. Positions count from the beginning
            of each sequence, of queries and of keys.
        window_size: How many keys before and behind its own position a query sees; -1 for all. A
            window that the mask restricts further is taken as it does, with a warning.
        softmax_type: `vanilla`; `off-by-one` adds 1 to the sum of powers; `learnable` adds
            `exp(softmax_offset)`.
        softmax_offset: `[H]`, for `learnable`.
        softmax_scale: Factor of the scores; None: `1 / sqrt(D)`.
        cu_seqlens_q: Cumulative numbers of tokens of the whole batch, from 0 on: a sequence of
            integers, an array, or a tensor. If it is on a device, the host waits for its values,
            which do not exist while data is off. `bshd` and `sbhd` take it with padding masks.
        cu_seqlens_kv: Those of keys; if neither of the two is given, those of the queries.
        cu_seqlens_q_padded: Cumulative numbers of rows, which begin with a sequence's tokens; each
            is a multiple of `2 * cp`. Packed sequences need it.
        cu_seqlens_kv_padded: Those of keys.
        max_seqlen_q: Refuses sequences with more tokens.
        max_seqlen_kv: Refuses sequences with more tokens.
        pad_between_seqs: Whether rows behind a sequence's tokens, and behind the last sequence, are
            padding; None: whether the two kinds of lengths differ. False refuses lengths that do.
        return_max_logit: Whether to return the largest visible scaled score of each head, `[H]`,
            of all ranks; -inf if there is none.
        core_attention_bias: Added to the scores, `[1 or b, 1 or H, 1 or queries, s]`, the queries
            those of this rank, or of all; with `p2p` only, and not packed.
        grad_comm_dtype: Type in which gradients of keys and values travel to be added: around a
            ring, and with `all_gather`; None: float32 for 16-bit tensors, else their own. They are
            added in float32 or float64. What `a2a` sends keeps its type.
        cp_stream: Stream of every second step of `p2p` (forward) and `all_gather`; None: all steps
            run on the current stream.
        return_plan: Whether to return a `Plan` of what this rank computes and sends.

    Returns:
        The output in the layout of `q`, with Dv for D. If more is wanted a tuple: the output, the
        largest scores if wanted, the plan if wanted.

    Raises:
        OptionError: If a value breaks a rule; it is a `ValueError`. Nothing has been sent then.
        OperandError: If `q`, `k` or `v` is no tensor.
        UnsupportedError: If a bias is given to another scheme than `p2p`, or for packed sequences.
        GroupError: If the calling rank may not use a group (C8, C18).
        GroupMismatchError: If the ranks call it differently (C9).
        NoDataError: If lengths are on a device while data is off.

    Under `torch.use_deterministic_algorithms` the backward pass of packed sequences holds 128 bytes
    for each pair of a query and a key of `sequences * H * longest * longest`, as on hardware, and
    raises `OutOfMemoryError` if the device has no room for them.
    """
    given = Arguments(
        cp_group,
        cp_comm_type,
        qkv_format,
        attn_mask_type,
        window_size,
        softmax_type,
        softmax_scale,
        cu_seqlens_q,
        cu_seqlens_kv,
        cu_seqlens_q_padded,
        cu_seqlens_kv_padded,
        max_seqlen_q,
        max_seqlen_kv,
        pad_between_seqs,
        return_max_logit,
        grad_comm_dtype,
        cp_stream,
    )
    checks.check_bool("return_plan", return_plan)
    problem = checks.problem_of(given, q, k, v, softmax_offset, core_attention_bias)
    packed = qkv_format == "thd"
    if packed:
        q, k, v = (each.unsqueeze(1) for each in (q, k, v))
    sink = softmax_offset
    if softmax_type == "off-by-one":
        sink = torch.zeros(q.shape[2], dtype=torch.float32, device=q.device)
    elif sink is not None:
        sink = sink.reshape(-1)
    result: Any = CpAttention.apply(problem, q, k, v, sink, core_attention_bias)
    out: Tensor
    more: list[object]
    out, *more = result if return_max_logit else (result,)
    if packed:
        out = out.squeeze(1)
    if return_plan:
        more.append(plan_of(problem, q, k, v))
    return (out, *more) if more else out
