"""Lets `import torch` mean `kernbench.torch` for a while, whether PyTorch is installed or not."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Final

from kernbench.runtime_api.missing import missing_package
from kernbench.scripts.explaining import is_torch, module_sentence

_OURS: Final = "kernbench.torch"


def torch_modules() -> Mapping[str, ModuleType]:
    """Returns the modules of `kernbench.torch` by PyTorch's names."""
    face = importlib.import_module(_OURS)
    names = [info.name for info in pkgutil.walk_packages(face.__path__, f"{_OURS}.")]
    return {
        name.removeprefix("kernbench."): importlib.import_module(name) for name in (_OURS, *names)
    }


class _Refusing:
    """Stands first on `sys.meta_path`: refuses what `kernbench.torch` lacks, by name.

    Without it Python would find these modules in PyTorch itself, if that is installed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if is_torch(name):
            raise ModuleNotFoundError(module_sentence(name), name=name)
        said = missing_package(name)
        if said is not None and not _is_the_users(name):
            raise ModuleNotFoundError(said, name=name)
        return None


def _is_the_users(name: str) -> bool:
    """Returns whether a package lies outside of where packages are installed."""
    found = PathFinder.find_spec(name.partition(".")[0])
    places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    parts = [Path(place).parts for place in places if place]
    return bool(parts) and not any({"site-packages", "dist-packages"} & set(each) for each in parts)


_lock: Final = RLock()
_blocks: Final[list[ExitStack]] = []
"""For each block of `as_torch` that is running, of all threads, what the last one to end undoes."""


@contextmanager
def as_torch() -> Iterator[None]:
    """Lets `import torch` and its submodules mean `kernbench.torch` inside a block.

    Afterwards PyTorch is as it was, imported or not, and modules that were imported in the block
    and hold something of `kernbench.torch` under PyTorch's name are forgotten, so that the next
    import reads them again. Blocks may be nested, and may overlap in several threads: `torch` is
    that of the whole process until the last one ends.
    """
    with _lock:
        _blocks.append(_blocks[-1] if _blocks else _replaced())
    try:
        yield
    finally:
        with _lock:
            undo = _blocks.pop()
            if not _blocks:
                undo.close()


def _replaced() -> ExitStack:
    """Puts `kernbench.torch` in PyTorch's place, and returns what undoes it."""
    ours = torch_modules()
    before = {name: module for name, module in sys.modules.items() if is_torch(name)}
    others = set(sys.modules)
    finder = _Refusing()
    with ExitStack() as undo:
        for name in before:
            del sys.modules[name]
        undo.callback(_put_back, before, others, set(map(id, ours.values())))
        sys.modules.update(ours)
        sys.meta_path.insert(0, finder)
        undo.callback(_remove, finder)
        return undo.pop_all()


def _remove(finder: object) -> None:
    sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]


def _put_back(before: Mapping[str, ModuleType], others: set[str], ours: set[int]) -> None:
    for name, module in list(sys.modules.items()):
        new = name not in others and name.partition(".")[0] not in {"kernbench", "__main__"}
        if is_torch(name) or (new and _holds(module, ours)):
            del sys.modules[name]
    sys.modules.update(before)


def _holds(module: ModuleType | None, ours: set[int]) -> bool:
    """Returns whether a module holds a module of `kernbench.torch`, or something defined by us."""
    values = list(getattr(module, "__dict__", {}).values())
    return any(id(value) in ours or _is_ours(value) for value in values)


def _is_ours(value: object) -> bool:
    defined = getattr(value, "__module__", None)
    return isinstance(defined, str) and defined.startswith("kernbench.")
