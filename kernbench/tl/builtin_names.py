"""Python's functions that mean something else inside of a kernel."""

import builtins
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from kernbench.tl import language
from kernbench.tl.tile import Tile


def _smaller(*values: Any, **options: Any) -> Any:
    """Returns `tl.minimum` of two operands of which one is a tile; else what Python returns."""
    return (language.minimum if _are_tiles(values) else min)(*values, **options)


def _larger(*values: Any, **options: Any) -> Any:
    """Returns `tl.maximum` of two operands of which one is a tile; else what Python returns."""
    return (language.maximum if _are_tiles(values) else max)(*values, **options)


def _are_tiles(values: tuple[Any, ...]) -> bool:
    return len(values) == 2 and any(isinstance(each, Tile) for each in values)


_NAMES: Final = {**vars(builtins), "range": language.range, "min": _smaller, "max": _larger}


def with_builtins(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a function for which `range`, `min` and `max` are those of the kernel language.

    Everything else is shared with the original. Triton's compiler replaces these names, too.

    Args:
        function: The function; anything but one written in Python is returned as it is.
    """
    if not isinstance(function, FunctionType):
        return function
    names = function.__globals__
    kept = names["__builtins__"]
    # Python looks the builtins up when it makes a function, and never again.
    names["__builtins__"] = _NAMES
    try:
        copy = FunctionType(
            function.__code__,
            names,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
    finally:
        names["__builtins__"] = kept
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)
