"""What routers do with scores, as plain functions under Megatron-Core's names."""

from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

import kernbench.torch as torch
from kernbench import extend
from kernbench.extend import Choices

Array = np.ndarray[Any, Any]


def group_limited_topk(
    scores: torch.Tensor, topk: int, num_groups: int, group_topk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest scores of a token in its best groups, and whose they are.

    A group is as good as its `topk / group_topk` largest scores in all.

    Args:
        scores: `[tokens, experts]`.
        topk: How many.
        num_groups: How many groups there are.
        group_topk: From how many of them.
    """
    tokens, experts = scores.shape
    each = experts // num_groups
    within, _ = torch.topk(scores.reshape(tokens, num_groups, each), topk // group_topk, dim=-1)
    _, best = torch.topk(within.sum(-1), group_topk, dim=-1)
    kept = torch.zeros(tokens, num_groups, device=scores.device).scatter(1, best, 1.0)
    mask = kept.unsqueeze(-1).expand(tokens, num_groups, each).reshape(tokens, experts)
    values, places = torch.topk(scores.masked_fill(mask == 0, float("-inf")), topk, dim=-1)
    return values, places


def topk_routing_with_score_function(
    logits: torch.Tensor,
    topk: int,
    use_pre_softmax: bool = False,
    num_groups: int | None = None,
    group_topk: int | None = None,
    scaling_factor: float | None = None,
    score_function: str = "softmax",
    expert_bias: torch.Tensor | None = None,
    *,
    choices: Choices | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights of the choices of tokens, and which choices these are.

    Scores are computed in float32, or float64 of such logits.

    Args:
        logits: `[tokens, experts]`.
        topk: Experts that a token chooses.
        use_pre_softmax: Whether `softmax` comes before the choice.
        num_groups: Groups of experts, of which `group_topk` are chosen first.
        group_topk: How many groups.
        scaling_factor: What the weights are multiplied with.
        score_function: `softmax`, or `sigmoid`, whose scores are divided by their sum.
        expert_bias: Added to sigmoids for the choice alone, `[experts]`.
        choices: What tokens choose, whatever the scores are; its gates replace the weights.

    Returns:
        Weights `[tokens, experts]`, 0 where an expert is not chosen; and a map of bools.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32

    def choose(scores: torch.Tensor) -> torch.Tensor:
        if group_topk and num_groups:
            _, places = group_limited_topk(scores, topk, num_groups, group_topk)
        else:
            _, places = torch.topk(scores, topk, dim=1)
        if choices is None:
            return places
        given = choices.experts
        return extend.fused("moe::routing", lambda _: given, [places])

    if score_function == "softmax":
        if use_pre_softmax:
            scores = torch.softmax(logits, dim=-1, dtype=wide)
            places = choose(scores)
            weights = scores.gather(1, places)
        else:
            places = choose(logits)
            weights = torch.softmax(logits.gather(1, places), dim=-1, dtype=wide)
    else:
        scores = torch.sigmoid(logits.to(wide))
        places = choose(scores if expert_bias is None else scores + expert_bias.to(wide))
        weights = scores.gather(1, places)
        if topk > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    if choices is not None and choices.gates is not None:
        gates = choices.gates
        weights = extend.fused("moe::gates", lambda _: gates, [weights.detach()])
    if scaling_factor:
        weights = weights * scaling_factor
    weights = weights.to(logits.dtype)
    probs = torch.zeros_like(logits).scatter(1, places, weights)
    routing_map = torch.zeros(*logits.shape, dtype=torch.bool, device=logits.device)
    routing_map.scatter_(1, places, True)
    return probs, routing_map


def compute_routing_scores_for_aux_loss(logits: torch.Tensor, score_function: str) -> torch.Tensor:
    """Returns the probability of each expert for each token, whatever is chosen."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if score_function == "softmax":
        return torch.softmax(logits, dim=-1, dtype=wide)
    scores = torch.sigmoid(logits.to(wide))
    shares: torch.Tensor = scores / (scores.sum(-1, keepdim=True) + 1e-20)
    return shares


def switch_load_balancing_loss_func(
    probs: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    total_num_tokens: float,
    topk: int,
    num_experts: int,
    moe_aux_loss_coeff: float,
) -> torch.Tensor:
    """Returns `coeff x E x sum_e f_e P_e`: the share of choices, and the mean probability.

    Args:
        probs: Of this rank's tokens, `[tokens, experts]`.
        tokens_per_expert: Choices of all tokens that count.
        total_num_tokens: How many tokens these are.
        topk: Choices of each.
        num_experts: E.
        moe_aux_loss_coeff: The coefficient.
    """
    factor = num_experts * moe_aux_loss_coeff / (topk * total_num_tokens**2)
    loss: torch.Tensor = (probs.sum(0) * tokens_per_expert).sum() * factor
    return loss


def z_loss_func(logits: torch.Tensor, z_loss_coeff: float) -> torch.Tensor:
    """Returns `coeff x mean(logsumexp(logits)^2)`."""
    loss: torch.Tensor = torch.logsumexp(logits, -1).square().mean() * z_loss_coeff
    return loss


def sinkhorn(cost: torch.Tensor, tol: float = 1e-4) -> torch.Tensor:
    """Returns `exp(cost)` with rows and columns scaled until column factors change by less.

    One command; PyTorch has some for each of its steps, and a read by the host.
    """

    def scale(values: Array) -> Array:
        found = np.exp(values)
        rows, columns = values.shape
        column, error = np.ones(columns, values.dtype), np.inf
        row = np.ones(rows, values.dtype)
        while error > tol:
            row = 1 / rows / ((column * found).sum(1) + 1e-8)
            new = 1 / columns / ((row[:, None] * found).sum(0) + 1e-8)
            error, column = float(np.abs(column - new).mean()), new
        return column * found * row[:, None]

    return extend.fused("moe::sinkhorn", scale, [cost])


def get_capacity(
    num_tokens: int, num_experts: int, capacity_factor: float, min_capacity: int | None = None
) -> int:
    """Returns how many rows an expert takes: `ceil(num_tokens / num_experts x factor)`.

    Args:
        num_tokens: Choices of all tokens of the rank.
        num_experts: Experts among which they choose.
        capacity_factor: Over what each would get if all got as many.
        min_capacity: The least; None for any.
    """
    return max(ceil(num_tokens / num_experts * capacity_factor), min_capacity or 0)


def apply_router_token_dropping(
    routing_probs: torch.Tensor,
    routing_map: torch.Tensor,
    capacity: int,
    drop_policy: str = "probs",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns weights and map of the choices that experts take.

    Args:
        routing_probs: `[tokens, experts]`.
        routing_map: Which choices there are.
        capacity: Rows that an expert takes.
        drop_policy: `probs` for those of the largest weights, `position` for the first.
    """

    def kept(probs: Array, chosen: Array) -> Array:
        rank = np.where(chosen, probs if drop_policy == "probs" else 0.0, -np.inf)
        order = np.argsort(-rank, axis=0, kind="stable")[:capacity]
        inside = np.zeros(chosen.shape, bool)
        np.put_along_axis(inside, order, True, axis=0)
        return inside & chosen

    operands = [routing_probs.detach(), routing_map]
    inside = extend.fused("moe::capacity", kept, operands, dtype=torch.bool)
    return routing_probs * inside.to(routing_probs.dtype), inside


def row_map(routing_map: torch.Tensor, rows: int, *, capacity: int | None = None) -> torch.Tensor:
    """Returns the token of each row, rows sorted by expert, and for an expert by token.

    Args:
        routing_map: `[tokens, experts]`.
        rows: How many there are.
        capacity: Rows of each expert, filled up with tokens that did not choose it; None: those
            that did.
    """

    def find(chosen: Array) -> Array:
        if capacity is None:
            return np.nonzero(chosen.T)[1]
        return np.argsort(~chosen, axis=0, kind="stable")[:capacity].T.reshape(-1)

    traffic = routing_map.numel() + 8 * rows
    return extend.fused(
        "moe::row_map", find, [routing_map], shape=[rows], dtype=torch.int64, traffic=traffic
    )


def permuted_probs(
    probs: torch.Tensor, routing_map: torch.Tensor, rows: torch.Tensor, *, padded: bool
) -> torch.Tensor:
    """Returns the weight of each row, 0 for one that fills up.

    Args:
        probs: `[tokens, experts]`.
        routing_map: Which choices there are.
        rows: Of `row_map`.
        padded: Whether each expert has as many.
    """

    def key(chosen: Array, tokens: Array) -> tuple[Array, Array]:
        if not padded:
            return np.nonzero(chosen.T)[0], tokens
        experts = chosen.shape[1]
        return np.repeat(np.arange(experts), len(tokens) // experts), tokens

    def pick(values: Array, chosen: Array, tokens: Array) -> Array:
        expert, token = key(chosen, tokens)
        return values[token, expert] * chosen[token, expert]

    def put(grad: Array, values: Array, chosen: Array, tokens: Array) -> Array:
        expert, token = key(chosen, tokens)
        out = np.zeros_like(values)
        out[token, expert] = grad * chosen[token, expert]
        return out

    return extend.fused(
        "moe::permute_probs",
        pick,
        [probs, routing_map, rows],
        shape=[rows.shape[0]],
        gradients=[put, None, None],
        traffic=2 * rows.shape[0] * (probs.element_size() + 8),
    )


class Order:
    """How rows that came from some ranks are sorted by expert; found when rows are moved.

    Args:
        sizes: Rows from each rank for each expert, `[ranks, experts]`.
    """

    def __init__(self, sizes: Array) -> None:
        self._sizes = sizes

    @cached_property
    def forth(self) -> Array:
        """Place of each sorted row among those that came."""
        sizes = self._sizes.reshape(-1)
        starts = (np.cumsum(sizes) - sizes).reshape(self._sizes.shape).T.reshape(-1)
        each = self._sizes.T.reshape(-1)
        return np.repeat(starts - (np.cumsum(each) - each), each) + np.arange(each.sum())

    @cached_property
    def back(self) -> Array:
        """Place of each row that came among the sorted ones."""
        back = np.empty_like(self.forth)
        back[self.forth] = np.arange(len(back))
        return back


def sort_chunks(x: torch.Tensor, order: Order, *, back: bool = False) -> torch.Tensor:
    """Returns rows in another order, which the host knows.

    Args:
        x: Rows, of one dimension or two.
        order: From the order in which they came to that of experts.
        back: Whether to go the other way.
    """
    return extend.fused(
        "moe::sort_chunks",
        lambda rows: rows[order.back if back else order.forth],
        [x],
        gradients=[lambda grad, _: grad[order.forth if back else order.back]],
        traffic=2 * x.numel() * x.element_size(),
    )


def permute(tokens: torch.Tensor, rows: torch.Tensor, *, fused: bool = False) -> torch.Tensor:
    """Returns the token of each row.

    Args:
        tokens: `[tokens, hidden]`.
        rows: Of `row_map`.
        fused: Whether it is one kernel each way, as Transformer Engine's.
    """
    if not fused:
        return tokens.index_select(0, rows)
    out: torch.Tensor = _Permuted.apply(tokens, rows)
    return out


def unpermute(
    x: torch.Tensor, rows: torch.Tensor, tokens: int, *, fused: bool = False
) -> torch.Tensor:
    """Returns the sum of the rows of each token; 0 for one without a row.

    Args:
        x: `[rows, hidden]`.
        rows: Of `row_map`.
        tokens: How many there are.
        fused: Whether it is one kernel each way, as Transformer Engine's.
    """
    if fused:
        out: torch.Tensor = _Unpermuted.apply(x, rows, tokens)
        return out
    zeros = torch.zeros(tokens, *x.shape[1:], dtype=x.dtype, device=x.device)
    return zeros.index_add_(0, rows, x)


def _taken(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the token of each row, in one command that reads tokens once and writes rows."""
    shape = [rows.shape[0], x.shape[1]]
    return extend.fused(
        "moe::permute",
        lambda values, at: values[at],
        [x, rows],
        shape=shape,
        traffic=_moved_once(x, rows, x.shape[0]),
    )


def _summed(x: torch.Tensor, rows: torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns the sum of each token's rows, in one command that reads rows and writes tokens."""

    def add(values: Array, at: Array) -> Array:
        out = np.zeros((tokens, values.shape[1]), values.dtype)
        order = np.argsort(at, kind="stable")
        found, starts = np.unique(at[order], return_index=True)
        if len(found):
            out[found] = np.add.reduceat(values[order], starts, axis=0)
        return out

    return extend.fused(
        "moe::unpermute",
        add,
        [x, rows],
        shape=[tokens, x.shape[1]],
        traffic=_moved_once(x, rows, tokens),
    )


def _moved_once(x: torch.Tensor, rows: torch.Tensor, tokens: int) -> int:
    """Returns the bytes of tokens, of their rows, and of the map."""
    return (tokens + rows.shape[0]) * x.shape[1] * x.element_size() + 8 * rows.shape[0]


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.tokens = x.shape[0]
        return _taken(x, rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(grad, ctx.saved_tensors[0], ctx.tokens), None


class _Unpermuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return _summed(x, rows, tokens)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _taken(grad, ctx.saved_tensors[0]), None, None
