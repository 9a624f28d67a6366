"""A YAML file as a tree whose every value knows its line and column, read within limits.

The events of the parser are checked against the limits before anything is built, and the tree is
built here rather than by `yaml.compose`, which recurses without bound and drops duplicate keys.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem, short

if TYPE_CHECKING:
    import yaml

MAX_FILE_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_ALIASES: Final = 1_000
MAX_NODES: Final = 100_000

_NOT_YAML: Final = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Characters that a file may not have; a pattern that takes long to compile."""

_NUMBER_TAGS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_VALUE_TAGS: Final = (*_NUMBER_TAGS, "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null")
# Longer plain scalars stay text: a base-60 number takes quadratic time to read.
_MAX_NUMBER: Final = 64


@dataclass(slots=True)
class Source:
    """A text with its origin: a file, or an override.

    Attributes:
        name: The file as the user named it, or the override.
        lines: Lines of the file; empty for an override.
    """

    name: str
    lines: list[str]


@dataclass(slots=True)
class Mark:
    """A place in a source.

    Attributes:
        source: The source.
        line: Line, from 1.
        column: Column, from 1.
    """

    source: Source
    line: int
    column: int

    def problem(self, code: str, field: str, message: str, hint: str = "") -> Problem:
        """Returns a problem at this place.

        Args:
            code: Class of the mistake, `F1` to `F16`.
            field: Dotted field; empty if the mistake is not in a field.
            message: What was expected and what was found.
            hint: `did you mean ...?`, or empty.
        """
        name, lines = self.source.name, self.source.lines
        if not lines:
            return Problem(code, name, field, message, hint=hint)
        where = f"{name}:{self.line}:{self.column}"
        # A file that ends in a line break has no text on its last line.
        line = lines[self.line - 1] if self.line <= len(lines) else ""
        return Problem(code, where, field, message, line, self.column, hint)


@dataclass(slots=True)
class Scalar:
    """A leaf.

    Attributes:
        mark: Place of the leaf.
        text: The text as written.
        value: The value that YAML 1.1 gives the text.
        plain: Whether the text has no quotes and no tag.
    """

    mark: Mark
    text: str
    value: str | int | float | bool | None
    plain: bool


@dataclass(slots=True)
class Items:
    """A list.

    Attributes:
        mark: Place of the list.
        nodes: The items in order.
    """

    mark: Mark
    nodes: list["Node"]


@dataclass(slots=True)
class Entry:
    """An entry of a mapping.

    Attributes:
        mark: Place of the key.
        node: The value.
    """

    mark: Mark
    node: "Node"


@dataclass(slots=True)
class Table:
    """A mapping.

    Attributes:
        mark: Place of the mapping.
        entries: The entries by key.
    """

    mark: Mark
    entries: dict[str, Entry]


@dataclass(slots=True)
class Broken:
    """A value whose problem has been reported; no further problem is reported for it."""

    mark: Mark


Node = Scalar | Items | Table | Broken


