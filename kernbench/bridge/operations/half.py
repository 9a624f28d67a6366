"""Products of bf16 and fp16 numbers, summed in float32 and rounded once, as tensor cores do.

PyTorch's CPU does the same, but multiplies one pair of numbers after the other if the processor has
no instructions for such types, which takes 10 to 60 times as long.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._ops import OpOverload

_ATEN: Final = torch.ops.aten

_OPERANDS: Final[dict[Any, int]] = {
    _ATEN.mm.default: 2,
    _ATEN.bmm.default: 2,
    _ATEN.addmm.default: 3,
    _ATEN.baddbmm.default: 3,
    _ATEN.convolution.default: 3,
    _ATEN.convolution_backward.default: 3,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default: 5,
}
"""Operations that multiply, each with how many of its first arguments are of one type."""

_HALF: Final = frozenset((torch.bfloat16, torch.float16))

_SMALL: Final = 256
"""Most elements of operands that are multiplied as they are: to widen them would take longer."""

_to: Final = _ATEN._to_copy.default


def widened(func: Any, dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """Returns what does an operation on this computer, the fastest way that is as exact.

    Args:
        dtype: Type of its first operand; None: any.
    """
    count = _OPERANDS.get(func)
    if count is None or (dtype is not None and dtype not in _HALF):
        # Without the frame of Python around the operation.
        found: Callable[..., Any] = func._op if type(func) is OpOverload else func
        return found

    def run(*args: Any, **options: Any) -> Any:
        dtype = args[0].dtype
        if dtype not in _HALF:
            return func(*args, **options)
        operands = args[:count]
        given = [one for one in operands if isinstance(one, torch.Tensor)]
        if any(one.dtype is not dtype for one in given):
            return func(*args, **options)  # PyTorch refuses it
        if all(one.numel() <= _SMALL for one in given):
            return func(*args, **options)
        named = {
            name: _wide(value) if getattr(value, "dtype", None) is dtype else value
            for name, value in options.items()
        }
        out = func(*map(_wide, operands), *args[count:], **named)
        if isinstance(out, torch.Tensor):
            return _to(out, dtype=dtype)
        return tuple(one if one is None else _to(one, dtype=dtype) for one in out)

    return run


def _wide(value: Any) -> Any:
    return _to(value, dtype=torch.float32) if isinstance(value, torch.Tensor) else value
