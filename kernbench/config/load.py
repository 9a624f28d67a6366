"""YAML to a tree of frozen dataclasses, by their annotations: no coercion, all problems at once."""

import dataclasses
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from kernbench.caches import cached
from kernbench.config.leaves import (
    MismatchError,
    read_literal,
    read_quantity,
    read_scalar,
)
from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem, short
from kernbench.config.schema import QUANTITIES, Bare, Changes, Formerly, Names, Range
from kernbench.config.yaml_file import (
    MAX_DEPTH,
    Broken,
    Entry,
    Items,
    Mark,
    Node,
    Scalar,
    Source,
    Table,
    describe,
    parse_tree,
    plain,
    read_tree,
)

T = TypeVar("T")

# `Changes[...]` is subscripted while the program runs, which no type checker follows.
_CHANGES: Final[Any] = Changes

# Keys by which other formats build one file on another.
_INCLUDING: Final = ("extends", "include", "includes", "import", "imports", "inherits", "base")
_ALONE: Final = "a file stands alone: vary it with --set, or copy what it shares with others"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A file that fits its schema.

    Attributes:
        name: The file as the user named it.
        value: The dataclass tree.
        raw: The content as YAML gives it, with overrides applied.
        marks: Place of each dotted field that the file or an override gives.
    """

    name: str
    value: T
    raw: dict[str, Any]
    marks: Mapping[str, Mark]

    def problem(self, code: str, field: str, message: str, hint: str = "") -> Problem:
        """Returns a problem at a field, or at its nearest parent that the file gives.

        Args:
            code: Class of the mistake, `F1` to `F16`.
            field: Dotted field.
            message: What was expected and what was found.
            hint: `did you mean ...?`, or empty.
        """
        place = field
        while place not in self.marks:
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        return self.marks[place].problem(code, field, message, hint)


def load(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> tuple[T, dict[str, Any]]:
    """Reads a file into a frozen dataclass.

    Args:
        cls: A dataclass whose fields are annotated with `int`, `str`, `bool`, `Literal`, the
            quantities of `kernbench.units`, tuples, `dict[str, X]`, `X | None` or further
            dataclasses, or `Changes` of a dataclass; `Annotated` with a `Range` where its limits
            are narrower. A field with a default may be left out.
        path: A YAML file.
        overrides: `dotted.field=value` texts that replace or add values.

    Returns:
        The instance, and the content as YAML gives it, with overrides applied.

    Raises:
        ConfigError: Everything that is wrong with the file and the overrides.
    """
    loaded = load_with_marks(cls, path, overrides)
    return loaded.value, loaded.raw


def load_with_marks(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> Loaded[T]:
    """Does what `load` does, and keeps the place of each field for further checks.

    Args:
        cls: The dataclass, see `load`.
        path: A YAML file.
        overrides: `dotted.field=value` texts that replace or add values.

    Raises:
        ConfigError: Everything that is wrong with the file and the overrides.
    """
    name = str(path)
    root, problems = read_tree(Path(path))
    for override in overrides:
        root = _overridden(root, override, problems)
    reader = _Reader(problems)
    value = reader.read(cls, root, "")
    if problems:
        raise ConfigError(name, problems)
    for mark, problem in reader.old.values():
        text = "\n".join(problem.lines())
        warnings.warn_explicit(text, DeprecatedKeyWarning, name, mark.line, registry=_warned)
    return Loaded(name, cast(T, value), plain(root), reader.marks)


class DeprecatedKeyWarning(UserWarning):
    """A file uses the old name of a key (F16)."""


_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""Warnings already given, in the form of `warnings`: reading a file again repeats none."""


