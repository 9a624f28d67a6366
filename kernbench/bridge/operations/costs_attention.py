"""Attention as one kernel forward and one backward, as CUDA's backends run it."""

from typing import Any, Final

import torch

from kernbench.attention.backends import CUDNN, EFFICIENT, Call, refusal
from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.rows import in_order
from kernbench.bridge.operations.costs_operands import Formula, layout, layouts
from kernbench.hw.attention import Direction
from kernbench.hw.library import Library
from kernbench.kernels import attention
from kernbench.kernels.operands import total_bytes

_ATEN: Final = torch.ops.aten


def _values(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns all arguments of a call by their names in the operation's schema."""
    known = func.default._schema.arguments
    found = {each.name: each.default_value for each in known}
    found.update(zip([each.name for each in known], args, strict=False))
    if kwargs:
        found.update(kwargs)
    return found


def _attention(packet: Any, direction: Direction, backend: str) -> Formula:
    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        given = _values(packet, args, kwargs)
        query, key, value = given["query"], given["key"], given["value"]
        chosen = backend
        if not chosen:
            shapes = [tuple(each.shape) for each in (query, key, value)]
            asked = Call(shapes, str(query.dtype), gqa=True)
            chosen = CUDNN if not refusal(CUDNN, asked) else EFFICIENT
        causal = CAUSAL if given["is_causal"] else EVERYTHING
        seen = bands(in_order(query.shape[2]), in_order(key.shape[2]), causal)
        nbytes = total_bytes(layouts(given)) + total_bytes(layouts(out))
        operands = layout(query), layout(key), layout(value)
        return attention.duration_ps(library, chosen, direction, operands, (seen,), nbytes)

    return duration


def _both(name: str, backend: str) -> dict[Any, Formula]:
    forward, backward = getattr(_ATEN, name), getattr(_ATEN, f"{name}_backward")
    return {
        forward: _attention(forward, "forward", backend),
        backward: _attention(backward, "backward", backend),
    }


FORMULAS: Final[dict[Any, Formula]] = {
    **_both("_scaled_dot_product_flash_attention", "flash"),
    **_both("_scaled_dot_product_cudnn_attention", "cudnn"),
    **_both("_scaled_dot_product_efficient_attention", "efficient"),
    # Attention that `as_cuda` does not replace reaches PyTorch's CPU operation: it is timed here.
    **_both("_scaled_dot_product_flash_attention_for_cpu", ""),
}
"""Times of attention, by operation."""
