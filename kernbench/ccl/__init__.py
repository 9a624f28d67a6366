"""Collective algorithms as programs, chosen by YAML, recorded into plans."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kernbench.ccl.collective import Collective
    from kernbench.ccl.plan import NOTHING, Comm
    from kernbench.ccl.prepared import CollectiveShape

__all__ = ["NOTHING", "Collective", "CollectiveShape", "Comm"]

_MODULES: Final = {
    "NOTHING": "plan",
    "Collective": "collective",
    "CollectiveShape": "prepared",
    "Comm": "plan",
}


def __getattr__(name: str) -> Any:
    # Imported when they are first asked for: a program without collectives needs none of them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