def _overridden(root: Node, text: str, problems: list[Problem]) -> Node:
    shown = f"--set {text.encode(errors='backslashreplace').decode()}"
    mark = Mark(Source(shown, []), 1, 1)
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        problems.append(mark.problem("F2", "", "expected dotted.field=value"))
        return root
    if len(keys) > MAX_DEPTH:
        message = f"expected at most {MAX_DEPTH} levels of nesting, got {len(keys)}"
        problems.append(mark.problem("F9", "", message))
        return root
    try:
        node, found = parse_tree(mark.source, value)
    except ConfigError as error:
        problems += error.problems
        return root
    problems += found
    return _replaced(root, keys, node, mark)


def _replaced(root: Node, keys: Sequence[str], node: Node, mark: Mark) -> Node:
    """Returns a tree with one value replaced; other places that share an alias keep theirs."""
    if not keys:
        return node
    key, *rest = keys
    entries = root.entries if isinstance(root, Table) else {}
    # A key of the file keeps its place, so that a missing part is reported there.
    old = entries.get(key, Entry(mark, Table(mark, {})))
    entry = Entry(old.mark if rest else mark, _replaced(old.node, rest, node, mark))
    where = root.mark if isinstance(root, Table) else mark
    return Table(where, {**entries, key: entry})


@cached("config.old_names")
def _old_names(cls: type) -> dict[str, str]:
    """Returns the renamed fields, by their old names."""
    return {
        extra.name: key
        for key, (kind, _) in _fields(cls).items()
        if get_origin(kind) is Annotated
        for extra in get_args(kind)
        if isinstance(extra, Formerly)
    }


