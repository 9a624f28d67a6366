"""Whose a module is: each rank's own, or shared by all ranks (ADR 0040).

A rank's own are modules of the program: all that are neither Python's, nor PyTorch's, nor this
package's, nor of an installed distribution, however they are found and loaded.
"""

import os
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType
from typing import Any, Final

from kernbench.caches import cached

SYSTEM: Final = frozenset(("kernbench", "torch", "torchgen", "functorch", "triton"))
"""Packages that all ranks share, wherever they are."""

_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_PYTHON: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}
    | {place for place in sys.path if place.endswith(".zip") and "python3" in place}
)


def is_of_rank(name: str, module: Any) -> bool:
    """Returns whether a module is of the program, so that each rank has its own.

    Args:
        module: The module, or how it would be loaded (a `ModuleSpec`).
    """
    if name.partition(".")[0] in SYSTEM:
        return False
    places = places_of(module)
    if places:
        return not any(is_installed(place, name.count(".") + 2) for place in places)
    return isinstance(module, ModuleType) and _is_made_by_hand(name, module)


def is_extension(module: Any) -> bool:
    """Returns whether a module is a library of machine code, which a process loads once."""
    return any(place.endswith(tuple(EXTENSION_SUFFIXES)) for place in places_of(module))


def places_of(module: Any) -> list[str]:
    """Returns the files and folders of a module; none if it has been made by hand.

    Args:
        module: The module, or how it would be loaded (a `ModuleSpec`).
    """
    if isinstance(module, ModuleType):
        content = vars(module)  # `getattr` may import something
        spec = content.get("__spec__")
        found = [content.get("__file__"), getattr(spec, "origin", None)]
        folders = content.get("__path__")
    elif isinstance(module, ModuleSpec):
        found, folders = [module.origin], module.submodule_search_locations
    else:  # an object that somebody has put among the modules
        return []
    places = [place for place in found if isinstance(place, str)]
    if not places and folders is not None:  # a namespace package
        places = [place for place in folders if isinstance(place, str)]
    return places


def _is_made_by_hand(name: str, module: ModuleType) -> bool:
    """Returns whether the program has made a module without a file."""
    parent = sys.modules.get(name.rpartition(".")[0])
    if parent is not None:
        return is_of_rank(parent.__name__, parent)
    if name in sys.stdlib_module_names or vars(module).get("__spec__") is not None:
        return False
    # Code that runs in it leaves that name there; libraries of machine code make theirs without.
    return "__builtins__" in vars(module)


@cached("isolation.installed")
def is_installed(place: str, depth: int) -> bool:
    """Returns whether a file or folder is of Python, or of an installed distribution.

    Args:
        place: The file or folder.
        depth: How many folders around it may be the one into which it was installed.
    """
    if not os.path.isabs(place) and not os.path.exists(place):
        return True  # `built-in`, `frozen`
    place = os.path.abspath(place)
    inside = f"{place}{os.sep}"
    if inside.startswith(_PYTHON) or any(part in inside for part in _PACKAGES):
        return True
    for _ in range(depth):
        place = os.path.dirname(place)
        if _has_distributions(place):
            return True
    return False


@cached("isolation.distributions")
def _has_distributions(folder: str) -> bool:
    """Returns whether something was installed into a folder, as by `pip install --target`."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
