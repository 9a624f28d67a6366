"""Who holds a tensor that should be gone: the names of modules from which it can be reached."""

import gc
import sys
from types import FrameType, ModuleType
from typing import Any, Final

from kernbench.memory.allocator import Allocation
from kernbench.tensors.tensor import Tensor

_DEPTH: Final = 6
"""Most steps from a block to the name that holds it."""

_MOST: Final = 20_000
"""Most objects that the search looks at."""


def holders_of(block: Allocation) -> str:
    """Returns who holds a block of memory, such as `, held by test_x.KEPT`; empty if unknown.

    Args:
        block: A block that is in use.
    """
    names = {
        id(held): name for name, module in list(sys.modules.items()) if (held := _names_of(module))
    }
    found: list[Any] = [
        each
        for each in gc.get_objects()
        # By its type: `isinstance` asks an object for `__class__`, which runs code of strangers.
        if issubclass(type(each), Tensor) and each.memory.buffer.allocation is block
    ]
    seen = {id(found)}
    level = found
    for _ in range(_DEPTH):
        following: list[Any] = []
        # Every list of this search refers to what it has found.
        seen |= {id(level), id(following)}
        for held in level:
            for holder in gc.get_referrers(held):
                if id(holder) in names:
                    return f", held by {names[id(holder)]}.{_name(holder, held)}"
                if id(holder) in seen or isinstance(holder, FrameType) or len(seen) > _MOST:
                    continue
                seen.add(id(holder))
                following.append(holder)
        level = following
    return ""


def _names_of(module: object) -> dict[str, Any] | None:
    """Returns the names of a module that is not ours; runs no code of it, as a lazy one has."""
    if not issubclass(type(module), ModuleType):
        return None
    names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return None if str(names.get("__name__")).partition(".")[0] == "kernbench" else names


def _name(holder: dict[str, Any], held: object) -> str:
    return next((name for name, value in holder.items() if value is held), "?")
