"""The arguments that all functions share that make tensors, written once.

A function takes them as `**how: Unpack[Making]`: type checkers and editors know each of them.
`made` writes them out for `help` and `inspect.signature`, and so for the errors of wrong calls.
"""

import inspect
from collections.abc import Callable
from typing import Final, ParamSpec, TypedDict, TypeVar

from kernbench.memory import DType
from kernbench.process.types import DeviceLike
from kernbench.tensors.generators import Generator

P = ParamSpec("P")
R = TypeVar("R")


class Making(TypedDict, total=False):
    """What a new tensor is."""

    dtype: DType | None
    device: DeviceLike | None
    requires_grad: bool
    pin_memory: bool


class Drawing(TypedDict, total=False):
    """What a new tensor of random numbers is, and where the numbers come from."""

    generator: Generator | None
    dtype: DType | None
    device: DeviceLike | None
    requires_grad: bool
    pin_memory: bool


How = TypeVar("How", Making, Drawing)

_TEXTS: Final = {
    "input": "Tensor that gives the shape.",
    "sizes": "Extents of the result, one by one or as one sequence.",
    "size": "Extents of the result, instead of `sizes`.",
    "generator": "Source of the numbers; by default the calling rank's generator.",
    "dtype": "Element type; ",
    "device": "Device of the result; ",
    "requires_grad": "Whether the result is a leaf that needs a gradient.",
    "pin_memory": "Whether the result lies in pinned host memory.",
}

LIKE: Final = "by default that of the given tensor"
"""Default of the type where a tensor gives it, and the device with it."""


def made(dtype: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that writes the shared arguments out in signature and docstring.

    Entries for the shape, too, are written if the docstring describes none of the arguments.

    Args:
        dtype: Default of the element type, in words.
    """
    device = "by default the host on main, a rank's device in a worker"
    defaults = {"dtype": f"{dtype}.", "device": f"{LIKE if dtype is LIKE else device}."}

    def write_out(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        *own, how = signature.parameters.values()
        (shared,) = how.annotation.__args__
        names = shared.__annotations__
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *(_parameter(name, hint) for name, hint in names.items())]
        )
        summary, head, rest = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
        if head:
            described, _, rest = rest.partition("\n\n")
        else:
            summary, _, rest = summary.partition("\n\n")
            entries = [f"{each}".partition(":")[0] for each in own if each.name in _TEXTS]
            described = "\n".join([f"    {each}: {_TEXTS[each.strip('*')]}" for each in entries])
        lines = [f"    {name}: {_TEXTS[name]}{defaults.get(name, '')}" for name in names]
        args = "\n".join(["Args:", *filter(None, [described]), *lines])
        function.__doc__ = "\n\n".join(filter(None, [summary, args, rest]))
        return function

    return write_out


def _parameter(name: str, hint: object) -> inspect.Parameter:
    default = False if hint is bool else None
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=hint)
