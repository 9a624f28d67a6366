"""Which tests an edit needs: those whose imports reach it.

`pytest $(python tests/support/affected.py)` runs those that reach what differs from `HEAD`, or what
git does not know yet; `--base REV` compares with another commit, and files may be named.

Statements of imports count wherever they stand: in functions, and in the texts of programs that a
test writes; those for type checkers alone do not. A fixture counts for the tests that name it; one
that all tests have, for those that import what it needs. A
file that is no module counts for what names it, such as the machine `torus4x4`; documents count for
the tests of documents, and the settings of the project for every test. Tests that read the sources
of the package, such as those of docstrings, need every edit of it.
"""

import argparse
import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = ("kernbench", "benches", "tests", "benchmarks")
_PLUGIN: Final = "kernbench/testing/plugin.py"
_SETTINGS: Final = frozenset({"pyproject.toml"})
"""Files of which every test depends."""

_IMPORT: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?P<text>from[ \t]+[\w.]+[ \t]+import[ \t]+(?:\([^)]*\)|\w[^\n(;]*)"
    r"|import[ \t]+\w[^\n(;]*)|^(?P<outer>[ \t]*)if (?:typing\.)?TYPE_CHECKING:",
    re.MULTILINE,
)
_DYNAMIC: Final = re.compile(r"import_module\(f?\"([\w.]+)")
_READS_SOURCES: Final = re.compile(r"""glob\(["'](?!\*\.py\.)[^"']*\*\.py["']\)""")
_NAME: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_USE: Final = r"\b{0}: |usefixtures\([^)]*\"{0}\"|getfixturevalue\(\"{0}\""
_TEXT: Final = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*')")
_PROGRAM: Final = re.compile(r"[\w-]+\.py\b|[\" ][a-z]\w+(?=[\" ,\]])")
_DEFAULT: Final = re.compile(r"=\s*\"([\w.-]+)\"")