def without_limits(kind: Any) -> Any:
    """Returns an annotation without its limits, and without `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in {Union, UnionType}:
            (kind,) = (argument for argument in get_args(kind) if argument is not NoneType)
        else:
            return kind


def _has_parts(kind: Any) -> bool:
    """Returns whether `Changes` replaces values of a bare annotation part by part."""
    return kind not in QUANTITIES and (dataclasses.is_dataclass(kind) or get_origin(kind) is dict)


@cached("config.fields")
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    """Returns the annotation of each field, and whether the file must give it."""
    hints = typing.get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (
            hints[field.name],
            field.default is missing and field.default_factory is missing,
        )
        for field in dataclasses.fields(cls)
    }


class _Reader:
    """Turns nodes into values, collecting problems; a node with a problem becomes None."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.marks: dict[str, Mark] = {}
        self.old: dict[tuple[type, str], tuple[Mark, Problem]] = {}

    def read(self, kind: Any, node: Node, field: str) -> Any:
        self.marks[field] = node.mark
        if isinstance(node, Broken):
            return None
        try:
            return self._value(kind, node, field)
        except MismatchError as wrong:
            problem = node.mark.problem(wrong.code, field, wrong.message, wrong.hint)
            self.problems.append(problem)
            return None

    def _value(self, kind: Any, node: Node, field: str) -> Any:
        limits: Range | None = None
        bare = False
        if get_origin(kind) is Annotated:
            kind, *extras = get_args(kind)
            limits = next((extra for extra in extras if isinstance(extra, Range)), None)
            bare = any(isinstance(extra, Bare) for extra in extras)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in {Union, UnionType}:
            if isinstance(node, Scalar) and node.value is None:
                return None
            return self._value(without_limits(kind), node, field)
        if quantity := QUANTITIES.get(kind):
            return read_quantity(quantity, limits or quantity.limits, node, bare=bare)
        if origin is Changes:
            return self._changes(arguments[0], node, field)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(cast(type, kind), node, field)
        if origin is Literal:
            return read_literal(arguments, node)
        if origin is tuple:
            return self._tuple(arguments, node, field)
        if origin is dict:
            return self._dict(arguments[1], node, field)
        return read_scalar(kind, limits, node)

    def _dataclass(self, cls: type, node: Node, field: str) -> Any:
        known = len(self.problems)
        entries = self._entries_of(cls, node, field)
        values = {
            key: self.read(kind, entry.node, _dotted(field, key))
            for key, kind, entry in self._known(cls, entries, field)
        }
        for key, (_, required) in _fields(cls).items():
            if required and key not in entries:
                message = "expected this key, got none"
                self.problems.append(node.mark.problem("F1", _dotted(field, key), message))
        return cls(**values) if len(self.problems) == known else None

    def _changes(self, kind: Any, node: Node, field: str) -> Changes[Any]:
        """Reads `Changes` of a bare annotation: any of its parts."""
        if get_origin(kind) is dict:
            inner = get_args(kind)[1]
            found = [(key, inner, entry) for key, entry in _entries(node).items()]
        else:
            found = list(self._known(kind, self._entries_of(kind, node, field), field))
        values: dict[Names, Any] = {}
        for key, part, entry in found:
            bare, dotted = without_limits(part), _dotted(field, key)
            if not _has_parts(bare):
                values[key,] = self.read(part, entry.node, dotted)
            elif inside := self.read(_CHANGES[bare], entry.node, dotted):
                values |= {(key, *names): value for names, value in inside.values.items()}
        return Changes(values)

    def _entries_of(self, cls: type, node: Node, field: str) -> Mapping[str, Entry]:
        """Returns the entries of a mapping that stands for a dataclass."""
        if not isinstance(node, Table):
            raise MismatchError(
                f"expected a mapping with {', '.join(_fields(cls))}, got {describe(node)}"
            )
        return self._by_new_names(cls, node.entries, field)

    def _known(
        self, cls: type, entries: Mapping[str, Entry], field: str
    ) -> Iterator[tuple[str, Any, Entry]]:
        """Yields the entries that are fields, with their annotations; reports the others."""
        fields = _fields(cls)
        for key, entry in entries.items():
            if key in fields:
                yield key, fields[key][0], entry
                continue
            message = f"expected one of {', '.join(fields)}, got an unknown key"
            hint = _ALONE if key in _INCLUDING else did_you_mean(key, fields)
            self.problems.append(entry.mark.problem("F1", _dotted(field, key), message, hint))

    def _by_new_names(
        self, cls: type, entries: Mapping[str, Entry], field: str
    ) -> Mapping[str, Entry]:
        """Returns the entries of a mapping by the present names of their keys."""
        old = _old_names(cls)
        if not any(name in entries for name in old):
            return entries
        found = {}
        for name, entry in entries.items():
            key, dotted = old.get(name, name), _dotted(field, name)
            if key != name and key in entries:
                message = f"expected {key} only, got its old name, too; {key} is on line "
                message += str(entries[key].mark.line)
                self.problems.append(entry.mark.problem("F6", dotted, message))
                continue
            if key != name:
                message = f"this key is called {key} now"
                problem = entry.mark.problem("F16", dotted, message, f"write `{key}`")
                self.old.setdefault((cls, name), (entry.mark, problem))
            found[key] = entry
        return found

    def _dict(self, kind: Any, node: Node, field: str) -> dict[str, Any]:
        return {
            key: self.read(kind, entry.node, _dotted(field, key))
            for key, entry in _entries(node).items()
        }

    def _tuple(self, kinds: tuple[Any, ...], node: Node, field: str) -> tuple[Any, ...]:
        any_length = kinds[-1] is Ellipsis
        what = "a list" if any_length else f"a list of {len(kinds)}"
        if not isinstance(node, Items) or not (any_length or len(kinds) == len(node.nodes)):
            raise MismatchError(f"expected {what}, got {describe(node)}")
        return tuple(
            self.read(kinds[0 if any_length else i], item, f"{field}[{i}]")
            for i, item in enumerate(node.nodes)
        )


def _entries(node: Node) -> Mapping[str, Entry]:
    if not isinstance(node, Table):
        raise MismatchError(f"expected a mapping, got {describe(node)}")
    return node.entries


def _dotted(field: str, key: str) -> str:
    return f"{field}.{short(key)}" if field else short(key)
