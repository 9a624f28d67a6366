"""Large products, of which the user is told if this computer takes minutes for them."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from kernbench.bridge.base.here import HERE
from kernbench.process.effort import EFFORT, LARGE
from kernbench.process.process import MAIN

_ATEN: Final = torch.ops.aten

_LIKE: Final[dict[Any, Any]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _ATEN._scaled_dot_product_flash_attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        _ATEN._scaled_dot_product_flash_attention_backward
    ),
}
"""Operations of the CPU that do as many multiplications as one that PyTorch's counter knows."""

_KNOWN_BEFORE: Final = frozenset((_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm))
"""Operations whose number of multiplications is known before the result is."""

_ELEMENTS: Final = 1 << 20
"""Elements of an operand from which on a product may be a large one."""


def watched(func: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what does an operation on this computer, and looks at its time if it is large.

    Args:
        run: Does it.
    """
    packet: Any = getattr(func, "overloadpacket", None)
    count = flop_registry.get(_LIKE.get(packet, packet))
    if count is None:
        return run
    before, name = packet in _KNOWN_BEFORE, packet.__name__

    def look(*args: Any, **options: Any) -> Any:
        for value in args[:3]:  # operands; the sum of a product may be one
            if isinstance(value, torch.Tensor) and value.numel() >= _ELEMENTS:
                break
        else:
            return run(*args, **options)
        rank = HERE.rank
        number = MAIN if rank is None else rank.process.rank
        if not before:
            begin = time.perf_counter()
            result = run(*args, **options)
            seconds = time.perf_counter() - begin
            EFFORT.computed(number, count(*args, **options, out_val=result), seconds)
            return result
        flops = count(*args, **options, out_val=None)
        if flops < LARGE:
            return run(*args, **options)
        return EFFORT.product(number, name, flops, partial(run, *args, **options))

    return look
