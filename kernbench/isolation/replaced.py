"""Names that are replaced while ranks run."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """A name that is replaced.

    Attributes:
        owner: The module or class that has the name.
        name: The name.
        value: What stands there instead.
    """

    owner: Any
    name: str
    value: Any


class WhenImported(NamedTuple):
    """Names that are replaced as soon as a module is there; nothing imports it for them.

    Attributes:
        module: Name of the module.
        patches: Takes the module, and gives the names. The real names stand when it is called.
    """

    module: str
    patches: Callable[[ModuleType], Iterable[Patch]]


def run_within(
    spec: ModuleSpec, block: Callable[[ModuleType], AbstractContextManager[None]]
) -> None:
    """Lets the module of a spec run inside of a block, once.

    Args:
        spec: How Python would load the module.
        block: Takes the module, and gives the block.
    """
    loader: Any = spec.loader
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        with block(module):
            run(module)

    loader.exec_module = exec_module
