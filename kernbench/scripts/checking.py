"""`kernbench check`: the names of `torch` that a file uses and that are not there, or refused.

The file is read, not run. What a name means is followed through imports, through assignments such
as `F = torch.nn.functional`, and into the user's own modules beside the file.
"""

import argparse
import ast
import builtins
import collections
import datetime
import io
import logging
import pathlib
import queue
import random
import string
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from kernbench.errors import UsageError
from kernbench.runtime_api.missing import pytorch_names
from kernbench.scripts.as_torch import torch_modules
from kernbench.scripts.uses import MissingUses, RefusedUses, Uses, beside

_KINDS: Final[Mapping[str, str]] = {
    "torch.Tensor": "a tensor",
    "torch.nn.Module": "a module",
    "torch.optim.Optimizer": "an optimizer",
}
"""Classes of which an attribute is recognised by its name alone, and what reports call them."""


class Finding(NamedTuple):
    """A name that a file uses and that is not there.

    Attributes:
        file: The file.
        lines: Lines that use the name, each once.
        text: What to do about it.
    """

    file: Path
    lines: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        first, *more = self.lines
        also = f" (also in {'lines' if more[1:] else 'line'} {', '.join(map(str, more))})"
        return f"{_shown(self.file)}:{first}: {self.text}{also if more else ''}"


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_files(
    paths: Iterable[Path], *, torchrun: bool = False
) -> tuple[list[Finding], list[Path]]:
    """Returns what is not there for files and for the users' modules that they import.

    Args:
        paths: The files.
        torchrun: Whether the files are to run with PyTorch itself, by `kernbench torchrun`: then
            what that refuses is found, and not what `kernbench.torch` lacks.

    Returns:
        The findings by file and line, and the files that were read.

    Raises:
        UsageError: If a file cannot be read, or is no Python (F10, F11).
    """
    trees: dict[Path, ast.Module] = {}
    for path in paths:
        _read(path.resolve(), trees)
    findings: list[Finding] = []
    for uses, path in _refused(trees) if torchrun else _missing(trees):
        found: dict[str, list[int]] = {}
        for line, text in sorted(uses.found):
            lines = found.setdefault(text, [])
            if line not in lines:
                lines.append(line)
        findings += [Finding(path, tuple(lines), text) for text, lines in found.items()]
    return findings, list(trees)


def _refused(trees: Mapping[Path, ast.Module]) -> Iterator[tuple[Uses, Path]]:
    for path, tree in trees.items():
        yield RefusedUses(path, tree), path


def _missing(trees: Mapping[Path, ast.Module]) -> Iterator[tuple[Uses, Path]]:
    modules = torch_modules()
    known = _names_of_python().union(_names_of_ours(modules), *map(_own_attributes, trees.values()))
    recognised = {
        name: (path, kind)
        for path, kind in reversed(list(_KINDS.items()))
        for name in pytorch_names()[path] - known
    }
    for path, tree in trees.items():
        yield MissingUses(path, tree, modules, recognised), path


# Files


def _read(path: Path, trees: dict[Path, ast.Module]) -> None:
    if path in trees:
        return
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{_shown(path)} {what}", ["expected a Python file"], code="F11")
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UsageError(
            f"{_shown(path)}:{error.lineno or 1}: {error.msg}",
            [(error.text or "").strip()] if error.text else [],
            code="F10",
        ) from None
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{_shown(path)} is no Python file: {error}", code="F10") from None
    trees[path] = tree
    for name, level in _imported(tree):
        if name.partition(".")[0] not in {"kernbench", "torch"} or level:
            for found in beside(path, name, level):
                _read(found, trees)


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield base, node.level
            for alias in node.names:
                yield f"{base}.{alias.name}".lstrip("."), node.level


def _own_attributes(tree: ast.Module) -> frozenset[str]:
    """Returns names of attributes that a file defines: in classes, by assignment, as options."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.add(part.name)
                elif isinstance(part, ast.Assign | ast.AnnAssign):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    found |= {each.id for each in targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("--"):
            # An option, which is an attribute of the parsed arguments.
            found.add(str(node.value)[2:].replace("-", "_"))
    return frozenset(found)


_COMMON: Final = (
    argparse,
    collections,
    datetime,
    io,
    logging,
    pathlib,
    queue,
    random,
    string,
    subprocess,
    threading,
)
"""Modules of the standard library whose classes many programs use."""


def _names_of_python() -> frozenset[str]:
    """Returns the attributes of Python's own common classes."""
    values = [value for module in (builtins, *_COMMON) for value in vars(module).values()]
    return frozenset(name for each in values if isinstance(each, type) for name in dir(each))


def _names_of_ours(modules: Mapping[str, ModuleType]) -> frozenset[str]:
    """Returns the attributes of all classes that are there."""
    values = [value for module in modules.values() for value in vars(module).values()]
    return frozenset(name for each in values if isinstance(each, type) for name in dir(each))
