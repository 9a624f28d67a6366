"""What is wrong with a file, with the places in it."""

from collections.abc import Iterable
from pathlib import Path
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


def text_of(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        ConfigError: If it is not there (F11), is too large (F9), or is not UTF-8 (F10).
    """
    try:
        size = path.stat().st_size
        content = b"" if size > MAX_FILE_BYTES else path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(str(path), [Problem("F11", str(path), "", reason)]) from None
    if size > MAX_FILE_BYTES:
        message = f"expected at most {MAX_FILE_BYTES >> 20} MiB; it has {size >> 20} MiB"
        raise ConfigError(str(path), [Problem("F9", str(path), "", message)])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        message = f"expected UTF-8; byte {error.start} is none"
        raise ConfigError(str(path), [Problem("F10", str(path), "", message)]) from None