def plain(node: Node) -> Any:
    """Returns a tree as the dicts, lists and values that YAML gives."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(item) for item in node.nodes]
        case Table():
            return {key: plain(entry.node) for key, entry in node.entries.items()}
        case Broken():
            raise AssertionError("a broken tree is never used")


def describe(node: Node) -> str:
    """Returns a short description of a node, for `got ...` in messages."""
    match node:
        case Scalar(value=None):
            return "nothing"
        case Scalar(value=str(value)):
            return f"text {short(value)!r}"
        case Scalar():
            return short(node.text)
        case Items():
            return f"a list of {len(node.nodes)}"
        case _:
            return "a mapping"


def read_tree(path: Path) -> tuple[Node, list[Problem]]:
    """Returns the tree of a file, and the problems that left the rest of the file readable.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or exceeds a limit.
    """
    name = str(path)
    text = read_text(path)
    root, problems = parse_tree(Source(name, text.splitlines()), text)
    if isinstance(root, Scalar) and not root.text:
        raise _file_error(path, "F11", "expected a mapping, got an empty file")
    return root, problems


def parse_tree(source: Source, text: str) -> tuple[Node, list[Problem]]:
    """Returns the tree of a text, and the problems that left the rest of the text readable.

    Raises:
        ConfigError: The text is no YAML or exceeds a limit.
    """
    import yaml  # here: most of what imports this module reads no file

    _check_characters(source, text)
    composer = _Composer(source)
    try:
        _check_limits(source, text)
        return composer.document(text), composer.problems
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(source, text, error) from None


def read_text(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """Returns the text of a file in UTF-8, without a byte order mark.

    Args:
        most: Largest size in bytes.

    Raises:
        ConfigError: The file cannot be read (F11), is too large (F9), or is not UTF-8 (F10).
    """
    return _decode(str(path), _read(path, most))


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise _missing(path) from None
    except IsADirectoryError:
        files = sorted(p.name for p in path.glob("*.y*ml"))
        hint = f"did you mean `{path / files[0]}`?" if files else ""
        raise _file_error(path, "F11", "expected a file, got a folder", hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _file_error(path, "F11", f"cannot be read: {reason}") from None
    if len(data) > most:
        message = f"expected at most {most} bytes, got more"
        raise _file_error(path, "F9", message)
    return data


def _file_error(path: Path, code: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError(str(path), [Problem(code, str(path), "", message, hint=hint)])


def _missing(path: Path) -> ConfigError:
    resolved = path.resolve()
    folder = resolved.parent
    if not folder.is_dir():
        return _file_error(path, "F11", f"no such file: {resolved}; there is no folder {folder}")
    names = sorted(p.name for p in folder.iterdir())
    message = f"no such file: {resolved}; searched in {folder}"
    return _file_error(path, "F11", message, did_you_mean(resolved.name, names))


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        start = error.start
        line = data.count(b"\n", 0, start) + 1
        begin = data.rfind(b"\n", 0, start) + 1
        column = len(data[begin:start].decode(errors="replace")) + 1
        shown = data[begin:].split(b"\n", 1)[0].decode(errors="replace")
        message = f"expected UTF-8, got byte 0x{data[start]:02x} at offset {start}"
        where = f"{name}:{line}:{column}"
        # Control characters (every second byte of UTF-16) would garble a terminal.
        shown = re.sub(_NOT_YAML, "\ufffd", shown)
        raise ConfigError(name, [Problem("F10", where, "", message, shown, column)]) from None


def _check_characters(source: Source, text: str) -> None:
    if bad := re.search(_NOT_YAML, text):
        offset = bad.start()
        begin = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
        line = len(re.findall("\r\n|\r|\n", text[:begin])) + 1
        column = offset - begin + 1
        shown = re.sub(_NOT_YAML, "\ufffd", re.split("[\r\n]", text[begin:], maxsplit=1)[0])
        message = f"character U+{ord(bad[0]):04X} at offset {offset} is not allowed in YAML"
        if not source.lines:
            raise ConfigError(source.name, [Problem("F10", source.name, "", message)])
        where = f"{source.name}:{line}:{column}"
        raise ConfigError(source.name, [Problem("F10", where, "", message, shown, column)])


def _parser(text: str) -> Any:
    import yaml

    # The Python parser gives the same events, ten times slower.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)


def _check_limits(source: Source, text: str) -> None:
    """Raises if the tree would be too deep or too large; builds nothing."""
    import yaml

    parser = _parser(text)
    sizes: dict[str, int] = {}
    open_at: list[tuple[str | None, int]] = []
    nodes = aliases = 0
    problem = ""
    while True:
        event = parser.get_event()
        kind = type(event)
        if kind is yaml.ScalarEvent:
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif kind is yaml.AliasEvent:
            aliases += 1
            nodes += sizes.get(event.anchor, 0)
            if aliases > MAX_ALIASES:
                problem = f"expected at most {MAX_ALIASES} aliases, got more"
        elif kind in {yaml.MappingStartEvent, yaml.SequenceStartEvent}:
            open_at.append((event.anchor, nodes))
            nodes += 1
            if len(open_at) > MAX_DEPTH:
                problem = f"expected at most {MAX_DEPTH} levels of nesting, got more"
        elif kind in {yaml.MappingEndEvent, yaml.SequenceEndEvent}:
            anchor, before = open_at.pop()
            if anchor:
                sizes[anchor] = nodes - before
        elif kind is yaml.StreamEndEvent:
            return
        if nodes > MAX_NODES:
            problem = f"expected at most {MAX_NODES} values with aliases expanded, got more"
        if problem:
            raise ConfigError(
                source.name, [_mark(source, event.start_mark).problem("F9", "", problem)]
            )


def _mark(source: Source, mark: "yaml.Mark") -> Mark:
    return Mark(source, mark.line + 1, mark.column + 1)


def _syntax_error(source: Source, text: str, error: "yaml.MarkedYAMLError") -> ConfigError:
    place = error.problem_mark or error.context_mark
    mark = _mark(source, place) if place else Mark(source, 1, 1)
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        message = "a tab may not indent YAML; use spaces"
    else:
        message = "not YAML: " + ", ".join(filter(None, (error.context, error.problem)))
    return ConfigError(source.name, [mark.problem("F10", "", message)])


class _Composer:
    """Builds the tree from the parser's events."""

    def __init__(self, source: Source) -> None:
        import yaml

        self.source = source
        self._yaml: Final = yaml
        self.problems: list[Problem] = []
        # A mark stands for a value that is still being read.
        self._anchors: dict[str, Node | Mark] = {}
        self._field: list[str] = []
        self._parser: Any = None

    def document(self, text: str) -> Node:
        self._parser = parser = _parser(text)
        parser.get_event()
        if type(parser.get_event()) is self._yaml.StreamEndEvent:
            return Scalar(Mark(self.source, 1, 1), "", None, plain=True)
        root = self._node(parser.get_event())
        parser.get_event()
        after = parser.get_event()
        if type(after) is not self._yaml.StreamEndEvent:
            message = "expected one document, got the start of another"
            mark = _mark(self.source, after.start_mark)
            self.problems.append(mark.problem("F13", "", message))
        return root

    def _report(self, mark: Mark, code: str, message: str, hint: str = "") -> None:
        field = "".join(self._field).removeprefix(".")
        self.problems.append(mark.problem(code, field, message, hint))

    def _node(self, event: Any) -> Node:
        mark = _mark(self.source, event.start_mark)
        if type(event) is self._yaml.AliasEvent:
            return self._alias(event, mark)
        if event.anchor:
            self._anchors[event.anchor] = mark
        node = self._children(event, mark)
        if event.tag is not None:
            message = f"expected a value without a tag, got the tag {short(event.tag)}"
            self._report(mark, "F13", message)
            node = Broken(mark)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, mark: Mark) -> Node:
        name = short(event.anchor)
        if event.anchor not in self._anchors:
            message = f"alias *{name} names no anchor above it"
            self._report(mark, "F7", message, did_you_mean(name, self._anchors))
            return Broken(mark)
        node = self._anchors[event.anchor]
        if isinstance(node, Mark):
            message = (
                f"alias *{name} stands inside the value that it names, begun on line {node.line}"
            )
            self._report(mark, "F8", message)
            return Broken(mark)
        return node

    def _children(self, event: Any, mark: Mark) -> Node:
        if type(event) is self._yaml.ScalarEvent:
            is_plain = event.implicit[0] and event.tag is None
            return Scalar(
                mark, event.value, self._value(event.value) if is_plain else event.value, is_plain
            )
        if type(event) is self._yaml.SequenceStartEvent:
            nodes: list[Node] = []
            while type(event := self._parser.get_event()) is not self._yaml.SequenceEndEvent:
                self._field.append(f"[{len(nodes)}]")
                nodes.append(self._node(event))
                self._field.pop()
            return Items(mark, nodes)
        return self._table(mark)

    def _value(self, text: str) -> Any:
        tag = self._parser.resolve(self._yaml.ScalarNode, text, (True, False))
        if tag not in _VALUE_TAGS or (tag in _NUMBER_TAGS and len(text) > _MAX_NUMBER):
            return text
        try:
            return self._parser.construct_object(self._yaml.ScalarNode(tag, text))
        except ValueError:  # such as 0x_, which YAML 1.1 lets pass for a number
            return text

    def _table(self, mark: Mark) -> Node:
        table = Table(mark, {})
        merged: list[Node] = []
        while type(event := self._parser.get_event()) is not self._yaml.MappingEndEvent:
            key = self._node(event)
            name = short(key.text) if isinstance(key, Scalar) else "?"
            self._field.append(f".{name}")
            is_alias = type(event := self._parser.get_event()) is self._yaml.AliasEvent
            node = self._node(event)
            if not isinstance(key, Scalar):
                if not isinstance(key, Broken):
                    self._report(key.mark, "F2", f"expected a text as the key, got {describe(key)}")
            elif key.plain and key.text == "<<":
                merged += node.nodes if isinstance(node, Items) else [node]
            elif not isinstance(key.value, str):
                self._report(key.mark, "F2", f"expected a text as the key, got {name}: quote it")
            elif first := table.entries.get(key.value):
                message = f"expected each key once, got it again; first on line {first.mark.line}"
                self._report(key.mark, "F6", message)
            else:
                # A block on the lines below is better known by its key than by its first value.
                if not is_alias and node.mark.line > key.mark.line:
                    node.mark = key.mark
                table.entries[key.value] = Entry(key.mark, node)
            self._field.pop()
        for other in merged:
            if isinstance(other, Table):
                for inherited, entry in other.entries.items():
                    table.entries.setdefault(inherited, entry)
            elif not isinstance(other, Broken):
                self._report(
                    other.mark, "F2", f"expected a mapping to merge, got {describe(other)}"
                )
        return table
