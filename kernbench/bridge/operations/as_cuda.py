"""Functions of PyTorch that are other operations on CUDA than on a CPU or without numbers.

PyTorch chooses by where a tensor is. Tensors of simulated devices are on the CPU, or on `meta`, so
attention would become a matrix of scores, `rms_norm` ten kernels, and dropout four. Here they are
CUDA's own operations, with PyTorch's own gradients: kernels for the CPU are registered for them, so
dispatch modes (costs, `torch.utils.checkpoint`'s policies) and DTensor see what they see on a GPU.

- `scaled_dot_product_attention`: `_scaled_dot_product_{cudnn,flash,efficient}_attention` or the
  matrix of scores, whichever PyTorch chooses on an H200 for the operands and `sdpa_kernel`. Numbers
  are those of PyTorch's own attention on a CPU; weights that are dropped, and gradients of masks,
  are computed in float32 with the matrix of scores.
- `rms_norm`: `_fused_rms_norm`. `dropout`: `native_dropout`, which drops the same elements.
- `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` that are evaluated: the operations of
  which they are made, as in training. PyTorch's own fast way is one operation in C++, which hides
  kernels.
- Lists of tensors are grouped by the device that they are on for the program, so that optimisers
  and `clip_grad_norm_` take the `_foreach_*` operations that they take on a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn import functional

from kernbench.attention.backends import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    ORDER,
    Call,
    padding,
    refusal,
)
from kernbench.bridge.base.here import HERE
from kernbench.bridge.cuda.autocast import INSTEAD
from kernbench.bridge.tensors.storages import is_plain, stands_for_another
from kernbench.cuda_on_cpu import recurrent
from kernbench.cuda_on_cpu.ctc import ctc_loss
from kernbench.cuda_on_cpu.registering import registered
from kernbench.kernels.several import counted, one_hot

_ATEN: Final = torch.ops.aten
_DTENSOR: Final = "torch.distributed.tensor", "DTensor"


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yields what is replaced while ranks run: the owner, the name, and what stands there."""
    registered()
    yield functional, "scaled_dot_product_attention", _attention
    yield torch, "rms_norm", _rms_norm
    yield torch, "dropout", _dropout(torch.dropout)
    yield functional, "dropout", _dropout(functional.dropout)
    yield from ((at, "bincount", counted(at.bincount, _is_ours)) for at in (torch, torch.Tensor))
    yield functional, "one_hot", one_hot(torch, _is_one)
    yield torch, "ctc_loss", ctc_loss(torch.ctc_loss, _is_ours)
    yield from _NETWORKS
    mha = torch.backends.mha
    yield mha, "get_fastpath_enabled", _no_fast_path(mha.get_fastpath_enabled)
    name = "_group_tensors_by_device_and_dtype"
    yield torch._C, name, _grouped(getattr(torch._C, name))


def _is_ours(*tensors: torch.Tensor | None) -> bool:
    """Returns whether plain tensors, or parts of ones, are on a device, as the program sees it."""
    return HERE.rank is not None and all(
        each is None or (_is_plain(type(each)) and each.is_cuda) for each in tensors
    )


