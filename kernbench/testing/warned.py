"""Warnings of a case: raised where it runs, and reported where its test runs, as plain values."""

import re
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple


class Warned(NamedTuple):
    """A warning that a case has raised.

    Attributes:
        text: Its text.
        category: Its class, as `module:name`.
        file: Where it was raised.
        line: Line in the file.
    """

    text: str
    category: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.category.rpartition(':')[2]}: {self.text}"

    def again(self) -> None:
        """Raises the warning in this process, for whoever collects warnings here."""
        category = _class(self.category)
        warnings.warn_explicit(self.text, category, self.file, self.line)


def warned(messages: Iterable[warnings.WarningMessage]) -> tuple[Warned, ...]:
    """Returns warnings that were recorded as plain values."""
    return tuple(
        Warned(str(each.message), _named(each.category), each.filename, each.lineno)
        for each in messages
    )


def encoded_filters() -> list[list[Any]]:
    """Returns the filters of warnings of this process as plain values, in their order."""
    return [
        [action, _pattern(message), _named(category), _pattern(module), line]
        for action, message, category, module, line in warnings.filters
    ]


def put_filters(filters: Sequence[Sequence[Any]]) -> None:
    """Makes filters of warnings those of this process.

    Args:
        filters: Values of `encoded_filters`.
    """
    warnings.resetwarnings()
    for action, message, category, module, line in filters:
        warnings.filterwarnings(action, message, _class(category), module, line, append=True)


def _pattern(pattern: "re.Pattern[str] | str | None") -> str:
    return pattern.pattern if isinstance(pattern, re.Pattern) else pattern or ""


def _named(category: Any) -> str:
    return f"{category.__module__}:{category.__qualname__}"


def _class(name: str) -> type[Warning]:
    """Returns the class of a name; `UserWarning` if this process does not have it."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
