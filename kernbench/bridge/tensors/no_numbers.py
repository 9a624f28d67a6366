"""Operations on tensors without numbers: their shapes, and what becomes of values that are read."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.tensors.storages import is_on_device
from kernbench.errors import NoDataError, site_fact
from kernbench.isolation.made_up import MADE_UP

_ATEN: Final = torch.ops.aten
META: Final = torch.device("meta")
EMPTY: Final = torch.empty_strided  # PyTorch's own, also while ranks run
_ZEROS: Final = torch.zeros
_TO_HOST: Final = frozenset((_ATEN._to_copy.default, _ATEN.copy_.default))
"""Operations that read values if they go from the device to the host."""

_DEPENDS: Final = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
"""Marks of operations whose result, or its shape, depends on values."""


_MASKS: Final = frozenset((torch.bool, torch.uint8))
"""Types of indices that choose elements by their values."""


def depends_on_values(func: Any) -> bool:
    """Returns whether the result of an operation, or its shape, depends on values."""
    return func is _ATEN.equal.default or not _DEPENDS.isdisjoint(func.tags)


def depends_now(func: Any, args: Any) -> bool:
    """Returns whether the result of one that may depend on values does, for these operands.

    Args:
        func: An overload of an operation, of which `depends_on_values` is true.
    """
    if func is not _ATEN.index.Tensor:
        return True
    return any(one is not None and one.dtype in _MASKS for one in args[1])


def goes_to_host(func: Any, args: Any, kwargs: Any) -> bool:
    """Returns whether an operation copies a tensor of the device into memory of the host."""
    if func not in _TO_HOST:
        return False
    if func is _ATEN.copy_.default:
        return not is_on_device(args[0]) and is_on_device(args[1])
    target = kwargs.get("device") if kwargs else None
    return target is not None and target.type != "meta" and is_on_device(args[0])


def made_on_device(kwargs: Any) -> bool | None:
    """Returns whether C++ code asks for memory of the device; None if it does not.

    Args:
        kwargs: Arguments of an operation, by name.
    """
    target = kwargs.get("device") if kwargs else None
    return True if target is not None and target.type == "meta" else None


def read(rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
    """Returns what a program reads that needs values of a device without numbers.

    They are zeros, but where they are known; see `known_numbers`.

    Raises:
        NoDataError: If values are not to be made up.
    """
    if not rank.fake:
        raise NoDataError(
            f"{rank.process.name} reads a value of a tensor on its device, and there are no "
            "numbers",
            [site_fact(rank.process.call_site()), f"by {func}"],
            hint="--data on computes numbers, --data fake reads 0; or print and branch on nothing "
            "that the device computes",
        )
    unknown = False

    def numbers(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal unknown
        if not is_on_device(tensor):
            return tensor
        known: torch.Tensor | None = rank.numbers.of(tensor)
        if known is not None:
            return known
        unknown = True
        return _ZEROS((), dtype=tensor.dtype).expand(tensor.shape)

    given, named = mapped(args, numbers), mapped(kwargs or {}, numbers)
    if unknown:
        MADE_UP.note(rank.process)
    result = func(*given, **named)
    return result if func in _TO_HOST else mapped(result, _without_numbers)


def shaped(rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation for the shape of its result."""
    HERE.rank = None  # functions of PyTorch that find out shapes see where tensors are
    try:
        return func(*args, **(kwargs or {}))
    finally:
        HERE.rank = rank


def shaping(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes an operation's output shape, as `shaped` does in a rank."""

    def run(*args: Any, **kwargs: Any) -> Any:
        rank = HERE.rank
        HERE.rank = None
        try:
            return func(*args, **kwargs)
        finally:
            HERE.rank = rank

    return run


def _without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return EMPTY(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns arguments with all their tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: mapped(one, change) for name, one in value.items()}
    return value
