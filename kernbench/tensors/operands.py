"""Errors of calls that were given something else where they take a tensor.

Functions do not check their operands. A wrong operand fails somewhere inside with any exception.
Only then are the arguments of the function that the user called compared with its signature. If an
argument should be a tensor and is not, the user gets an error that names the argument; otherwise
the first exception is raised as it is.
"""

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from types import FunctionType
from typing import Any, Final

import numpy as np

from kernbench.errors import KernbenchError, OperandError, call_site, site_fact
from kernbench.tensors.tensor import Tensor

Function = Callable[..., Any]

SYMPTOMS: Final = (AttributeError, IndexError, KernbenchError, TypeError, ValueError)
"""Exceptions that an operand which is no tensor may cause; `refusal` decides whether it did."""

_TENSORS: Final = frozenset({"Parameter", "Tensor"})
_NUMBERS: Final = frozenset({"Scalar", "bool", "complex", "float", "int"})
_SERIES: Final = frozenset({"Iterable", "Sequence", "list", "tuple"})

_guards: Final[dict[Function, Function]] = {}


def guard(names: dict[str, Any]) -> None:
    """Makes the public functions of a module name the arguments that should be tensors and are not.

    Functions that other rooms and the operators of tensors call directly stay as they are.

    Args:
        names: The module's `globals()`; functions in it are replaced.
    """
    home = names.get("__name__")
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and (guarded := guarded_function(value)) is not value:
            names[name] = guarded
            if home is not None and guarded.__module__ == value.__module__ != home:
                # `pickle` finds the function by this name.
                guarded.__module__, guarded.__qualname__ = home, name


def guarded_function(function: FunctionType, skip: int = 0) -> Function:
    """Returns `function` with errors that name wrong arguments; itself if it takes no tensors.

    Args:
        function: A function whose parameters are annotated.
        skip: Number of parameters at the front to leave out, such as a method's `self`.
    """
    passed_over = {"return", *function.__code__.co_varnames[:skip]}
    kinds = [
        _text(kind) for name, kind in function.__annotations__.items() if name not in passed_over
    ]
    kinds = [kind for kind in kinds if _takes_tensors(kind)]
    # Methods that also take a number are operators, which check their operands themselves.
    if not kinds or (skip and any(map(_takes_numbers, kinds))):
        return function
    if function in _guards:
        return _guards[function]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except SYMPTOMS:
            wrong = refusal(function, args, kwargs)
            if wrong is None:
                raise
            raise wrong from None

    _guards[function] = _guards[call] = call
    return call


def refusal(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> OperandError | None:
    """Returns the error to raise for a failed call; None if its arguments are not the reason.

    Args:
        function: The function that was called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for name, value in given.items():
        parameter = signature.parameters[name]
        kind = _text(parameter.annotation)
        if not _takes_tensors(kind):
            continue
        several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        for each in value if several else [value]:
            if (wrong := _wrong(each, kind)) is not None:
                return _refused(function.__qualname__, name, kind, each, wrong)
    return None


def not_a_tensor(what: str, expected: str, value: object) -> OperandError:
    """Returns the error for a value that is no tensor: `{what} must be {expected}, not {type}`.

    Args:
        what: Name of the value in the report, such as `add(): argument 'other'`.
        expected: Name of the type that the value must have.
        value: The value.
    """
    return OperandError(
        f"{what} must be {expected}, not {type_name(value)}",
        [site_fact(call_site()), *_described(value)],
        hint=hint_for(value),
    )


def hint_for(value: object) -> str:
    """Returns a hint how to make a tensor from a value; empty if there is no single way."""
    if isinstance(value, np.ndarray):
        return "torch.from_numpy(array) makes a tensor of it"
    if isinstance(value, list | tuple | Number | np.generic):
        return "torch.tensor(data) makes a tensor of it"
    return ""


def _refused(function: str, name: str, kind: str, value: object, wrong: list[int]) -> OperandError:
    expected = "Tensor" if wrong else _in_words(kind)
    place = "".join(f"[{index}]" for index in wrong)
    for index in wrong:
        value = value[index]  # type: ignore[index]
    return not_a_tensor(f"{function}(): argument {name + place!r}", expected, value)


def _in_words(kind: str) -> str:
    options = [_stem(option) for option in _options(kind)]
    words = ["Tensor"] if _TENSORS.intersection(options) else []
    words += [f"{stem.lower()} of Tensors" for stem in options if stem in _SERIES]
    words += ["number"] if _takes_numbers(kind) else []
    words += ["None"] if "None" in options else []
    return " or ".join(words)


def _described(value: object) -> list[str]:
    if isinstance(value, np.ndarray):
        return [f"got an array of shape {list(value.shape)} and type {value.dtype}"]
    shown = isinstance(value, list | tuple | str | Number)
    return [f"got {reprlib.repr(value)}"] if shown else []


def type_name(value: object) -> str:
    """Returns the name of a value's type, such as `list` or `numpy.ndarray`."""
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


# Annotations


def _text(annotation: Any) -> str:
    """Returns an annotation as it is written, without the names of modules."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    text = annotation if isinstance(annotation, str) else str(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return re.sub(r"\b(\w+\.)+", "", text)


def _takes_tensors(kind: str) -> bool:
    return any(
        option in _TENSORS or (_stem(option) in _SERIES and _takes_tensors(_inner(option)))
        for option in _options(kind)
    )


def _takes_numbers(kind: str) -> bool:
    return any(option in _NUMBERS for option in _options(kind))


def _options(kind: str) -> list[str]:
    """Returns the parts of a union."""
    parts, depth = [""], 0
    for letter in kind:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _stem(option: str) -> str:
    return option.partition("[")[0]


def _inner(option: str) -> str:
    return option.partition("[")[2].removesuffix("]").removesuffix(", ...")


def _wrong(value: Any, kind: str) -> list[int] | None:
    """Returns the indices of the first entry that is no tensor; None if the value fits."""
    if isinstance(value, Tensor):
        return None
    nested = None
    for option in _options(kind):
        stem = _stem(option)
        if stem in _TENSORS:
            continue
        if stem == "None":
            fits = value is None
        elif stem in _NUMBERS:
            fits = isinstance(value, Number | np.generic)
        elif stem in _SERIES:
            if isinstance(value, list | tuple):
                nested = _wrong_inside(value, _inner(option))
                fits = nested is None
            else:
                # A generator is already used up.
                fits = stem == "Iterable" and isinstance(value, Iterator)
        else:
            fits = True
        if fits:
            return None
    return nested or []


def _wrong_inside(values: Sequence[Any], kind: str) -> list[int] | None:
    for index, value in enumerate(values):
        wrong = _wrong(value, kind)
        if wrong is not None:
            return [index, *wrong]
    return None
