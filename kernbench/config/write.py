"""Trees of frozen dataclasses to YAML, and changes of single values of a file's text."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, get_args, get_origin, get_type_hints

import yaml

from kernbench.config.load import without_limits
from kernbench.config.schema import QUANTITIES, Changes, Names
from kernbench.units import Rate, Units, format_exact

_COLUMN: Final = 40
"""Column at which comments begin, where the line is shorter."""


def _never(names: Names) -> bool:
    del names
    return False


def dump(
    value: Any, comment: Callable[[Names], str], on_a_line: Callable[[Names], bool] = _never
) -> str:
    """Returns an instance of a schema as YAML that `load` reads as an equal one.

    A part that is None is left out.

    Args:
        value: An instance of a dataclass as `load` describes it.
        comment: Returns what to write behind a value, given the names that lead to it; empty for
            nothing. Behind the name of a list of parts it is written, too.
        on_a_line: Returns whether a part is written on one line, without what has its default.
    """
    lines = _block(type(value), value, (), comment, on_a_line)
    return "".join(f"{line}\n" for line in lines)


def with_texts(text: str, values: Mapping[Names, str]) -> str:
    """Returns a YAML text with some of its scalars replaced, and all else as it is.

    Args:
        text: A text that `load` reads.
        values: New texts, by the keys that lead to them; those that the text does not have are
            left out.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    found = [(_scalar(root, names), value) for names, value in values.items()]
    places = [(node, value) for node, value in found if node is not None]
    for node, value in sorted(places, key=lambda place: -place[0].start_mark.index):
        text = text[: node.start_mark.index] + _text(value) + text[node.end_mark.index :]
    return text


def _scalar(node: Any, names: Names) -> Any:
    for name in names:
        node = next((value for key, value in node.value if key.value == name), None)
        if node is None:
            return None
    return node


def _parts(kind: Any, value: Any) -> Sequence[tuple[str, Any, Any]] | None:
    """Returns names, annotations and values of the parts of a value; None if it is a leaf."""
    kind = without_limits(kind)
    if get_origin(kind) is dict:
        return [(key, get_args(kind)[1], part) for key, part in value.items()]
    if isinstance(value, Changes):
        return _changes(get_args(kind)[0], value.values)
    if kind in QUANTITIES or not dataclasses.is_dataclass(kind):
        return None
    hints = get_type_hints(kind, include_extras=True)
    fields: Sequence[dataclasses.Field[Any]] = dataclasses.fields(kind)
    parts = [(one, hints[one.name], getattr(value, one.name)) for one in fields]
    return [(one.name, hint, part) for one, hint, part in parts if not _left_out(one, hint, part)]


def _left_out(field: dataclasses.Field[Any], kind: Any, value: Any) -> bool:
    """Returns whether a value says nothing: none of an optional part, a list or a mapping."""
    if value is None:
        return field.default is None
    return value in ((), "") or _parts(kind, value) == []


def _changes(kind: Any, values: Mapping[Names, Any]) -> Sequence[tuple[str, Any, Any]]:
    inside: dict[str, dict[Names, Any]] = {}
    for (name, *rest), value in values.items():
        inside.setdefault(name, {})[tuple(rest)] = value
    kind = without_limits(kind)
    hints = {} if get_origin(kind) is dict else get_type_hints(kind, include_extras=True)
    found = []
    for name, below in inside.items():
        part = hints[name] if hints else get_args(kind)[1]
        if () in below:
            found.append((name, part, below[()]))
        else:
            found.append((name, _CHANGES[without_limits(part)], Changes(below)))
    return found


# `Changes[...]` is subscripted while the program runs, which no type checker follows.
_CHANGES: Final[Any] = Changes


def _block(
    kind: Any,
    value: Any,
    names: Names,
    comment: Callable[[Names], str],
    on_a_line: Callable[[Names], bool],
) -> Iterator[str]:
    indent = "  " * len(names)
    for name, part, inner in _parts(kind, value) or ():
        here = (*names, name)
        if on_a_line(here):
            yield _commented(f"{indent}{name}: {_short(inner)}", comment(here))
        elif _parts(part, inner) is not None:
            yield f"{indent}{name}:"
            yield from _block(part, inner, here, comment, on_a_line)
        elif _is_list_of_parts(inner):
            yield _commented(f"{indent}{name}:", comment(here))
            for item in inner:
                yield f"{indent}  - {flow(get_args(without_limits(part))[0], item)}"
        else:
            yield _commented(f"{indent}{name}: {flow(part, inner)}", comment(here))


def _commented(line: str, said: str) -> str:
    return f"{line:<{_COLUMN - 1}} # {said}" if said else line


def _short(value: Any) -> str:
    """Returns a dataclass instance on one line, without what has its default."""
    default = {one.name: one.default for one in dataclasses.fields(value)}
    parts = _parts(type(value), value) or ()
    told = [f"{name}: {flow(part, one)}" for name, part, one in parts if one != default.get(name)]
    return "{" + ", ".join(told) + "}"


def _is_list_of_parts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and dataclasses.is_dataclass(value[0])


def flow(kind: Any, value: Any) -> str:
    """Returns a value as YAML on one line.

    Args:
        kind: The annotation of the value.
    """
    parts = _parts(kind, value)
    if parts is not None:
        return "{" + ", ".join(f"{name}: {flow(part, one)}" for name, part, one in parts) + "}"
    kind = without_limits(kind)
    if isinstance(value, tuple):
        kinds = get_args(kind)
        every = [kinds[0]] * len(value) if kinds[-1] is Ellipsis else kinds
        return "[" + ", ".join(map(flow, every, value)) + "]"
    if quantity := QUANTITIES.get(kind):
        return _amount(value.per_second if isinstance(value, Rate) else value, quantity.units)
    if value is None:
        return "null"
    return _text(value) if isinstance(value, str) else str(value)


def _amount(amount: int, units: Units) -> str:
    """Returns the text of an amount, exact, with the fewest digits and the largest unit."""
    texts = [format_exact(amount, units)]
    scales = {unit: Fraction(scale) for unit, scale in units.items()}
    for unit, scale in sorted(scales.items(), key=lambda item: item[1]):
        scaled = amount / scale * 10**_DECIMALS
        if amount >= scale and scaled.denominator == 1:
            number = Decimal(scaled.numerator).scaleb(-_DECIMALS)
            texts.append(f"{number.normalize():f} {unit}")
    return min(reversed(texts), key=lambda text: sum(map(str.isdigit, text)))


_DECIMALS: Final = 6


def _text(value: str) -> str:
    plain = value.replace("_", "a").replace("-", "a").isalnum() and yaml.safe_load(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)
