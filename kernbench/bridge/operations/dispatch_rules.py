"""Finds PyTorch's rules for classes of modes faster.

Before each call of a dispatch mode PyTorch asks in Python, by three calls, whether a library has
registered a rule of its own for the operation and the class of the mode. The first of them, which
finds the entry of the operation, is made a method of a dictionary here.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch._library import simple_registry

from kernbench.isolation.replaced import Patch


class _Entries(dict[str, Any]):
    """Entries of the registry by the name of the operation, made when they are first asked for.

    Args:
        find: The registry's own function.
    """

    def __init__(self, find: Callable[[str], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> Any:
        return self.setdefault(name, self._find(name))


def patches() -> Iterator[Patch]:
    """Yields the registry's function."""
    registry = simple_registry.singleton
    yield Patch(registry, "find", _Entries(registry.find).__getitem__)
