"""Output files: tested before a run, complete or absent after it."""

import gzip
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from kernbench.errors import UsageError


def check_writable(path: str | Path) -> None:
    """Tests whether `path` can be written, by writing and removing a file next to it.

    Raises:
        UsageError: If the path cannot be written (F15).
    """
    target = Path(path)
    with explained(target):
        _refuse_odd(target)
        partial = _partial(target)
        try:
            partial.touch()
        finally:
            partial.unlink(missing_ok=True)


def check_apart(outputs: Iterable[Path | None]) -> None:
    """Checks that outputs have names of their own, so that none replaces another.

    Args:
        outputs: Files and folders that a command will write; None where it will not.

    Raises:
        UsageError: If two are the same.
    """
    seen: set[Path] = set()
    for path in outputs:
        if path is None:
            continue
        if path.resolve() in seen:
            raise UsageError(f"{path} is named for two outputs", hint="give each a file of its own")
        seen.add(path.resolve())


def make_folder(path: str | Path) -> None:
    """Makes a folder unless it exists, and tests whether files can be written in it.

    Raises:
        UsageError: If the folder cannot be made or written (F15).
    """
    target = Path(path)
    with explained(target):
        _refuse_no_folder(target)
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """Opens a text file that takes the place of `path` when the block ends without an error.

    What UTF-8 cannot encode is written as a backslash and its number. A file whose name ends in
    `.gz` is compressed. Equal texts give equal files: the compressed form
    holds neither name nor time.

    Raises:
        UsageError: If the path cannot be written (F15).
    """
    with replacing_bytes(path) as raw:
        if Path(path).suffix == ".gz":
            with (
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
                _text(packed) as text,
            ):
                yield text
        else:
            with _text(raw) as text:
                yield text


@contextmanager
def replacing_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file of bytes that takes the place of `path` when the block ends without an error.

    Raises:
        UsageError: If the path cannot be written (F15).
    """
    target = Path(path)
    with explained(target):
        _refuse_odd(target)
        partial = _partial(target)
        try:
            with partial.open("wb") as raw:
                yield raw
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _text(raw: BinaryIO | gzip.GzipFile) -> io.TextIOWrapper:
    # Half of a surrogate pair, which JSON can hold, has no bytes in UTF-8.
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n")


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def _refuse_no_folder(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise OSError("it is no folder")


def _refuse_odd(target: Path) -> None:
    # A rename would replace a device or a pipe by a file, and also a write-protected file.
    if target.exists() and not target.is_file():
        raise OSError("it is no file")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError("it is read-only")


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """Tells an error of the operating system in a block as one of a path that cannot be written.

    Raises:
        UsageError: If the block raises an OSError (F15).
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write {target}: {reason}", code="F15") from error
