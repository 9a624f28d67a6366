"""Functions that take the same arguments: they are described once, for `help` of both."""

import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def args_of(twin: Callable[..., object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that adds the sections `Args:` to `Raises:` of another docstring.

    Args:
        twin: A function with the same parameters.
    """
    _, _, sections = (inspect.getdoc(twin) or "").partition("\n\n")

    def add(function: Callable[P, R]) -> Callable[P, R]:
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{sections}"
        return function

    return add
