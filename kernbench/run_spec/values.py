"""Which values the fields of a run specification take, and what is kept of them."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Final, Literal, get_args

from kernbench.sim_engine.dials import Detail, Fidelity

DefaultDevice = Literal["cuda", "cpu"]
"""Type of the device on which ranks make tensors without `device=`."""

Collapse = Literal["off", "exact"]
"""Whether ranks that do the same are simulated once."""

Data = bool | Literal["fake"]
"""Whether tensors hold values; `fake`: no, and what a program of PyTorch reads of them is 0."""

Races = Literal["error", "warn"]
"""What becomes of an access to memory that nothing orders."""


def _text(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError
    return text


def _some_text(value: Any) -> str:
    if not (text := _text(value)):
        raise ValueError
    return text


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
        if number < least:
            raise ValueError
        return number

    return read


def _seconds(value: Any) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise TypeError
        return choices[choices.index(value)]

    return read


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise TypeError
        return tuple(map(read, value))

    return read_all


def _some(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def read_some(value: Any) -> tuple[Any, ...]:
        if not (found := read(value)):
            raise ValueError
        return found

    return read_some


def _different(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def read_different(value: Any) -> tuple[Any, ...]:
        found = _some(read)(value)
        if len(set(found)) != len(found):
            raise ValueError
        return found

    return read_different


def _devices(value: Any) -> Literal["all"] | tuple[int, ...]:
    return "all" if value == "all" else _different(_each(_whole(0)))(value)


def _choice(literal: Any) -> tuple[str, Callable[[Any], Any]]:
    choices = get_args(literal)
    return f"one of {', '.join(choices)}", _one_of(choices)


_COUNT: Final = ("an integer from 0", _whole(0))
_TEXTS: Final = ("texts", _each(_text))
_FLAG: Final = ("true or false", _flag)

Kinds = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""For each field, which values it accepts, and the function that makes the kept value."""

OF_ALL: Final[Kinds] = {
    "topology": ("a file, the name of a shipped machine, or None", _or_none(_some_text)),
    "ccl": ("a file or None", _or_none(_some_text)),
    "overrides": _TEXTS,
    "devices": ("all, or different integers from 0", _devices),
    "default_device": _choice(DefaultDevice),
    "data": _FLAG,
    "fidelity": _choice(Fidelity),
    "record": _choice(Detail),
    "shadow": _FLAG,
    "collapse": _choice(Collapse),
    "roles": ("a file, or None", _or_none(_some_text)),
    "witnesses": ("different ranks, or None", _or_none(_different(_each(_whole(0))))),
    "seed": _COUNT,
    "eager_limit": _COUNT,
    "watchdog_s": ("seconds from 0", _seconds),
    "max_time_ps": _COUNT,
    "step_budget": _COUNT,
    "group_limit": _COUNT,
    "class_limit": ("an integer from 1", _whole(1)),
    "schedule": ("integers from 1, or None", _or_none(_some(_each(_whole(1))))),
    "routing": ("a name, a file, or None", _or_none(_some_text)),
    "bench": ("a file, the name of a shipped bench, or None", _or_none(_some_text)),
    "arguments": _TEXTS,
    "nproc_per_node": ("an integer from 1, or None", _or_none(_whole(1))),
    "as_torch": _FLAG,
}
"""Kinds of the fields of `RunSpec`, but for `pytorch`."""

OF_PYTORCH: Final[Kinds] = {
    "nodes": ("an integer from 1", _whole(1)),
    "as_module": _FLAG,
    "fake": _FLAG,
    "same_ranks": _FLAG,
    "witnesses": (
        "different ranks from 1, beside rank 0, or None",
        _or_none(_different(_each(_whole(1)))),
    ),
    "check_replicas": _FLAG,
    "races": _choice(Races),
}
"""Kinds of the fields of `PytorchRun`."""
