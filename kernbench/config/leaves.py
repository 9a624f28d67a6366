"""Leaves of a file by their annotations: no coercion, and YAML 1.1's surprises explained."""

import math
import re
from typing import Any, Final, cast

from kernbench.config.near import did_you_mean, nearest
from kernbench.config.problems import short
from kernbench.config.schema import Quantity, Range
from kernbench.config.yaml_file import Node, Scalar, describe
from kernbench.units import Rate, UnitError, format_exact

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_BOOLEAN: Final = re.compile(r"true|false", re.IGNORECASE)
_OCTAL: Final = re.compile(r"[+-]?0[0-7_]+")
_NEW_OCTAL: Final = re.compile(r"[+-]?0o[0-7]{1,20}")
_EXPONENT: Final = re.compile(r"[+-]?[0-9]{1,9}(\.[0-9]{1,9})?[eE]\+?1?[0-9]")


class MismatchError(Exception):
    """A node does not fit its annotation.

    Attributes:
        message: What was expected and what was found.
        code: Class of the mistake, `F2` to `F4`.
        hint: `did you mean ...?`, or empty.
    """

    def __init__(self, message: str, *, code: str = "F2", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint


def read_literal(choices: tuple[Any, ...], node: Node) -> Any:
    """Returns the choice that a node names.

    Args:
        choices: Values that the annotation allows.
        node: The node of the file.

    Raises:
        MismatchError: If the node names none of the choices.
    """
    value = node.value if isinstance(node, Scalar) else None
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    raise MismatchError(f"expected one of {', '.join(choices)}, got {describe(node)}", hint=hint)


def read_scalar(kind: type, limits: Range | None, node: Node) -> Any:
    """Returns the value of a node as an `int`, `str` or `bool`.

    Args:
        kind: The type of the value: `int`, `str` or `bool`.
        limits: Inclusive limits of an `int`; None if there are none.
        node: The node of the file.

    Raises:
        MismatchError: If the node has another type, or lies outside of the limits.
    """
    what = {int: "an integer", str: "text", bool: "true or false"}[kind]
    if limits is not None:
        what += f" from {limits.lo} to {limits.hi}"
    if not isinstance(node, Scalar):
        raise MismatchError(f"expected {what}, got {describe(node)}")
    value = node.value
    if kind is int and node.plain:
        if isinstance(value, float) and not math.isfinite(value):
            raise MismatchError(f"expected {what}, got {node.text}", code="F3")
        # The YAML reader leaves numbers of absurd length as text.
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            raise MismatchError(f"expected {what}, got {short(value)}", code="F4")
    if type(value) is not kind or (kind is int and _trap(node)):
        raise MismatchError(f"expected {what}, got {describe(node)}{_advice(kind, node)}")
    if limits is not None:
        _check(cast(int, value), limits, what, node)
    return value


def read_quantity(quantity: Quantity, limits: Range, node: Node, *, bare: bool) -> Any:
    """Returns the value of a node that is written with its unit.

    Args:
        quantity: How the value is written, such as a time or a size.
        limits: Inclusive limits in the base unit.
        node: The node of the file.
        bare: Whether it may also be a whole number, in the base unit.

    Raises:
        MismatchError: If the text is no such quantity, or lies outside of the limits.
    """
    lo, hi = (format_exact(limit, quantity.units) for limit in (limits.lo, limits.hi))
    what = f"{quantity.what} from {lo} to {hi}"
    such_as = f"{what}, such as {quantity.example}"
    if not isinstance(node, Scalar):
        raise MismatchError(f"expected {such_as}, got {describe(node)}")
    value = node.value
    if bare and type(value) is int and not _trap(node):
        _check(value, limits, what, node)
        return value
    if re.match(r"[+-]?\.?(nan|inf)", node.text, re.IGNORECASE):
        raise MismatchError(f"expected {what}, got {short(node.text)}", code="F3")
    if not isinstance(value, str):
        trap = _trap(node)
        unitless = "a number without a unit" if type(value) in {int, float} else ""
        note = f" ({trap or unitless})" if trap or unitless else ""
        raise MismatchError(f"expected {such_as}, got {describe(node)}{note}")
    try:
        parsed = quantity.parse(value)
    except UnitError:
        unit = value.lstrip(" 0123456789.+-")
        number = value.removesuffix(unit).strip()
        near = nearest(unit, quantity.units)
        hint = f"did you mean `{number} {near}`?" if number and near else ""
        raise MismatchError(f"expected {such_as}, got {describe(node)}", hint=hint) from None
    _check(parsed.per_second if isinstance(parsed, Rate) else parsed, limits, what, node)
    return parsed


def _check(amount: int, limits: Range, what: str, node: Scalar) -> None:
    if not limits.lo <= amount <= limits.hi:
        code = "F3" if amount < limits.lo else "F4"
        raise MismatchError(f"expected {what}, got {short(node.text)}", code=code)


def _trap(node: Scalar) -> str:
    """Returns how YAML 1.1 misread a plain scalar, as a sentence; empty if it did not."""
    text, value = node.text, node.value
    if isinstance(value, bool) and text.lower() not in {"true", "false"}:
        return f"YAML 1.1 reads {text} as {str(value).lower()}"
    if isinstance(value, int | float) and ":" in text:
        return f"YAML 1.1 reads {text} as {value}, in base 60"
    if isinstance(value, int) and _OCTAL.fullmatch(text):
        return f"YAML 1.1 reads {text} as {value}, in base 8"
    if isinstance(value, str) and node.plain:
        if _NEW_OCTAL.fullmatch(text):
            return f"YAML 1.1 reads {text} as text: write {int(text, 8)}"
        if _EXPONENT.fullmatch(text) and float(text).is_integer():
            return f"YAML 1.1 reads {text} as text: write {float(text):.0f}"
    return ""


def _advice(kind: type, node: Scalar) -> str:
    notes = [_trap(node)]
    if kind is str and node.plain and node.value is not None:
        notes.append("quote it")
    elif not node.plain and (_INTEGER if kind is int else _BOOLEAN).fullmatch(node.text):
        notes.append("remove the quotes")
    note = ": ".join(filter(None, notes))
    return f" ({note})" if note else ""
