"""Containers that are defaults of parameters: a function that fills one keeps state in it."""

import dis
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

_CHANGES: Final = frozenset(
    (
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "update",
    )
)
_STORES: Final = frozenset((dis.opmap["STORE_SUBSCR"], dis.opmap["DELETE_SUBSCR"]))


class Default:
    """The default of one parameter, as an attribute that can be read and set.

    Attributes:
        function: The function.
        key: The place of the default among those of positions, or the name of a keyword.
    """

    def __init__(self, function: FunctionType, key: int | str) -> None:
        self.function, self.key = function, key

    @property
    def value(self) -> Any:
        """What the parameter is if nobody gives it."""
        return self._all()[self.key]

    @value.setter
    def value(self, value: Any) -> None:
        values = self._all()
        if self.key not in values:
            return  # the program has given the function other defaults
        values[self.key] = value
        if isinstance(self.key, str):
            self.function.__kwdefaults__ = values
        else:
            self.function.__defaults__ = tuple(values.values())

    @value.deleter
    def value(self) -> None:
        """Leaves the function as it is: who has given it other defaults has done so for all."""

    def _all(self) -> dict[Any, Any]:
        if isinstance(self.key, str):
            return dict(self.function.__kwdefaults__ or {})
        return dict(enumerate(self.function.__defaults__ or ()))

    def get(self, name: str, missing: Any) -> Any:
        """As of the names of a module: returns the value.

        Args:
            name: The name of the attribute, `value`.
            missing: What to return if the function has been given other defaults.
        """
        assert name == "value"
        return self._all().get(self.key, missing)


def defaults_in(
    values: Iterable[Any], space: dict[str, Any], kinds: frozenset[type]
) -> Iterator[Default]:
    """Yields defaults of functions that are containers, where the code may change one.

    Args:
        values: Functions, also of classes, and anything else, which is passed over.
        space: Names of the module; what another one has defined is passed over.
        kinds: Types of containers.
    """
    for value in values:
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if not isinstance(function, FunctionType) or function.__globals__ is not space:
            continue
        found: list[tuple[int | str, Any]] = list(enumerate(function.__defaults__ or ()))
        found += (function.__kwdefaults__ or {}).items()
        keys = [key for key, default in found if type(default) in kinds]
        if keys and _changes(function.__code__):
            yield from (Default(function, key) for key in keys)


def _changes(code: CodeType) -> bool:
    """Returns whether code stores into a container, or calls a method that changes one."""
    return (
        not _CHANGES.isdisjoint(code.co_names)
        or not _STORES.isdisjoint(code.co_code[::2])
        or any(isinstance(each, CodeType) and _changes(each) for each in code.co_consts)
    )
