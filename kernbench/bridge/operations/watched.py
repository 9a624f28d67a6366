"""Reports large products to the user if they will take this computer minutes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE
from kernbench.process.effort import EFFORT, LARGE
from kernbench.process.process import MAIN

_ATEN: Final = torch.ops.aten


def _product(left: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(2 * left.numel() * right.shape[-1])


def _sum_and_product(_: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **__: Any) -> int:
    return _product(left, right)


def _convolution(
    given: torch.Tensor, weight: torch.Tensor, *rest: Any, out_val: torch.Tensor
) -> int:
    # Each input element of a transposed one meets a kernel, each output element of any other.
    places = given if rest[4] else out_val
    return int(2 * places.numel() * weight[0].numel())


def _convolution_backward(
    grad: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, *rest: Any, out_val: Any
) -> int:
    wanted = sum(gradient is not None for gradient in out_val[:2])
    return wanted * _convolution(given, weight, *rest, out_val=grad)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    # Queries with keys, then weights with values.
    return int(2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _attention_backward(_: torch.Tensor, *given: Any, **__: Any) -> int:
    # The weights once more, and two products for each of the two of the forward pass.
    return _attention(*given[:3]) * 5 // 2


_FLOPS: Final[dict[Any, Callable[..., int]]] = {
    _ATEN.mm: _product,
    _ATEN.bmm: _product,
    _ATEN._scaled_mm: _product,
    _ATEN.addmm: _sum_and_product,
    _ATEN.baddbmm: _sum_and_product,
    _ATEN.convolution: _convolution,
    _ATEN.convolution_backward: _convolution_backward,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Multiplications and additions of an operation: `torch.utils.flop_counter` has such a table too,
but imports Triton, which takes a second and which few programs need."""

_KNOWN_BEFORE: Final = frozenset((_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm))
"""Operations of which they are known before the result is."""

_ELEMENTS: Final = 1 << 20
"""Elements of an operand from which on a product may be a large one."""


def watched(func: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what does an operation on this computer, and looks at its time if it is large.

    Args:
        run: Does it.
    """
    packet: Any = getattr(func, "overloadpacket", None)
    count = _FLOPS.get(packet)
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
        flops = count(*args, **options)
        if flops < LARGE:
            return run(*args, **options)
        return EFFORT.product(number, name, flops, partial(run, *args, **options))

    return look
