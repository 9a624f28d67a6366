"""What the annotation of a parameter takes, and how an error says it."""

import re
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.tensors.tensor import Tensor

_TENSORS: Final = frozenset({"Parameter", "Tensor"})
_NUMBERS: Final = frozenset({"Scalar", "bool", "complex", "float", "int"})
_SERIES: Final = frozenset({"Iterable", "Sequence", "list", "tuple"})
_ANYTHING: Final = frozenset(
    {"Any", "Callable", "Self", "T", "_empty", "ndarray", "object", "type"}
    # A rank outside of a group has a number in its place.
    | {"ProcessGroup"}
)
_ALIASES: Final = {
    "DeviceLike": "str | int | Device",
    "Dims": "int | Sequence[int] | None",
    "Operand": "Tensor | Scalar",
}
_NAMES: Final = {"DType": "torch.dtype", "Device": "torch.device", "Generator": "torch.Generator"}


@cached("tensors.annotations")
def text(annotation: Any) -> str:
    """Returns an annotation as it is written, without the names of modules.

    Args:
        annotation: A type, a union, or its text.
    """
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    kind = annotation if isinstance(annotation, str) else str(annotation)
    kind = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", kind)
    kind = re.sub(r"\b(\w+\.)+", "", kind)
    kind = re.sub(r"\bOptional\[(.*)\]$", r"\1 | None", kind)
    if kind.startswith("Union["):
        kind = " | ".join(_parts(kind[len("Union[") : -1], ","))
    return " | ".join(_ALIASES.get(option, option) for option in _parts(kind, "|"))


@cached("tensors.unions")
def options(kind: str) -> tuple[str, ...]:
    """Returns the parts of a union.

    Args:
        kind: Text of an annotation.
    """
    return tuple(_parts(kind, "|"))


def _parts(kind: str, separator: str) -> list[str]:
    parts, depth = [""], 0
    for letter in kind:
        depth += (letter == "[") - (letter == "]")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def takes_tensors(kind: str) -> bool:
    """Returns whether a tensor, or a series of tensors, is among what a kind takes.

    Args:
        kind: Text of an annotation.
    """
    return any(
        option in _TENSORS or (_stem(option) in _SERIES and takes_tensors(_inner(option)))
        for option in options(kind)
    )


def wrong_entry(value: Any, kind: str, *, strict: bool, deep: bool) -> list[int] | None:
    """Returns where a value does not fit a kind: indices of its first entry that is wrong.

    Args:
        kind: Text of an annotation.
        strict: Whether only a bool is a bool, and no bool is an integer, as where PyTorch reads
            the argument in C++.
        deep: Whether the entries of a series count; otherwise the type of `value` alone decides.

    Returns:
        Indices, none if the value as a whole is wrong; None if it fits.
    """
    if kind == "None":
        # The function itself says that the option is not simulated.
        return None
    nested = None
    for option in options(kind):
        stem = _stem(option)
        if stem in _SERIES:
            if stem == "Iterable" and isinstance(value, Iterator):
                return None
            inside = _series(value, _inner(option), strict=strict, deep=deep)
            if inside is None:
                return None
            nested = inside or nested
        elif _fits(value, stem, strict):
            return None
    return nested or []


def _series(value: Any, kind: str, *, strict: bool, deep: bool) -> list[int] | None:
    if isinstance(value, list | tuple):
        if not deep or ", " in kind:
            return None
        for index, each in enumerate(value):
            wrong = wrong_entry(each, kind, strict=strict, deep=True)
            if wrong is not None:
                return [index, *wrong]
        return None
    if isinstance(value, str | bytes) or not hasattr(type(value), "__iter__"):
        return []
    # Once a call has failed, an array is no series of tensors.
    refused = deep and takes_tensors(kind) and not isinstance(value, Tensor)
    return [] if refused else None


def _fits(value: Any, stem: str, strict: bool) -> bool:
    if stem in _ANYTHING:
        return True
    if stem == "None":
        return value is None
    if stem in _TENSORS:
        return isinstance(value, Tensor)
    if stem == "bool":
        return not strict or isinstance(value, bool | np.bool_)
    if stem == "int":
        if isinstance(value, bool | np.bool_):
            return not strict
        return not isinstance(value, np.ndarray) and hasattr(type(value), "__index__")
    if stem in _NUMBERS:
        # A tensor of one element is a number to PyTorch, too.
        return isinstance(value, Number | np.generic | Tensor)
    if stem == "Literal":
        return isinstance(value, str)
    if stem == "DType" and isinstance(value, type):
        return False  # `float` of Python, or a type of numpy
    if stem in {each.__name__ for each in type(value).__mro__}:
        return True
    # What the classes of users and of other rooms can do is not known from their names.
    return not (value is None or isinstance(value, str | Number | np.ndarray | list | tuple)) and (
        type(value) is not object
    )


def in_words(kind: str) -> str:
    """Returns how an error says what a kind takes, such as `Tensor or sequence of ints or None`.

    Args:
        kind: Text of an annotation.
    """
    parts = options(kind)
    numbers = [part for part in parts if part in _NUMBERS]
    words = ["Tensor"] if _TENSORS.intersection(parts) else []
    several = "Scalar" in numbers or {"int", "float"} <= set(numbers)
    words += [] if several else numbers
    for part in parts:
        if _stem(part) in _SERIES:
            words.append(f"{_stem(part).lower()} of {in_words(_inner(part))}s")
    words += ["number"] if several else []
    for part in parts:
        if part.startswith("Literal["):
            words.append(f"one of {part[len('Literal[') : -1]}")
        elif _stem(part) not in _SERIES and part not in {*_TENSORS, *_NUMBERS, "None"}:
            words.append(_NAMES.get(part, part))
    words += ["None"] if "None" in parts else []
    return " or ".join(words)


def entry_kind(kind: str) -> str:
    """Returns the kind of the entries of the series that a kind takes.

    Args:
        kind: Text of an annotation.
    """
    return next((_inner(part) for part in options(kind) if _stem(part) in _SERIES), kind)


def entry(value: Any, place: Sequence[int]) -> Any:
    """Returns an entry of nested series.

    Args:
        value: The outer series.
        place: Indices, the outermost first.
    """
    for index in place:
        value = value[index]
    return value


def _stem(option: str) -> str:
    return option.partition("[")[0]


def _inner(option: str) -> str:
    return option.partition("[")[2].removesuffix("]").removesuffix(", ...")