def _is_one(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on a device, and no DTensor, nor one inside of `vmap`."""
    return _is_ours(tensor) and is_plain(type(tensor)) and not stands_for_another(tensor)


def _is_plain(kind: type) -> bool:
    # By name, as only programs that use `DTensor` import it.
    return is_plain(kind) or (kind.__module__, kind.__name__) == _DTENSOR


# Attention

_real_attention: Final = functional.scaled_dot_product_attention
_NAMES: Final = {3: CUDNN, 1: FLASH, 2: EFFICIENT, 0: MATH}
"""Backends by the numbers of `SDPBackend`."""

_BUILT_IN_ORDER: Final[tuple[int, ...]] = tuple(torch._C._get_sdp_priority_order())
"""The order of this build of PyTorch, before a program has changed it."""

_ENABLED: Final[dict[str, Callable[[], bool]]] = {
    CUDNN: torch.backends.cuda.cudnn_sdp_enabled,
    FLASH: torch.backends.cuda.flash_sdp_enabled,
    EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled,
    MATH: torch.backends.cuda.math_sdp_enabled,
}


def _backend_of(call: Call) -> str:
    """Returns the backend that PyTorch chooses on an H200.

    `MATH` also if nothing that takes the operands is allowed: PyTorch's own call then refuses.
    """
    order: tuple[int, ...] = tuple(torch._C._get_sdp_priority_order())
    names = (
        ORDER if order == _BUILT_IN_ORDER else [_NAMES[each] for each in order if each in _NAMES]
    )
    allowed = [each for each in names if _ENABLED[each]()]
    return next((each for each in allowed if not refusal(each, call)), MATH)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as it is on CUDA; see the module."""
    rest = {"scale": scale, "enable_gqa": enable_gqa}
    call = query, key, value, attn_mask, dropout_p, is_causal
    if (
        not _is_ours(query, key, value, attn_mask)
        or (is_causal and attn_mask is not None)
        or torch.is_autocast_enabled("cuda")  # which calls again with other types
    ):
        return _real_attention(*call, **rest)
    backend = MATH
    if query.dtype == key.dtype == value.dtype:
        shapes, masked = [tuple(each.shape) for each in call[:3]], attn_mask is not None
        needs = attn_mask is not None and attn_mask.requires_grad
        dtype = str(query.dtype)
        asked = Call(shapes, dtype, masked, needs, dropout_p, is_causal, enable_gqa)
        backend = _backend_of(asked)
    if backend == MATH:
        if not _ENABLED[MATH]():
            raise RuntimeError("No available kernel. Aborting execution.")
        found: torch.Tensor = _ATEN._scaled_dot_product_attention_math(*call, None, **rest)[0]
        return found
    bias = None if attn_mask is None else _bias_of(attn_mask, query, key)
    keeps = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (query, key, value, bias)
    )
    if backend == CUDNN:
        out = _ATEN._scaled_dot_product_cudnn_attention(
            query, key, value, bias, keeps, dropout_p, is_causal, False, scale=scale
        )
    elif backend == FLASH:
        width = query.shape[3]
        added = padding(FLASH, width)
        if added:
            scale = width**-0.5 if scale is None else scale
            query, key, value = [functional.pad(each, (0, added)) for each in call[:3]]
        out = _ATEN._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        if added:
            return out[0][..., :width]
    else:
        out = _ATEN._scaled_dot_product_efficient_attention(
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )
    result: torch.Tensor = out[0]
    return result


def _bias_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns what is added to scores, of four dimensions: bools become 0 and -inf."""
    if mask.dtype is torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype)
        mask = bias.masked_fill_(mask.logical_not(), float("-inf"))
    elif mask.dtype is not query.dtype:
        mask = mask.to(query.dtype)
    return mask.expand(*query.shape[:3], key.shape[2])


# Norms, dropout, lists


def _is_recurrent(input: torch.Tensor) -> bool:
    """Returns whether cuDNN takes the input of a network."""
    if torch.is_autocast_enabled("cuda"):  # which calls again with other types
        return False
    return torch.backends.cudnn.enabled and input.is_floating_point() and _is_ours(input)


_real_rms_norm: Final = torch.rms_norm


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """`torch.rms_norm` as it is on CUDA: one kernel, unless the weight is of another type."""
    fits = weight is None or weight.dtype == input.dtype
    fits = fits and not torch.is_autocast_enabled("cuda")  # which calls again with other types
    if fits and _is_ours(input, weight) and input.dtype.is_floating_point:
        found: torch.Tensor = _ATEN._fused_rms_norm(input, normalized_shape, weight, eps)[0]
        return found
    return _real_rms_norm(input, normalized_shape, weight, eps)


_NETWORKS: Final = tuple(recurrent.replacements(_is_recurrent))

INSTEAD["scaled_dot_product_attention"] = _attention
INSTEAD["rms_norm"] = _rms_norm
for _, _name, _network in _NETWORKS:
    INSTEAD[f"{_name}.input"] = INSTEAD[f"{_name}.data"] = _network


def _dropout(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """Dropout as it is on CUDA: one kernel, which also writes the mask."""
        train = named.get("train", training)
        inplace = rest[0] if rest else named.get("inplace", False)
        fused = train and not inplace and 0 < p < 1 and input.numel() > 0
        if fused and _is_ours(input):
            return torch.native_dropout(input, p, True)[0]
        return real(input, p, training, *rest, **named)

    return dropout


def _no_fast_path(real: Callable[[], bool]) -> Callable[[], bool]:
    def enabled() -> bool:
        """Returns whether a layer may be one operation in C++."""
        return HERE.rank is None and real()

    return enabled


Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[torch.Tensor | None]], list[int]]]


def _grouped(real: Callable[..., Groups]) -> Callable[..., Groups]:
    def grouped(
        tensorlistlist: list[list[torch.Tensor | None]], with_indices: bool = False
    ) -> Groups:
        """Groups tensors by device, as the program sees it, and type of the first list's."""
        if HERE.rank is None:
            return real(tensorlistlist, with_indices)
        found: Groups = {}
        for place, first in enumerate(tensorlistlist[0]):
            assert first is not None, "the first list has a tensor in each place"
            lists, places = found.setdefault(
                (first.device, first.dtype), ([[] for _ in tensorlistlist], [])
            )
            for kept, given in zip(lists, tensorlistlist, strict=True):
                if given:
                    kept.append(given[place])
            if with_indices:
                places.append(place)
        return found

    return grouped
