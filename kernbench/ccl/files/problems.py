"""What is wrong with a file, with the places in it."""

from collections.abc import Iterable
from typing import Final, NoReturn

from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem, short

MAX_FILE_BYTES: Final = 64 << 20


class Mark:
    """A place in a text: line and column, both from 1."""

    __slots__ = ("column", "line")

    def __init__(self, line: int, column: int) -> None:
        self.line = line
        self.column = column


class Problems:
    """Collects the problems of one file.

    Args:
        path: The file.
        text: What is in it, for the lines that reports show.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path: Final = path
        self._lines: Final = text.splitlines()
        self._found: list[Problem] = []

    def add(self, mark: Mark, code: str, field: str, message: str, hint: str = "") -> None:
        """Adds a problem.

        Args:
            code: Class of the mistake, as `docs/errors.md` has them.
            field: What it is of: rank, block, step, attribute.
            message: What was expected, and what was found.
            hint: What to try.
        """
        source = self._lines[mark.line - 1] if 0 < mark.line <= len(self._lines) else ""
        where = f"{self.path}:{mark.line}:{mark.column}"
        column = mark.column if source else 0
        self._found.append(Problem(code, where, field, message, source, column, hint))

    def unknown(self, mark: Mark, field: str, name: str, known: Iterable[str], what: str) -> None:
        """Adds a problem of a name that is not known."""
        names = list(known)
        text = f"expected {what} of {', '.join(names)}; got {short(name)!r}"
        self.add(mark, "F1", field, text, did_you_mean(name, names))

    def check(self) -> None:
        """Raises what was found.

        Raises:
            ConfigError: If a problem was added.
        """
        if self._found:
            raise ConfigError(self.path, self._found)

    def stop(self, mark: Mark, code: str, message: str, hint: str = "") -> NoReturn:
        """Raises a problem after which nothing more can be read, and those before it.

        Raises:
            ConfigError: Always.
        """
        self.add(mark, code, "", message, hint)
        raise ConfigError(self.path, self._found)
