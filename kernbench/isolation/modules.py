"""Modules of the program, which each rank imports for itself (ADR 0040)."""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kernbench.isolation.belonging import is_extension, is_of_rank, places_of
from kernbench.isolation.here import HERE


class Modules:
    """Modules of the program, which each rank imports for itself.

    They are taken from `sys.modules` when another rank goes on. So it does not matter who has found
    and loaded them: Python, pytest, a finder of the program, or the program's own hand.

    Args:
        roots: Folders of the program: what was imported from there before it began is its own, too.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        folders = tuple(f"{root.resolve()}/" for root in roots)
        self._names: Final = {"__mp_main__"}
        self._hanging: Final[set[str]] = set()
        self._extensions: Final[dict[str, ModuleType]] = {}
        self._judged: set[str] = set(sys.modules)
        self._newest = next(reversed(sys.modules))
        for name, module in list(sys.modules.items()):
            if name != "__main__" and is_of_rank(name, module):
                places = [f"{Path(place).resolve()}/" for place in places_of(module)]
                if any(place.startswith(folders) for place in places):
                    self._names.add(name)

    @property
    def names(self) -> set[str]:
        """Names of the program's modules, with those that have come since the last `take`."""
        return self._names | set(self._new())

    def _new(self) -> list[str]:
        return [
            name
            for name in sorted(sys.modules.keys() - self._judged)
            if name != "__main__" and is_of_rank(name, sys.modules[name])
        ]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds a library of machine code that another rank has imported: all have the same.

        Args:
            path: Not used.
            target: Not used.
        """
        del path, target
        module = self._extensions.get(name)
        if module is None or HERE.rank is None:
            return None
        again: Any = _Again(module)
        return ModuleSpec(name, again, origin=getattr(module, "__file__", None))

    def take(self) -> dict[str, ModuleType]:
        """Takes the program's modules out of `sys.modules`, and returns them."""
        modules = sys.modules
        taken = {name: modules.pop(name) for name in self._names & modules.keys()}
        if len(modules) != len(self._judged) or next(reversed(modules)) != self._newest:
            self._judge(taken)
        locks: Any = vars(importlib._bootstrap).get("_module_locks", {})
        for name in taken:
            locks.pop(name, None)  # another rank may import it before this one is done
        for name in self._hanging & taken.keys():
            parent, _, child = name.rpartition(".")
            space = vars(modules[parent])
            if space.get(child) is taken[name]:
                delattr(modules[parent], child)
        return taken

    def _judge(self, taken: dict[str, ModuleType]) -> None:
        """Adds modules of the program that have come since."""
        modules = sys.modules
        for name in self._new():
            module = modules[name]
            self._names.add(name)
            parent = name.rpartition(".")[0]
            if parent in modules and parent not in self._names:
                self._hanging.add(name)
            if is_extension(module):
                self._extensions[name] = module
            taken[name] = module
        for name in taken:
            modules.pop(name, None)
        self._judged = set(modules)
        self._newest = next(reversed(modules))

    def put(self, modules: dict[str, ModuleType]) -> None:
        """Puts modules of a rank back into `sys.modules`.

        Args:
            modules: What `take` has returned.
        """
        sys.modules.update(modules)
        for name in self._hanging & modules.keys():
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, modules[name])


class _Again:
    """Loads a module that has run already."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Final = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the module."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has run."""
