"""What a file names of `torch`: followed through imports, assignments and scopes, and not run."""

import ast
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kernbench.runtime_api.missing import missing, missing_package, pytorch_names, runs_nowhere
from kernbench.runtime_api.refused_names import refusal

_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

_MISSES: Final = frozenset(
    {"AttributeError", "BaseException", "Exception", "ImportError", "ModuleNotFoundError"}
)
"""Exceptions that a program catches if it can do without a name."""


class Uses(ABC):
    """The names of `torch` that a file uses.

    Args:
        tree: Its content.

    Attributes:
        found: For each use of a name that is not there, the line and what to do.
    """

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.found: Final[set[tuple[int, str]]] = set()
        self._path_of_file: Final = path
        self._scopes: list[dict[str, str | None]] = []
        self._catching = 0
        self._asked: frozenset[str] = frozenset()
        self._scope(tree, tree.body)

    # What is to be found

    @abstractmethod
    def _names_of(self, module: str) -> Iterable[str]:
        """Returns the names that `from MODULE import *` gives."""

    @abstractmethod
    def _use(self, path: str, line: int) -> None:
        """Looks at a name of torch by its whole name."""

    @abstractmethod
    def _use_package(self, name: str, line: int) -> None:
        """Looks at another package, or a module of it."""

    def _use_attribute(self, node: ast.Attribute) -> None:  # noqa: B027 - most look at none
        """Looks at an attribute of something that is not known."""

    # Where names are bound

    def _scope(self, owner: ast.AST, body: Sequence[ast.AST]) -> None:
        bound: dict[str, str | None] = {}
        taken = getattr(owner, "args", None)
        if isinstance(taken, ast.arguments):
            every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
            bound |= {each.arg: None for each in every if each is not None}
        self._scopes.append(bound)
        for node in _within(body):
            self._bind(node, bound)
        if isinstance(owner, ast.Module):
            self._asked = frozenset(self._asked_for(owner))
        for node in body:
            self._visit(node)
        self._scopes.pop()

    def _bind(self, node: ast.AST, bound: dict[str, str | None]) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = _torch_path(alias.name)
                if alias.asname:
                    bound[alias.asname] = whole or ""
                elif alias.name.partition(".")[0] == "kernbench":
                    bound["kernbench"] = "kernbench"
                else:
                    root = alias.name.partition(".")[0]
                    bound[root] = root if root == "torch" else ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self._bind_from(node, alias, bound)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                path = self._path(node.value)
                if path or not bound.get(target.id):
                    bound[target.id] = path or None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.setdefault(node.name, None)

    def _bind_from(
        self, node: ast.ImportFrom, alias: ast.alias, bound: dict[str, str | None]
    ) -> None:
        name = alias.asname or alias.name
        module = _torch_path(node.module or "") if not node.level else None
        if not node.level and node.module == "kernbench" and alias.name == "torch":
            bound[name] = "torch"
        elif module is None:
            # A module of the user may give anything; anybody else's gives nothing of torch.
            bound[name] = None
        elif alias.name == "*":
            names = self._names_of(module)
            bound.update({each: f"{module}.{each}" for each in names if each[0] != "_"})
        else:
            bound[name] = f"{module}.{alias.name}"

    def _asked_for(self, tree: ast.Module) -> Iterator[str]:
        """Yields the names that a program asks for with `hasattr` or `getattr`."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) >= 2:
                asks = isinstance(node.func, ast.Name) and node.func.id in {"hasattr", "getattr"}
                path, name = self._path(node.args[0]), node.args[1]
                if asks and path and isinstance(name, ast.Constant):
                    yield f"{path}.{name.value!s}"

    def _path(self, node: ast.AST) -> str | None:
        """Returns the place in torch that an expression names; empty for another import's."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        for scope in reversed(self._scopes):
            if node.id in scope:
                root = scope[node.id]
                break
        else:
            return None
        if not root:
            return root
        whole = ".".join([root, *reversed(names)])
        if root == "kernbench":
            return _torch_path(whole) or ""
        return whole

    # Where names are used

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            self._visit_attribute(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._visit_import(node)
        elif isinstance(node, ast.Try) and _catches(node.handlers):
            self._catching += 1
            self._visit_all(node.body)
            self._catching -= 1
            self._visit_all([*node.handlers, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.If) and _is_for_types(node.test):
            self._visit_all(node.orelse)
        elif isinstance(node, _SCOPES):
            # Decorators, bases, defaults and annotations belong to the scope around.
            body = node.body if isinstance(node.body, list) else [node.body]
            inside = set(map(id, body))
            self._visit_all(each for each in ast.iter_child_nodes(node) if id(each) not in inside)
            self._scope(node, body)
        else:
            self._visit_all(ast.iter_child_nodes(node))

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self._visit(node)

    def _visit_attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path:
            self._use(path, node.lineno)
        elif path is None:
            self._use_attribute(node)
            self._visit(node.value)

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._use_module(alias.name, node.lineno)
            return
        if node.level or node.module is None:
            return
        module = _torch_path(node.module)
        if module is None:
            self._use_module(node.module, node.lineno)
            return
        for alias in node.names:
            self._use(module if alias.name == "*" else f"{module}.{alias.name}", node.lineno)

    def _use_module(self, name: str, line: int) -> None:
        path = _torch_path(name)
        if path is not None:
            self._use(path, line)
        elif not self._is_own(name):
            self._use_package(name, line)

    def _is_own(self, name: str) -> bool:
        root = name.partition(".")[0]
        folder = self._path_of_file.parent / root
        return folder.is_dir() or any(beside(self._path_of_file, root, 0))

    def _note(self, line: int, text: str) -> None:
        if not self._catching:
            self.found.add((line, text))


class MissingUses(Uses):
    """The names that a file uses and `kernbench.torch` lacks.

    Args:
        tree: Its content.
        modules: Modules of `kernbench.torch`, by PyTorch's names.
        recognised: Attributes that only PyTorch's classes have: class, and what reports call it.
    """

    def __init__(
        self,
        path: Path,
        tree: ast.Module,
        modules: Mapping[str, ModuleType],
        recognised: Mapping[str, tuple[str, str]],
    ) -> None:
        self._modules: Final = modules
        self._attributes: Final = recognised
        super().__init__(path, tree)

    def _names_of(self, module: str) -> Iterable[str]:
        there = self._modules.get(module)
        return () if there is None else (getattr(there, "__all__", None) or vars(there))

    def _use(self, path: str, line: int) -> None:
        """Notes a name that is not there; what lies behind a function or value is not known."""
        value: Any = self._modules["torch"]
        parts = path.split(".")
        for place, name in enumerate(parts[1:], 2):
            whole = ".".join(parts[:place])
            names = _names_in(value)
            if names is None:
                return
            if name not in names and whole not in self._modules:
                if whole not in self._asked:
                    self._note(line, missing(_whole_module(whole, parts[place:]), names))
                return
            value = self._modules.get(whole) or inspect.getattr_static(value, name, None)

    def _use_package(self, name: str, line: int) -> None:
        said = missing_package(name)
        if said is not None:
            self._note(line, said)

    def _use_attribute(self, node: ast.Attribute) -> None:
        if node.attr in self._attributes and isinstance(node.ctx, ast.Load):
            of, kind = self._attributes[node.attr]
            text = missing(f"{of}.{node.attr}", ())
            self._note(node.end_lineno or node.lineno, f"if this is {kind}: {text}")


class RefusedUses(Uses):
    """The names that a file uses and that `kernbench torchrun` refuses."""

    def _names_of(self, module: str) -> Iterable[str]:
        return pytorch_names().get(module, ())

    def _use(self, path: str, line: int) -> None:
        said = refusal(path)
        if said is not None and path not in self._asked:
            self._note(line, said)

    def _use_package(self, name: str, line: int) -> None:
        said = runs_nowhere(name)
        if said is not None:
            self._note(line, said)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[asked, _]):
                self._visit(asked)  # whether it is of a class is never refused
            case ast.Name(ctx=ast.Load()) if path := self._path(node):
                self._use(path, node.lineno)
            case _:
                super()._visit(node)


def _within(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yields the nodes of a scope in order, without those of scopes inside."""
    for node in body:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _within(ast.iter_child_nodes(node))


def _whole_module(path: str, more: Sequence[str]) -> str:
    """Returns the path of a name in a module that is not there, for a use that goes on inside."""
    for name in more:
        if path not in pytorch_names():
            break
        path = f"{path}.{name}"
    return path


def _torch_path(name: str) -> str | None:
    """Returns the place in torch of a module's name; None if it is another package's."""
    path = name.removeprefix("kernbench.")
    return path if path == "torch" or path.startswith("torch.") else None


def _names_in(value: Any) -> frozenset[str] | None:
    """Returns the names in a module or a class; None for anything else."""
    if isinstance(value, ModuleType):
        return frozenset(vars(value))
    if isinstance(value, type):
        return frozenset([*dir(value), *dir(type(value))])
    return None


def _catches(handlers: Sequence[ast.ExceptHandler]) -> bool:
    for handler in handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None or (isinstance(kind, ast.Name) and kind.id in _MISSES):
                return True
    return False


def _is_for_types(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def beside(path: Path, name: str, level: int) -> Iterator[Path]:
    """Yields the file of a user's own module that lies beside a file, or in its package.

    Args:
        name: Name of the module, as it is imported.
        level: Number of dots before it.
    """
    folder = path.parent
    for _ in range(level - 1):
        folder = folder.parent
    folders = [folder]
    while not level and (folder / "__init__.py").is_file():
        folder = folder.parent
        folders.append(folder)
    parts = [part for part in name.split(".") if part]
    for each in folders:
        place = each.joinpath(*parts)
        for file in (place.with_suffix(".py") if parts else None, place / "__init__.py"):
            if file is not None and file.is_file():
                yield file.resolve()
