"""What an operation of PyTorch is on a device: which kernel, and how long it takes.

A table for each kind of operation: `costs_gemm`, `costs_attention`, `costs_images`, `costs_rows`,
`costs_lists`, `costs_pointwise`. They say which argument is which; what the kernels take is in the
room `kernels`, for both torches, with all constants in the machine's file.
"""

from typing import Any, Final, NamedTuple

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.operations import (
    costs_attention,
    costs_gemm,
    costs_images,
    costs_lists,
    costs_pointwise,
    costs_recurrent,
    costs_rows,
)
from kernbench.bridge.operations.costs_operands import Formula, by_bytes
from kernbench.bridge.operations.costs_pointwise import by_name, copying
from kernbench.hw.library import Library
from kernbench.kernels.names import COPIES, FREE_NAMES, FREE_SPACES, SCATTERS, kernel_name
from kernbench.kernels.prices import PRICES


class Cost(NamedTuple):
    """What an operation is on a device.

    Attributes:
        name: Name of the command, from `kernels.names`.
        duration: How long the command takes.
        fresh: Whether the result may have memory of its own.
        known: Whether the kernel is known; otherwise its bytes are counted.
        blas: Whether the kernel is one of cuBLAS, which takes a workspace.
        lists: Whether its first operand is a list, as of `_foreach_*` and fused optimisers.
        in_place: What it is in place, if a gradient may be added by it.
    """

    name: str
    duration: Formula
    fresh: bool = True
    known: bool = True
    blas: bool = False
    lists: bool = False
    in_place: "Cost | None" = None


def _nothing(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del library, args, kwargs, out
    return 0


FREE: Final = Cost("free", _nothing)
"""An operation that runs no kernel."""

_FORMULAS: Final[dict[Any, Formula]] = {
    **costs_gemm.FORMULAS,
    **costs_attention.FORMULAS,
    **costs_rows.FORMULAS,
    **costs_images.FORMULAS,
    **costs_recurrent.FORMULAS,
    **costs_lists.FORMULAS,
    **costs_pointwise.FORMULAS,
}

_POINTWISE: Final = frozenset(
    (
        *("native_dropout_backward", "where", "masked_fill", "masked_fill_", "floor_divide"),
        *("tril", "tril_", "triu", "triu_", "flip", "lerp_", "_amp_update_scale_"),
        *("glu", "glu_backward"),
        *("_local_scalar_dense", "equal", "isin", "bucketize", "one_hot", "log_sigmoid"),
    )
)
"""Kernels as elementwise ones, which PyTorch does not mark as such."""


def cost_of(func: Any) -> Cost:
    """Returns what an operation is on a device.

    Args:
        func: An overload of an operation, as `torch.ops.aten.add.Tensor`.
    """
    packet = func._overloadpacket
    name = packet._qualified_op_name.partition("::")[2]
    if func.namespace in FREE_SPACES or func.is_view or name in FREE_NAMES:
        return FREE
    formula = _FORMULAS.get(packet)
    if formula is None and func.namespace == "fsdp":
        formula = costs_lists.FSDP.get(name)
    if formula is None and func.namespace == "aten":
        formula = _by_name(name)
    if formula is None and torch.Tag.pointwise in func.tags:
        formula = by_name(name)
    if formula is None:
        return Cost(kernel_name(name, func.namespace), by_bytes, known=False)
    kernel = kernel_name(name, func.namespace)
    lists = name.startswith("_foreach_") or packet in costs_lists.FORMULAS
    in_place = None
    if func.namespace == "aten" and f"{name}_" in SCATTERS:
        in_place = Cost(kernel_name(f"{name}_"), _FORMULAS[getattr(torch.ops.aten, f"{name}_")])
    blas = packet in costs_gemm.FORMULAS
    return Cost(kernel, formula, blas=blas, lists=lists, in_place=in_place)


def _by_name(name: str) -> Formula | None:
    if name.startswith("_foreach_"):
        return costs_lists.foreach(name)
    if name in COPIES:
        return copying
    return by_name(name) if name in PRICES or name in _POINTWISE else None


def unknown_operations(rank: Rank) -> list[tuple[str, int, int]]:
    """Returns the operations of a rank that have no cost of their own and were timed by bytes.

    Returns:
        Name, number of calls and time in picoseconds of each, the longest time first.
    """
    found = [(name, calls, ps) for name, (calls, ps) in rank.mode.unknown.items()]
    return sorted(found, key=lambda each: (-each[2], each[0]))
