"""Modules that hold modules: `torch.nn.Sequential`, `ModuleList`, `ModuleDict`."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, overload

from kernbench.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class Sequential(Module):
    """`torch.nn.Sequential`: modules that are called one after the other, or a mapping of them."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named = (
            modules[0].items()
            if len(modules) == 1 and isinstance(modules[0], Mapping)
            else [(str(index), module) for index, module in enumerate(modules)]
        )
        for name, module in named:
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """Returns the result of the last module."""
        for module in self._children():
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._children())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._children())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> "Sequential": ...
    def __getitem__(self, index: int | slice) -> "Module | Sequential":
        if isinstance(index, slice):
            named = list(self._registries()[2].items())
            return type(self)(dict(named[index]))
        return self._children()[index]

    def _children(self) -> list[Module]:
        return [child for child in self._registries()[2].values() if child is not None]

    def append(self, module: Module) -> "Sequential":
        """Adds a module at the end, and returns the `Sequential`."""
        self.add_module(str(len(self)), module)
        return self


class ModuleList(Module):
    """`torch.nn.ModuleList`: a list of modules whose parameters belong to the tree."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _children(self) -> list[Module]:
        return list(self._registries()[2].values())

    def _shown_children(self) -> Iterator[tuple[str, str]]:
        """Yields one entry for neighbours with equal `repr`, as PyTorch does."""
        index = 0
        for text, alike in groupby(map(repr, self._children())):
            count = len(list(alike))
            last = index + count - 1
            yield (str(index), text) if count == 1 else (f"{index}-{last}", f"{count} x {text}")
            index = last + 1

    def __len__(self) -> int:
        return len(self._children())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._children())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> "ModuleList": ...
    def __getitem__(self, index: int | slice) -> "Module | ModuleList":
        found = self._children()[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(str(range(len(self))[index]), module)

    def append(self, module: Module) -> "ModuleList":
        """Adds a module at the end, and returns the list."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> "ModuleList":
        """Adds modules at the end, and returns the list."""
        for module in modules:
            self.append(module)
        return self


class ModuleDict(Module):
    """`torch.nn.ModuleDict`: a dict of modules whose parameters belong to the tree."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            self[name] = module

    def _children(self) -> dict[str, Module]:
        found: dict[str, Module] = self._registries()[2]
        return found

    def __len__(self) -> int:
        return len(self._children())

    def __iter__(self) -> Iterator[str]:
        return iter(self._children())

    def __contains__(self, name: object) -> bool:
        return name in self._children()

    def __getitem__(self, name: str) -> Module:
        return self._children()[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._children()[name]

    def pop(self, key: str) -> Module:
        """Takes a module out, and returns it."""
        return self._children().pop(key)

    def update(self, modules: Mapping[str, Module]) -> None:
        """Adds modules by name, in place of those that are there."""
        for name, module in modules.items():
            self[name] = module

    def keys(self) -> Iterable[str]:
        """Returns the names."""
        return self._children().keys()

    def values(self) -> Iterable[Module]:
        """Returns the modules."""
        return self._children().values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Returns names and modules."""
        return self._children().items()
