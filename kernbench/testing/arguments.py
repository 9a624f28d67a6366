"""Arguments of a case: checked, and made plain, before anything runs or is sent."""

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from kernbench.config.near import did_you_mean
from kernbench.errors import OperandError, UsageError, call_site, site_fact
from kernbench.testing.cases import Case

_MOST_BITS: Final = 4096
"""Most bits of an integer: Python reads and writes no decimal numbers of more than 4300 digits."""


_MOST_LEVELS: Final = 100
"""Most lists and dicts inside one another, of which a JSON line cannot have any number."""


def plain_arguments(case: Case, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a case as JSON values, which are the same in every mode.

    A path becomes text, a scalar of numpy a number, a tuple a list.

    Args:
        kwargs: The arguments that the test gives.

    Raises:
        OperandError: If an argument is no JSON value, or the case does not take the arguments; the
            error names the argument.
    """
    __tracebackhide__ = True
    plain = {}
    for name, value in kwargs.items():  # no comprehension: pytest would show its frame
        plain[name] = _plain(value, name, _MOST_LEVELS)
    try:
        case.signature.bind(None, 0, **plain)
    except TypeError as error:
        parameters = case.signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        unknown = [] if takes_any else [name for name in plain if name not in parameters]
        misfit = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)
        hint = did_you_mean(unknown[0], list(parameters)[2:]) if unknown else ""
        raise OperandError(
            f"case {case.name} cannot be called with these arguments: {misfit}",
            [site_fact(call_site()), f"{case.name}{case.signature} is at {case.place}"],
            hint=hint or "every rank calls it as body(ctx, rank, **kwargs)",
        ) from None
    return plain


def check_world_size(world_size: object) -> int:
    """Returns a number of ranks.

    Args:
        world_size: The number, of Python or numpy.

    Raises:
        UsageError: If it is no positive integer.
    """
    __tracebackhide__ = True
    if isinstance(world_size, np.integer):
        world_size = int(world_size)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise UsageError(
            f"world_batch.run(world_size={world_size!r}): expected a positive number of ranks",
            [site_fact(call_site())],
        )
    return world_size


def _plain(value: Any, key: str, levels: int) -> Any:
    """Returns a value as JSON gives it back.

    Args:
        key: Where it stands, such as `shape[1]`.
        levels: Most lists and dicts inside one another.
    """
    __tracebackhide__ = True
    if not levels:
        raise _refused("it holds itself, or is nested too deeply", key.partition("[")[0])
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in {bool, str}:
        return value
    if type(value) is int:
        if value.bit_length() > _MOST_BITS:
            raise _refused(f"an integer of {value.bit_length()} bits is too long", key)
        return value
    if type(value) is float:
        if math.isfinite(value):
            return value
        raise _refused(f"{value} is no JSON value", key)
    if isinstance(value, list | tuple):
        items = []
        for place, each in enumerate(value):
            items.append(_plain(each, f"{key}[{place}]", levels - 1))
        return items
    if isinstance(value, dict):
        wrong = next((name for name in value if type(name) is not str), None)
        if wrong is not None:
            raise _refused(f"its key {wrong!r} is no text", key)
        table = {}
        for name, each in value.items():
            table[name] = _plain(each, f"{key}[{name!r}]", levels - 1)
        return table
    raise _refused(f"JSON has no values of type {type(value).__name__}", key)


def _refused(why: str, key: str) -> OperandError:
    return OperandError(
        f"argument {key} of the case cannot go to another process: {why}",
        [site_fact(call_site()), "expected None, a bool, number, text, list, dict or path"],
        hint="pass a name, such as that of a dtype, and look it up in the case",
    )
