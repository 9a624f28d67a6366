"""Which kernel attention is on a GPU of Hopper's generation, for both torches.

Sources: `select_sdp_backend` and the constraints of its backends in PyTorch's
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, with `check_attn_mask_shape` and
`check_batch_size_and_num_heads_dense` in aten/src/ATen/native/transformers/sdp_utils_cpp.h; flash
attention of other widths in `_scaled_dot_product_attention` of .../transformers/attention.cpp.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"

ORDER: Final = (CUDNN, FLASH, EFFICIENT, MATH)
"""PyTorch's order of priority, with cuDNN since 9.15.1."""

_ALIGNED: Final = 8
"""Multiple to which flash attention pads widths: elements of a load of 16 bytes."""

_SIZES: Final = {"torch.float16": 2, "torch.bfloat16": 2, "torch.float32": 4}


class Call(NamedTuple):
    """What attention is called with.

    Attributes:
        shapes: Shapes of query, key and value.
        dtype: Name of their type, such as `torch.bfloat16`.
        masked: Whether there is an `attn_mask`.
        masks_gradient: Whether the mask needs a gradient.
        dropout_p: Probability with which a weight is dropped.
        causal: `is_causal`.
        gqa: Whether keys and values may have fewer heads.
    """

    shapes: Sequence[tuple[int, ...]]
    dtype: str
    masked: bool = False
    masks_gradient: bool = False
    dropout_p: float = 0.0
    causal: bool = False
    gqa: bool = False


def refusal(backend: str, call: Call) -> str:
    """Returns what a backend does not take of a call; nothing if it takes it.

    Args:
        backend: One of `ORDER`.
    """
    return "" if backend == MATH else _of_all(call) or _REFUSALS[backend](call)


def padding(backend: str, width: int) -> int:
    """Returns how many elements are added to rows before the kernel, and taken away after it.

    Args:
        backend: One of `ORDER`.
        width: Elements of a row of the query.
    """
    return -width % _ALIGNED if backend == FLASH else 0


def _of_all(call: Call) -> str:
    q, k, v = call.shapes
    if not len(q) == len(k) == len(v) == 4:
        return "expected four dimensions each"
    if q[0] != k[0] or k[:3] != v[:3] or not (call.gqa or q[1] == k[1]):
        return "expected batch and heads that need no broadcasting"
    return "" if q[2] and k[2] and k[1] else "a length of 0"


def _no_16_bits(call: Call) -> str:
    if _SIZES.get(call.dtype) == 2:
        return ""
    return f"{call.dtype}, expected torch.float16 or torch.bfloat16"


def _no_cudnn(call: Call) -> str:
    # Dropout may be any: so it was on the hosts that were measured (docs/fidelity.md), with PyTorch
    # 2.11. Later ones leave what is no multiple of 1/16 to flash attention (PyTorch #174245).
    wrong = _no_16_bits(call)
    if wrong:
        return wrong
    (*_, rows, width), (*_, columns, _), (*_, of_value) = call.shapes
    widths = width, of_value
    if (max(widths) > 128 and widths != (192, 128)) or widths[0] % 8 or widths[1] % 8:
        return f"widths of {widths[0]} and {widths[1]}, expected multiples of 8, at most 128"
    if columns == 1 or (call.dropout_p and rows == 1):
        return "a length of 1"
    return "an attn_mask that needs a gradient" if call.masks_gradient else ""


def _no_flash(call: Call) -> str:
    if call.masked:
        return "an attn_mask"
    wrong = _no_16_bits(call)
    if wrong:
        return wrong
    (*_, rows, width), (*_, columns, _), (*_, of_value) = call.shapes
    if width != of_value or width > 256:
        return f"widths of {width} and {of_value}, expected the same, at most 256"
    if call.causal and rows != columns:
        return f"is_causal with {rows} queries and {columns} keys"
    return ""


def _no_efficient(call: Call) -> str:
    size = _SIZES.get(call.dtype)
    if size is None:
        return f"{call.dtype}, expected torch.float16, torch.bfloat16 or torch.float32"
    (_, heads, _, width), (_, groups, *_), (*_, of_value) = call.shapes
    if heads != groups:
        return f"{heads} heads of queries and {groups} of keys"
    widths, unit = (width, of_value), 16 // size
    if widths[0] % unit or widths[1] % unit or 0 in widths:
        return f"widths of {widths[0]} and {widths[1]}, expected multiples of {unit}"
    return ""


_REFUSALS: Final[dict[str, Callable[[Call], str]]] = {
    CUDNN: _no_cudnn,
    FLASH: _no_flash,
    EFFICIENT: _no_efficient,
}