class Graph:
    """What the files of a checkout need of one another.

    Args:
        root: The checkout.
        sources: Folders whose Python files are read.
    """

    def __init__(self, root: Path | None = None, sources: Iterable[str] = _SOURCES) -> None:
        root = root or ROOT
        files = sorted(
            path for each in sources for path in (root / each).rglob("*.py") if path.is_file()
        )
        self.texts: Final[Mapping[str, str]] = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files
        }
        self.tests: Final = [file for file in self.texts if _is_test(file)]
        self._by_stem: Final[dict[str, list[str]]] = {}
        for file in self.texts:
            self._by_stem.setdefault(Path(file).stem, []).append(file)

    def affected(self, changed: Iterable[str]) -> list[str]:
        """Returns the files of the tests that a change needs, in their order.

        Args:
            changed: Files that were edited, made or removed, from the root of the checkout.
        """
        first: set[str] = set()
        for file in changed:
            first |= self._first_of(file)
        reached = self._with_users(first)
        return [file for file in self.tests if file in reached]

    def users_of(self, files: Iterable[str]) -> dict[str, set[str]]:
        """Returns for each file those that import it, directly or through others, and itself."""
        return {file: self._with_users({file}) for file in files}

    def _with_users(self, files: set[str]) -> set[str]:
        reached, left = set(files), list(files)
        while left:
            for user in self._users.get(left.pop(), ()):
                if user not in reached:
                    reached.add(user)
                    left.append(user)
        return reached

    def _first_of(self, file: str) -> set[str]:
        """Returns the files that a change of a file touches at once."""
        path = Path(file)
        if file in _SETTINGS or file == _PLUGIN:
            return set(self.tests)
        if path.name == "conftest.py":
            return {each for each in self.tests if each.startswith(f"{path.parent.as_posix()}/")}
        found = {file} if path.suffix == ".py" else set()
        if path.parts[0] == "kernbench" and found:
            found |= {each for each in self.tests if _READS_SOURCES.search(self.texts[each])}
        if path.suffix in {".md", ".svg"}:
            found |= {each for each in self.tests if each.startswith("tests/docs/")}
        if path.suffix != ".py":
            found |= self._naming(path)
        return found

    def _naming(self, path: Path) -> set[str]:
        """Returns the files that name a file, by its name or without its suffix."""
        names = {path.name, path.name.partition(".")[0]}
        found = set()
        for file, text in self.texts.items():
            if file.startswith("kernbench/"):
                # A name in a hint needs nothing; that of a default is the file that is used.
                said = set(_DEFAULT.findall(text))
            elif path.name in text or any(name in text for name in names):
                said = {name for each in _TEXT.findall(text) for name in _NAME.findall(each)}
            else:
                continue
            if said & names:
                found.add(file)
        if path.parts[0] == "tests" and not found:
            folder = "/".join(path.parts[:2])
            found = {each for each in self.tests if each.startswith(f"{folder}/")}
        return found

    @cached_property
    def _users(self) -> dict[str, set[str]]:
        """For each file, those that import it."""
        users: dict[str, set[str]] = {}
        fixtures = self._fixtures()
        programs = self._programs()
        for file, text in self.texts.items():
            needs = self._needs(file, text)
            if not file.startswith("kernbench/"):
                for name in {*_PROGRAM.findall(text)} & programs.keys():
                    needs |= programs[name] - {file}
            if file in self.tests:
                for folder, name, modules in fixtures:
                    if file.startswith(folder) and re.search(_USE.format(name), text):
                        needs |= modules
            for need in needs:
                users.setdefault(need, set()).add(file)
        return users

    def _programs(self) -> dict[str, set[str]]:
        """Returns the Python files outside of the package by the names that run them."""
        named: dict[str, set[str]] = {}
        for file in self.texts:
            path = Path(file)
            if path.parts[0] != "kernbench" and not _is_test(file):
                named.setdefault(path.name, set()).add(file)
            if path.parts[0] == "benches":
                named.setdefault(f'"{path.stem}', set()).add(file)
                named.setdefault(f" {path.stem}", set()).add(file)
        return named

    def _needs(self, file: str, text: str) -> set[str]:
        faces = "def __getattr__(" in text  # what it imports late is asked for by name
        if file == _PLUGIN or Path(file).name == "conftest.py":
            return set()  # counted fixture by fixture
        found: set[str] = set()
        for name, alias, lazy in _imports(text):
            if not (faces and lazy):
                found |= self._resolved(name, file)
            if alias is not None:
                found |= self._through_face(name, alias, text)
        for prefix in _DYNAMIC.findall(text):
            stem = prefix.rpartition(".")[2]
            for other, files in self._by_stem.items():
                if stem and other.startswith(stem):
                    found |= {each for each in files if not each.startswith("kernbench/")}
            found |= self._resolved(prefix, file)
        return found - {file}

    def _through_face(self, module: str, alias: str, text: str) -> set[str]:
        """Returns what a text takes of a package that imports its parts when they are asked for."""
        face = f"{module.replace('.', '/')}/__init__.py"
        source = self.texts.get(face, "")
        if "def __getattr__(" not in source:
            return set()
        taken = set(re.findall(rf"\b{re.escape(alias)}\.(\w+)", text))
        found = set()
        for name, _, _ in _imports(source, of_types=True):
            if name.rpartition(".")[2] in taken:
                found |= self._resolved(name, face)
        return found

    def _resolved(self, name: str, file: str) -> set[str]:
        """Returns the files that an import of a dotted name runs, but for those it runs in turn.

        A name that is none of a file may be one of a module that was removed.
        """
        parts = name.split(".")
        if parts[0] in {"kernbench", "benches"}:
            found = set()
            for count in range(1, len(parts) + 1):
                path = "/".join(parts[:count])
                found |= {f"{path}/__init__.py", f"{path}.py"}
            last = "/".join(parts[:-1])
            found |= self._through_face_by_name(last, parts[-1])
            return found
        folder = Path(file).parent.as_posix()
        nearest = [f"{folder}/{parts[0]}.py", f"tests/support/{parts[0]}.py"]
        named = f"{'/'.join(parts)}.py"
        return {each for each in (*nearest, named) if each in self.texts} or set(nearest)

    def _through_face_by_name(self, folder: str, taken: str) -> set[str]:
        source = self.texts.get(f"{folder}/__init__.py", "")
        if "def __getattr__(" not in source:
            return set()
        return {
            f"{name.rpartition('.')[0].replace('.', '/')}.py"
            for name, _, _ in _imports(source, of_types=True)
            if name.rpartition(".")[2] == taken
        }

    def _fixtures(self) -> list[tuple[str, str, set[str]]]:
        """Returns fixtures that tests name: the folder of these, the name, what it needs."""
        found: list[tuple[str, str, set[str]]] = []
        for file, text in self.texts.items():
            if Path(file).name == "conftest.py":
                found += self._fixtures_of(file, text, f"{Path(file).parent.as_posix()}/")
        plugin = self.texts.get(_PLUGIN)
        return found if plugin is None else [*found, *self._fixtures_of(_PLUGIN, plugin, "tests/")]

    def _fixtures_of(
        self, file: str, text: str, folder: str
    ) -> Iterator[tuple[str, str, set[str]]]:
        tree = ast.parse(text)
        known: dict[str, set[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, alias in _names(node):
                    known.setdefault(alias, set()).update(self._resolved(name, file))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            said = [ast.unparse(each) for each in node.decorator_list]
            fixture = next((each for each in said if "fixture" in each), None)
            if fixture is None or "autouse=True" in fixture:
                continue
            needs: set[str] = set()
            for part in ast.walk(node):
                if isinstance(part, ast.Name):
                    needs |= known.get(part.id, set())
                elif isinstance(part, ast.Import | ast.ImportFrom):
                    for name, _ in _names(part):
                        needs |= self._resolved(name, file)
            yield folder, node.name, needs


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def _imports(text: str, *, of_types: bool = False) -> Iterator[tuple[str, str | None, bool]]:
    """Yields the names that a text imports, as what, and whether later than the text runs.

    Args:
        text: The text of a module.
        of_types: Whether to yield what only type checkers import, and nothing else.
    """
    within: str | None = None
    for match in _IMPORT.finditer(text):
        if match["outer"] is not None:
            within = match["outer"]
            continue
        indent = match["indent"]
        if within is not None and len(indent) <= len(within):
            within = None
        if (within is not None) != of_types:
            continue
        try:
            (node,) = ast.parse(textwrap.dedent(match["text"])).body
        except (SyntaxError, ValueError):
            continue  # a sentence of a document
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, alias in _names(node):
                yield name, alias if isinstance(node, ast.Import) else None, bool(indent)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yields the dotted names of a statement, and the names that it binds."""
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        yield f"{prefix}{alias.name}", alias.asname or alias.name


def changed_files(root: Path, base: str) -> list[str]:
    """Returns the files of a checkout that differ from a commit, and those that git does not know.

    Args:
        root: The checkout.
        base: The commit.
    """
    told = ("diff", "--name-only", "--no-renames", base), ("ls-files", "-o", "--exclude-standard")
    found: list[str] = []
    for words in told:
        done = subprocess.run(
            ["git", "-C", str(root), *words, "-z"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"affected: git {' '.join(words)}: {done.stderr.strip()}")
        found += filter(None, done.stdout.split("\0"))
    return sorted({*found})


def main(words: list[str] | None = None) -> None:
    """Prints the files of the tests that an edit needs, one a line.

    Args:
        words: The words of the command line; None for those of the process.
    """
    parser = argparse.ArgumentParser(prog="affected", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="the edited files; default: what git says")
    parser.add_argument("--base", default="HEAD", help="a commit that git compares with")
    given = parser.parse_args(words)
    files = [_from_root(file) for file in given.files] or changed_files(ROOT, given.base)
    found = Graph().affected(files)
    if not found:
        print(f"affected: no test reaches {', '.join(files) or 'no edit'}", file=sys.stderr)
    for test in found:
        print(test)


def _from_root(file: str) -> str:
    path = Path(file).resolve()
    if not path.is_relative_to(ROOT):
        sys.exit(f"affected: {file} is not in {ROOT}")
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    main()
