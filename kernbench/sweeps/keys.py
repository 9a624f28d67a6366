"""What tells runs apart: digests of specifications and of the files that they name."""

import ast
import json
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from kernbench.ccl.config import find_ccl_file
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.scripts.running import find_bench
from kernbench.topology import find_topology
from kernbench.version import __version__

_DIGITS: Final = 32


class Keys:
    """Digests of runs; every file is read once, so that one sweep sees one content of it.

    A digest is of the specification, the version of kernbench, and the content of the files of the
    bench, the machine and the algorithms, and of the modules beside the bench that its `import`
    statements name, directly or through one another. Other modules and files are not among them.
    """

    def __init__(self) -> None:
        self._contents: dict[Path, str] = {}
        self._of_names: dict[tuple[str | None, ...], list[str]] = {}

    def of(self, spec: RunSpec) -> str:
        """Returns the digest of a run, in hexadecimal digits."""
        names = spec.bench, spec.topology, spec.ccl
        contents = self._of_names.get(names)
        if contents is None:
            contents = self._of_names[names] = [self._content(path) for path in _files(spec)]
        said = json.dumps([__version__, spec.to_json(), contents])
        return sha256(said.encode()).hexdigest()[:_DIGITS]

    def _content(self, path: Path) -> str:
        """Returns the digest of a file; empty if it cannot be read, which the run will tell."""
        if path not in self._contents:
            try:
                self._contents[path] = sha256(path.read_bytes()).hexdigest()
            except OSError:
                self._contents[path] = ""
        return self._contents[path]


def _files(spec: RunSpec) -> Iterator[Path]:
    """Yields the files that a specification names; one that does not exist is left out."""
    if spec.bench is not None:
        with suppress(UsageError):
            yield from with_imports(find_bench(spec.bench))
    if spec.topology is not None:
        with suppress(UsageError):
            yield find_topology(spec.topology)
    yield find_ccl_file(None if spec.ccl is None else Path(spec.ccl))


def with_imports(bench: Path) -> list[Path]:
    """Returns the file of a bench and those beside or below it that it imports.

    Args:
        bench: The file; its folder is where its imports are looked for first.
    """
    found: dict[Path, None] = {bench: None}
    left = [bench]
    while left:
        importing = left.pop()
        for folder, name in sorted(_imports(importing, bench.parent)):
            for path in _modules(folder, name):
                if path not in found:
                    found[path] = None
                    left.append(path)
    return list(found)


def _imports(path: Path, top: Path) -> set[tuple[Path, str]]:
    """Returns what a file imports: a folder to look in, and the name of a module there."""
    found: set[tuple[Path, str]] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return found  # the run will tell
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(top, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = (path, *path.parents)[node.level] if node.level else top
            stem = f"{node.module}." if node.module else ""
            found |= {(folder, f"{stem}{alias.name}") for alias in node.names}
    return found


def _modules(folder: Path, name: str) -> Iterator[Path]:
    """Yields the files of a module and of the packages around it."""
    for part in name.split("."):
        for path in (folder / f"{part}.py", folder / part / "__init__.py"):
            if path.is_file():
                yield path
        folder /= part
