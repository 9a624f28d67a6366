"""Attention of `torch.nn.functional`: one command of a fused kernel, or three that keep weights."""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.attention import backends
from kernbench.attention.bands import CAUSAL, EVERYTHING, Bands, bands
from kernbench.attention.numbers import Dropout
from kernbench.attention.rows import in_order
from kernbench.autograd.function import Function
from kernbench.errors import call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.nn.dropouts import check_probability, dropout
from kernbench.nn.vectors import pad
from kernbench.operations.attention import Attended, Attention, attend, attend_backward
from kernbench.operations.attention_backends import SDPBackend, allowed
from kernbench.operations.creation import ones, zeros_like
from kernbench.operations.elementwise import broadcast
from kernbench.operations.fused import broadcasts, kernel
from kernbench.operations.linalg import matmul
from kernbench.operations.random import drawn_seed
from kernbench.operations.shaping import repeat_interleave
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.host_time import is_recorded, spend_autograd, spend_views
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns `softmax(query @ key.mT * scale + mask) @ value`.

    One command, which keeps the logarithm of each row's sum, and one for the gradients, which
    computes the weights once more: no matrix of scores lies in memory. The first backend is taken
    that `torch.nn.attention.sdpa_kernel` allows and that takes the operands, as PyTorch's do on an
    H200 (`attention.backends`). float64, other dimensions than four and some widths are left to
    `MATH`: two matrix products, with the weights in memory between them. On the host there are
    `FLASH_ATTENTION`, which takes everything there, and `MATH`.

    Args:
        query: Tensor of shape `[..., heads, L, E]`.
        key: Tensor of shape `[..., heads, S, E]`; leading dimensions are broadcast.
        value: Tensor of shape `[..., heads, S, V]`.
        attn_mask: Tensor that broadcasts to `[..., heads, L, S]`: bools, True for a key to see, or
            numbers to add to the scores, which may need a gradient.
        dropout_p: Probability with which an attention weight is dropped. What is dropped follows
            from a number that the rank's generator draws during the call.
        is_causal: Whether query i sees keys 0 to i only; not together with `attn_mask`.
        scale: Factor of the scores; 1 / sqrt(E) by default.
        enable_gqa: Whether keys and values may have fewer heads, each for a group of queries.

    Returns:
        A tensor of shape `[..., heads, L, V]`; 0 for queries that see no key.

    Raises:
        OptionError: If `dropout_p` is not between 0 and 1.
        TensorError: If shapes, types or devices do not fit, `attn_mask` and `is_causal` are given
            together, or none of the allowed backends takes the operands.
    """
    check_probability(dropout_p)
    call = _Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    shape = _checked(call)
    # Without features, every score is 0.
    factor = 1 / sqrt(max(query.window.shape[-1], 1)) if scale is None else scale
    backend = _chosen(call)
    if backend is SDPBackend.MATH:
        return _with_weights(call, factor)
    plain = _plain(call)
    q, k, v = (query, key, value) if plain else _in_four_dimensions(call, shape)
    width, added = shape[-1], 0
    if query.device.index is not None:
        added = backends.padding(_KERNELS[backend], width)
    if added:
        q, k, v = (pad(each, (0, added)) for each in (q, k, v))
    drops = Dropout(dropout_p, drawn_seed(query.device)) if dropout_p else None
    seen = _seen(q, k, is_causal)
    if query.device.index is not None:
        attn_mask = _bias(call)
    mask = None if attn_mask is None else _mask_of_four(attn_mask, shape)
    # Where PyTorch has no such kernel, its matrix product lies row by row.
    row_major = not plain or query.window.shape[3] != value.window.shape[3]
    found, _ = attended(q, k, v, mask, seen, factor, drops, _KERNELS[backend], row_major)
    if added:
        found = found[..., :width]
    return found if found.window.shape == shape else found.reshape(shape)


class _Call(NamedTuple):
    """What attention was asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout_p: float
    causal: bool
    gqa: bool


# Attention as an operation with a gradient


