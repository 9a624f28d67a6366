"""Writes `frozen_names.txt`: the public names of `kernbench.torch`, for `test_frozen_names.py`.

`python tests/torch/frozen_names.py` writes the file anew, in the commit of the decision (ADR 0045).
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kernbench.torch
from kernbench.runtime_api.namespace import root

FILE: Final = Path(__file__).with_name("frozen_names.txt")

HEAD: Final = """\
# The public names of kernbench.torch, a module or class and its names a line, written by
# tests/torch/frozen_names.py. The list is frozen: a new name needs a decision (ADR 0045).
"""

LEFT_OUT: Final = {"torch.distributed.ProcessGroup", "torch.nn.Parameter"}
"""Classes whose members serve the rooms that make them, and not programs."""

HELPERS: Final = {"VERSION", "not_simulated"}
"""What modules import for themselves."""


def listed() -> dict[str, frozenset[str]]:
    """Returns the public names of each module and class, by PyTorch's paths."""
    found: dict[str, frozenset[str]] = {}
    classes: dict[type, str] = {}
    for path, module in _modules(kernbench.torch, "torch"):
        names = _names(module, path)
        found[path] = frozenset(names)
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value):
                classes.setdefault(value, f"{path}.{name}")
            elif path == "torch.backends":  # objects, where PyTorch has modules
                found[f"{path}.{name}"] = frozenset(_members(type(value), {}))
    for kind, path in classes.items():
        if _is_ours(kind) and not issubclass(kind, BaseException) and path not in LEFT_OUT:
            found[path] = frozenset(_members(kind, classes))
    return {path: names for path, names in found.items() if names}


def text() -> str:
    """Returns the content of the file."""
    lines = [f"{path}: {' '.join(sorted(names))}" for path, names in sorted(listed().items())]
    return HEAD + "\n".join(lines) + "\n"


def _modules(module: ModuleType, path: str) -> Iterator[tuple[str, ModuleType]]:
    yield path, module
    for info in pkgutil.iter_modules(vars(module).get("__path__", [])):
        if info.name != "_rooms":  # imports, and is no name of PyTorch
            part = importlib.import_module(f"{module.__name__}.{info.name}")
            yield from _modules(part, f"{path}.{info.name}")


def _names(module: ModuleType, path: str) -> list[str]:
    """Returns what the module shows, and what the room below gives it: `torch.ops.aten._name`."""
    tree: Any = root()
    for part in path.split(".")[1:]:
        tree = tree.get(part, {})
    shown = {name for name in dir(module) if not name.startswith("_")} - HELPERS
    return sorted(shown | {name for name in tree if not name.startswith("__")})


def _members(kind: type, public: dict[type, str]) -> set[str]:
    """Returns the names of a class, but for those that a class above it lists or brings."""
    above = [each for each in kind.__mro__[1:] if each in public or not _is_ours(each)]
    inherited = {name for each in above for name in dir(each)}
    ours = [each for each in kind.__mro__ if each not in above]
    return {name for each in ours for name in vars(each) if not name.startswith("_")} - inherited


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "kernbench"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
