"""What a run prints, kept in a file for the report of its failure."""

import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LINES: Final = 40
_BYTES: Final = 4000

_PREFIX: Final = "kernbench-sweep-"
_ABANDONED_S: Final = 60.0
"""Age of a folder that nobody holds, from which on its process cannot just have made it."""


@contextmanager
def folder() -> Iterator[Path]:
    """Gives a folder for the files of a sweep, which goes at the end.

    Folders that other sweeps have left, since they were killed, go, too.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                with _held(left):
                    shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _held(Path(name)):
        yield Path(name)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Locks a folder for one process at a time; the system unlocks it if the process is killed.

    Raises:
        OSError: If another process holds it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Sends descriptors 1 and 2 to a file; its earlier content is dropped.

    Text of Python, of C code and of child processes gets there, and is there if the process dies.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    before = os.dup(1), os.dup(2)
    file = os.open(path, flags, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, copy in enumerate(before, 1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(file)


def tail(path: Path) -> str:
    """Returns the last lines of a file, without addresses in memory, which no two runs share.

    Args:
        path: The file; if it does not exist, there are no lines.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    if size > _BYTES:
        text = text.partition("\n")[2]
    lines = re.sub(r"\b0x[0-9a-f]{6,16}\b", "0x...", text).splitlines(keepends=True)
    return "".join(lines[-_LINES:])
