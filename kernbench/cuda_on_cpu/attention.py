"""Attention of cuDNN, and PyTorch's flash and memory-efficient attention for CUDA.

It is PyTorch's own on a CPU where that takes the operands; else, and for weights that are dropped
or gradients of masks, it is computed in float32 with the matrix of scores.
"""

from typing import Final

import torch

from kernbench.cuda_on_cpu.table import SEEDS, Tensors, all_wide, implements

_ATEN: Final = torch.ops.aten

Found = tuple[torch.Tensor | int | None, ...]


def _repeated(each: torch.Tensor, heads: int) -> torch.Tensor:
    groups = each.shape[1]
    return each if groups == heads else each.repeat_interleave(heads // groups, 1)


def _summed(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns gradients of heads summed over those that share a key."""
    if grad.shape != like.shape:
        groups = like.shape[1]
        grad = grad.unflatten(1, (groups, grad.shape[1] // groups)).float().sum(2)
    return grad.to(like.dtype)


def _weights(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Returns the weights of attention, float32 (or float64)."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.mT
    if bias is not None:
        scores = scores + bias
    if causal:
        unseen = _ATEN.ones_like(scores, dtype=torch.bool).triu_(1)
        scores = scores.masked_fill_(unseen, float("-inf"))
    return scores.softmax(-1).nan_to_num_(0.0)


def _dropped(weights: torch.Tensor, dropout_p: float, seed: torch.Tensor) -> torch.Tensor:
    """Returns the factor of each weight: 0, or 1 / (1 - p); the same for the same seed."""
    generator = torch.Generator()
    generator.manual_seed(int(seed))
    kept = _ATEN.empty_like(weights).bernoulli_(1 - dropout_p, generator=generator)
    return kept.div_(1 - dropout_p) if dropout_p < 1 else kept


def _forward(
    operands: Tensors,
    bias: torch.Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns attention, the logarithms of sums, and the seed of what is dropped."""
    query, key, value = operands
    heads = query.shape[1]
    seed = _ATEN.zeros([], dtype=torch.int64)
    if dropout_p:
        seed.random_(0, SEEDS)
    key, value = _repeated(key, heads), _repeated(value, heads)
    if not dropout_p and query.shape[3] == value.shape[3]:
        out, lse = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
        return out, lse, seed
    wide_query, wide_key, wide_value, wide_bias = all_wide(query, key, value, bias)
    weights = _weights(wide_query, wide_key, wide_bias, causal, scale)
    if dropout_p:
        weights = weights * _dropped(weights, dropout_p, seed)
    lse = _ATEN.zeros(list(query.shape[:3]), dtype=torch.float32)  # the backward needs none
    return (weights @ wide_value).to(query.dtype), lse, seed


def _backward(
    grad: torch.Tensor,
    operands: Tensors,
    found: Tensors,
    bias: torch.Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    *,
    wants_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Returns the gradients of query, key, value and bias."""
    query, key, value = operands
    out, lse, seed = found
    heads = query.shape[1]
    keys, values = _repeated(key, heads), _repeated(value, heads)
    if not dropout_p and query.shape[3] == value.shape[3] and not wants_bias:
        slopes = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, keys, values, out, lse, 0.0, causal, attn_mask=bias, scale=scale
        )
        return slopes[0], _summed(slopes[1], key), _summed(slopes[2], value), None
    above, q, k, v, added = all_wide(grad, query, keys, values, bias)
    weights = _weights(q, k, added, causal, scale)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    kept = weights
    slope = above @ v.mT
    if dropout_p:
        drops = _dropped(weights, dropout_p, seed)
        kept, slope = weights * drops, slope * drops
    slope = weights * (slope - (slope * weights).sum(-1, keepdim=True))
    return (
        (slope @ k * factor).to(query.dtype),
        _summed(slope.mT @ q * factor, key),
        _summed(kept.mT @ above, value),
        slope.to(bias.dtype) if wants_bias and bias is not None else None,
    )


def _laid_out_as(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns a result that lies in memory as the query does, as kernels of CUDA leave it."""
    if out.shape != query.shape or out.stride() == query.stride():
        return out
    return _ATEN.empty_like(query).copy_(out)


def _by_rows(each: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose heads lie in memory behind its rows, as `_efficient` leaves it."""
    return each.transpose(1, 2).contiguous().transpose(1, 2)


def _slopes_as(found: Found, operands: Tensors) -> Found:
    """Returns gradients that lie in memory as the operands do."""
    pairs = zip(found, operands, strict=False)
    return tuple(_laid_out_as(slope, like) for slope, like in pairs)


def _none() -> torch.Tensor:
    return _ATEN.zeros([], dtype=torch.int64)


@implements("_scaled_dot_product_cudnn_attention")
def _cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Found:
    del compute_log_sumexp, return_debug_mask
    out, lse, seed = _forward((query, key, value), attn_bias, dropout_p, is_causal, scale)
    rows, keys = query.shape[2], key.shape[2]
    out = _laid_out_as(out, query)
    return out, lse.unsqueeze(-1), None, None, rows, keys, seed, _none(), None


@implements("_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    attn_bias: torch.Tensor | None,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Found:
    del philox_offset, cum_seq_q, cum_seq_k, max_q, max_k
    found = out, logsumexp.squeeze(-1), philox_seed
    bias = attn_bias if attn_bias is not None and attn_bias.dim() == 4 else None
    operands = query, key, value
    slopes = _backward(grad_out, operands, found, bias, dropout_p, is_causal, scale)
    return _slopes_as(slopes, operands)


@implements("_scaled_dot_product_flash_attention")
def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Found:
    del return_debug_mask
    out, lse, seed = _forward((query, key, value), None, dropout_p, is_causal, scale)
    rows, keys = query.shape[2], key.shape[2]
    nothing = _ATEN.empty([0], dtype=query.dtype)
    out = _laid_out_as(out, query)
    return out, lse, None, None, rows, keys, seed, _none(), nothing


@implements("_scaled_dot_product_flash_attention_backward")
def _flash_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> Found:
    del cum_seq_q, cum_seq_k, max_q, max_k, philox_offset
    found, operands = (out, logsumexp, philox_seed), (query, key, value)
    slopes = _backward(grad_out, operands, found, None, dropout_p, is_causal, scale)
    return _slopes_as(slopes, operands)


@implements("_scaled_dot_product_efficient_attention")
def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Found:
    del compute_log_sumexp
    out, lse, seed = _forward((query, key, value), attn_bias, dropout_p, is_causal, scale)
    return _by_rows(out), lse, seed, _none()


@implements("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Found:
    del philox_offset
    bias = attn_bias if attn_bias is not None and attn_bias.dim() == 4 else None
    found, operands = (out, logsumexp, philox_seed), (query, key, value)
    wants = grad_input_mask[3] and bias is not None
    slopes = _backward(
        grad_out_, operands, found, bias, dropout_p, is_causal, scale, wants_bias=wants
    )
    return *[_by_rows(each) for each in slopes[:3]], slopes[3]
