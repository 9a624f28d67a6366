"""Attention as one kernel forward and one backward, as CUDA's backends run it."""

from typing import Any, Final

import torch

from kernbench.attention.bands import CAUSAL, EVERYTHING, Bands, bands
from kernbench.attention.rows import in_order
from kernbench.bridge.operations.costs_traffic import Formula, bytes_of
from kernbench.bridge.tensors.storages import DTYPES
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library

_ATEN: Final = torch.ops.aten
_WIDEST: Final = 128
"""Widest heads that cuDNN's kernels take."""


def attention_ps(
    library: Library,
    backend: str,
    direction: Direction,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    nbytes: int,
    *,
    causal: bool,
) -> int:
    """Returns the picoseconds of attention.

    Args:
        library: Of the device.
        backend: Whose kernel: `flash`, `cudnn` or `efficient`.
        direction: Forward, or backward.
        operands: Query, key and value, `[batch, heads, rows, width]`; keys and values may have
            fewer heads.
        nbytes: Bytes of all operands and results.
        causal: Whether query i sees keys 0 to i only.
    """
    query, key, value = operands
    batch, heads, rows, width = query.shape
    shape = Shape(batch, heads, key.shape[1], width, value.shape[3])
    if direction == "backward" and shape.groups < heads:
        # Of keys and values, the gradients of every head are written, and read to be added.
        nbytes += 2 * heads // max(1, shape.groups) * (bytes_of(key) + bytes_of(value))
    seen: Bands = bands(in_order(rows), in_order(key.shape[2]), CAUSAL if causal else EVERYTHING)
    name = DTYPES[query.dtype].machine_name
    return library.attention(backend, direction, name, shape, (seen,), nbytes)


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
            narrow = query.element_size() == 2 and query.shape[3] <= _WIDEST
            chosen = "cudnn" if narrow else "efficient"
        nbytes = bytes_of(given) + bytes_of(out)
        operands = query, key, value
        causal = given["is_causal"]
        return attention_ps(library, chosen, direction, operands, nbytes, causal=causal)

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
    # What attention of tensors on a CPU becomes; `as_cuda` leaves it what it does not replace.
    **_both("_scaled_dot_product_flash_attention_for_cpu", ""),
}
"""Times of attention, by operation."""
