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
    names = {id(vars(module)): name for name, module in list(sys.modules.items()) if _user(module)}
    found: list[Any] = [
        each
        for each in gc.get_objects()
        if isinstance(each, Tensor) and each.memory.buffer.allocation is block
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


def _user(module: object) -> bool:
    name = getattr(module, "__name__", "")
    return isinstance(module, ModuleType) and str(name).partition(".")[0] != "kernbench"


def _name(holder: dict[str, Any], held: object) -> str:
    return next((name for name, value in holder.items() if value is held), "?")