class _Attended(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        patterns: tuple[Bands, ...],
        scale: float,
        drops: Dropout | None,
        backend: str,
        row_major: bool,
    ) -> tuple[Tensor, Tensor]:
        given = Attention(query, key, value, patterns, scale, bias, dropout=drops, backend=backend)
        found: Attended = attend(given, row_major=row_major)
        ctx.label = f"ScaledDotProduct{backend.capitalize()}AttentionBackward0"
        ctx.rest = patterns, scale, drops, backend
        ctx.save_for_backward(query, key, value, bias, found.out, found.lse)
        ctx.mark_non_differentiable(found.lse)
        ctx.set_materialize_grads(False)
        return found.out, found.lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, out, lse = ctx.saved_tensors
        patterns, scale, drops, backend = ctx.rest
        given = Attention(query, key, value, patterns, scale, bias, dropout=drops, backend=backend)
        slopes = attend_backward(given, grad, out, lse, wants_bias=ctx.needs_input_grad[3])
        return slopes.query, slopes.key, slopes.value, slopes.bias, *[None] * 5


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seen: Bands,
    scale: float,
    drops: Dropout | None,
    backend: str,
    row_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns attention, and the logarithms of the sums of rows; autograd records it.

    Args:
        query: As in `operations.attention.Attention`, and so the others.
        bias: What is added to the scores, or which are seen.
        seen: What all batch elements see.
        scale: Factor of the scores.
        drops: Which weights are dropped.
        backend: Whose kernel.
        row_major: Whether the result lies row by row, however the query lies.
    """
    process = current_process()
    if query.is_cuda and is_recorded(process):
        # In PyTorch autograd records the kernel itself, and keeps its result detached.
        spend_autograd(process)
        spend_views(query)
    found: tuple[Tensor, Tensor] = _Attended.apply(
        query, key, value, bias, (seen,), scale, drops, backend, row_major
    )
    return found


def _seen(query: Tensor, key: Tensor, causal: bool) -> Bands:
    rows, columns = query.window.shape[2], key.window.shape[2]
    return bands(in_order(rows), in_order(columns), CAUSAL if causal else EVERYTHING)


# Operands


def _checked(call: _Call) -> tuple[int, ...]:
    """Returns the shape of the result.

    Raises:
        TensorError: If the operands do not fit each other.
    """
    operands = call[:3]
    q, k, v = (each.window.shape for each in operands)
    types = {each.dtype for each in operands}
    wrong = ""
    if min(len(q), len(k), len(v)) < 2:
        wrong = "each needs at least 2 dimensions"
    elif len(types) > 1:
        wrong = (
            f"expected query, key and value of one type, got {call.query.dtype}, {call.key.dtype} "
            f"and {call.value.dtype}"
        )
    elif not call.query.dtype.is_floating_point or call.query.dtype.itemsize == 1:
        wrong = f"not implemented for {call.query.dtype}"
    elif q[-1] != k[-1]:
        wrong = f"the last dimensions of query and key differ: {q[-1]} and {k[-1]}"
    elif k[-2] != v[-2]:
        wrong = f"key and value are of different length: {k[-2]} and {v[-2]}"
    elif call.gqa and min(len(q), len(k), len(v)) < 3:
        wrong = "enable_gqa needs a dimension of heads before the last two"
    if wrong:
        raise TensorError(
            f"scaled_dot_product_attention: {wrong}",
            [
                site_fact(call_site()),
                f"query {list(q)}, key {list(k)}, value {list(v)}",
                "expected [..., L, E], [..., S, E] and [..., S, V]",
            ],
        )
    heads = [each[:-2] for each in (q, k, v)]
    if call.gqa:
        for each in (k, v):
            if each[-3] != q[-3] and (not each[-3] or q[-3] % each[-3]):
                raise TensorError(
                    "Number of heads in key and value must divide the number of heads in query, "
                    f"got {each[-3]} and {q[-3]}",
                    [site_fact(call_site())],
                )
        heads = [(*each[:-1], q[-3]) for each in heads]
    shape = (*broadcast("scaled_dot_product_attention", heads), q[-2], v[-1])
    if call.mask is not None:
        _check_mask(call.mask, call, (*shape[:-1], k[-2]))
    return shape


def _check_mask(mask: Tensor, call: _Call, scores: tuple[int, ...]) -> None:
    wrong = ""
    if call.causal:
        wrong = "Explicit attn_mask should not be set when is_causal=True"
    elif mask.dtype not in {dtypes.bool_, dtypes.float32, call.query.dtype}:
        wrong = (
            f"Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {call.query.dtype} instead."
        )
    elif len(mask.window.shape) < 2 or not broadcasts(mask.window.shape, scores):
        wrong = (
            f"attn_mask of shape {list(mask.window.shape)} does not broadcast to the scores' "
            f"{list(scores)}"
        )
    if wrong:
        raise TensorError(f"_scaled_dot_product_attention: {wrong}", [site_fact(call_site())])


def _plain(call: _Call) -> bool:
    """Returns whether the operands are as kernels take them: four dimensions, nothing broadcast."""
    q, k, v = (each.window.shape for each in call[:3])
    return (
        len(q) == len(k) == len(v) == 4
        and q[0] == k[0]
        and k[:2] == v[:2]
        and (call.gqa or q[1] == k[1])
    )


def _in_four_dimensions(call: _Call, shape: tuple[int, ...]) -> list[Tensor]:
    """Returns views of query, key and value as kernels take them; repeats what views cannot.

    Args:
        call: What was asked for.
        shape: Shape of the result.
    """
    lead = shape[:-2]
    groups = {each.window.shape[-3] if len(each.window.shape) > 2 else 1 for each in call[1:3]}
    shared = len(groups) == 1 and (call.gqa or groups == {1})
    found = []
    for number, each in enumerate(call[:3]):
        heads, whole = lead, each
        if shared and number:
            heads = (*lead[:-1], *groups) if lead else ()
        elif call.gqa:
            whole = _repeated(each, lead[-1])
        whole = whole.expand(*heads, *each.window.shape[-2:])
        found.append(whole.reshape(_four(whole.window.shape)))
    return found


def _mask_of_four(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    old = mask.window.shape
    if len(old) > 4 or (len(shape) > 4 and len(old) == 4 and old[0] != 1):
        # Its batch dimensions become one, as those of the result do.
        mask = mask.expand(*shape[:-3], *old[-3:])
    return mask if len(mask.window.shape) == 4 else mask.reshape(_four(mask.window.shape))


def _four(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape of four dimensions with as many elements: all before the third last one."""
    ones = (1,) * max(0, 4 - len(shape))
    count = 1
    for size in shape[:-3]:
        count *= size
    return (*ones, *shape) if ones else (count, *shape[-3:])


def _repeated(each: Tensor, heads: int) -> Tensor:
    groups = each.window.shape[-3]
    return each if heads == groups else repeat_interleave(each, heads // groups, dim=-3)


# Which kernel

_KERNELS: Final = {
    SDPBackend.CUDNN_ATTENTION: backends.CUDNN,
    SDPBackend.FLASH_ATTENTION: backends.FLASH,
    SDPBackend.EFFICIENT_ATTENTION: backends.EFFICIENT,
    SDPBackend.MATH: backends.MATH,
}
"""Backends of devices, as machine files name them."""

_ON_HOST: Final = (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
"""Backends of the host; both take everything."""


def _chosen(call: _Call) -> SDPBackend:
    """Returns the first of the allowed backends that takes the operands.

    Raises:
        TensorError: If there is none; the texts are PyTorch's.
    """
    hosted = call.query.device.index is None
    known = _ON_HOST if hosted else tuple(_KERNELS)
    mask = call.mask
    asked = backends.Call(
        [each.window.shape for each in call[:3]],
        str(call.query.dtype),
        mask is not None,
        mask is not None and mask.requires_grad,
        call.dropout_p,
        call.causal,
        call.gqa,
    )
    tried: list[str] = []
    for backend in allowed():
        if backend not in known:
            continue
        wrong = "" if hosted else backends.refusal(_KERNELS[backend], asked)
        if not wrong:
            return backend
        tried.append(f"{backend.name} takes no such operands: {wrong}")
    summary = "No available kernel. Aborting execution."
    if not tried:
        summary = (
            "No viable backend for scaled_dot_product_attention was found. This is likely due to "
            "turning off both the math kernel and the fused kernels."
        )
        tried = [f"on {call.query.device} there are {', '.join(each.name for each in known)}"]
    raise TensorError(
        summary,
        [site_fact(call_site()), *tried],
        hint="add another one to sdpa_kernel([...]); SDPBackend.MATH takes all operands",
    )


# With the weights in memory


def _with_weights(call: _Call, factor: float) -> Tensor:
    """Returns attention by the kernels of `_scaled_dot_product_attention_math`.

    16-bit floats are computed in float32; queries and keys both take the root of the factor.
    """
    dtype = call.query.dtype
    narrow = dtype.itemsize == 2
    query, key, value = (each.float() if narrow else each for each in call[:3])
    if call.gqa:
        key, value = (_repeated(each, query.window.shape[-3]) for each in (key, value))
    root = sqrt(abs(factor))
    scores = matmul(query * (root if factor >= 0 else -root), key.mT * root)
    if call.causal:
        seen = ones(scores.window.shape[-2:], dtype=dtypes.bool_, device=scores.device)
        call = call._replace(mask=seen.tril())
    bias = _bias(call)
    if bias is not None:
        scores = scores + bias
    weights = kernel(
        "_safe_softmax", _weights, (scores,), scores.window.shape, scores.dtype, dim=-1
    )
    weights = dropout(weights, call.dropout_p)
    weights.detach().to(dtype)  # the operator returns them, too
    return matmul(weights, value).to(dtype)


def _bias(call: _Call) -> Tensor | None:
    """Returns what is added to scores: 0 and -inf for the bools of a mask."""
    mask = call.mask
    if mask is None or mask.dtype is not dtypes.bool_:
        return mask
    return zeros_like(mask, dtype=call.query.dtype).masked_fill_(mask.logical_not(), -inf)


def _weights(x: Array) -> Array:
    peak = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(x - np.where(np.isfinite(peak), peak, 0))
    total = np.sum(powers, axis=-1, keepdims=True)
    # The weights of a query that sees no key are 0, as in PyTorch.
    result: Array = powers / np.where(total == 0, 1, total)
    return result
