"""Records on disk as they come, so that what was done outlives the process that did it.

A journal is a file of lines of JSON, each behind its checksum: a heading, then a record a line,
each appended by one write. The system keeps what a killed process has written; once a second, and
at the end, it is also asked to bring it to the disk, for machines that lose power. A last line that
is torn is dropped. Whoever writes it has locked the file, and removes it before that lock goes.
"""

import fcntl
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from kernbench.errors import UsageError
from kernbench.report.files import explained
from kernbench.sweeps.records import Record, is_record

SUFFIX: Final = ".journal"
"""What the name of a journal has behind the name of the output file."""

_HEADING: Final = {"kernbench": 1, "journal": 2}

_SYNC_S: Final = 1.0
"""Seconds between two moments at which the disk has everything; each costs some milliseconds."""

_CHUNK: Final = 1 << 20

_SUM: Final = 9
"""Characters of a checksum, and the space behind it."""


class Journal:
    """An append-only file of records, found by their keys.

    Args:
        path: The file; None for a file without a name, which goes with the process.
        known: Returns records to begin with, as plain values, if the file is new: those of a sweep
            that this one continues.

    Raises:
        UsageError: If the file cannot be read or written (F15), is no journal, or belongs to a
            sweep that runs.
    """

    def __init__(
        self, path: Path | None, known: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    ) -> None:
        self.path: Final = path
        self._at: dict[str, tuple[int, int]] = {}
        self._end = 0
        self._synced = time.monotonic()
        with explained(path or Path(tempfile.gettempdir())):
            self._file: Final = _opened(path)
        try:
            if not self._read():
                self._begin(list(known()))
        except BaseException:
            try:
                if not os.fstat(self._file.fileno()).st_size:
                    self.remove()
            finally:
                self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def values(self, key: str) -> dict[str, Any]:
        """Returns the record with a key as plain values.

        Raises:
            KeyError: If there is no such record.
        """
        start, length = self._at[key]
        line = os.pread(self._file.fileno(), length, start)
        values: dict[str, Any] = json.loads(line[_SUM:])
        return values

    def add(self, record: Record) -> None:
        """Appends a record; a process that is killed afterwards has not lost it.

        Args:
            record: The record, whose key is new.

        Raises:
            UsageError: If it cannot be written (F15); what was written before stays.
        """
        values = record.to_json()
        assert record.run.key not in self._at
        self._append(record.run.key, values)
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Waits until the disk has everything."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def remove(self) -> None:
        """Removes the file; its records can be read until the journal is closed."""
        if self.path is not None and _is_at(self._file, self.path):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file, and removes it if it holds no record."""
        try:
            if not self._file.closed:
                self._catch_up()
                if not self._at:
                    self.remove()  # before the lock goes: another sweep may then have begun it
        finally:
            self._file.close()

    def _begin(self, known: Sequence[Mapping[str, Any]]) -> None:
        """Writes the heading, which says how many records follow that were there before."""
        self._at.clear()
        self._end = 0
        self._cut()
        heading = _line({**_HEADING, "known": len(known)})
        self._write(heading)
        self._end = len(heading)
        for values in known:
            self._append(values["key"], values)
        self.sync()

    def _append(self, key: str, values: Mapping[str, Any]) -> None:
        line = _line(values)
        self._catch_up()
        start = self._end
        self._write(line)
        self._at[key] = start, len(line)
        self._end = start + len(line)  # last: until then `_catch_up` finds the line

    def _write(self, line: bytes) -> None:
        with explained(self.path or Path(tempfile.gettempdir())):
            left = line
            while left:
                left = left[os.write(self._file.fileno(), left) :]

    def _catch_up(self) -> None:
        """Takes up what an interrupted write left: a whole record counts, a part of one goes."""
        if os.fstat(self._file.fileno()).st_size == self._end:
            return
        for start, line in _lines(self._file.fileno(), self._end):
            values = _plain(line)
            if not is_record(values):
                break
            self._at.setdefault(values["key"], (start, len(line)))
            self._end = start + len(line)
        self._cut()

    def _cut(self) -> None:
        os.ftruncate(self._file.fileno(), self._end)

    def _read(self) -> bool:
        """Finds the records of the file; returns whether it was begun and so is complete.

        What stands behind the last whole line is cut off.
        """
        lines = _lines(self._file.fileno())
        start, line = next(lines, (0, b""))
        if not line.endswith(b"\n"):
            return False
        heading = _plain(line)
        known = heading.get("known")
        if type(known) is not int or not _HEADING.items() <= heading.items():
            raise self._refused("it is no journal of a sweep, or one of another version")
        end, bad = len(line), 0
        for number, (start, line) in enumerate(lines, 2):
            if bad:
                raise self._refused(f"line {bad} is no record, or is damaged")
            values = _plain(line)
            if not is_record(values):
                bad = number  # torn, if it is the last one
                continue
            self._at.setdefault(values["key"], (start, len(line)))
            end = start + len(line)
        if len(self._at) < known:
            return False  # killed before its first run
        self._end = end
        self._cut()
        return True

    def _refused(self, reason: str) -> UsageError:
        return UsageError(
            f"cannot go on from {self.path}: {reason}",
            hint="remove the file, and the sweep begins anew",
        )


def _opened(path: Path | None) -> IO[bytes]:
    """Returns the file of a journal that nobody else writes."""
    if path is None:
        return tempfile.TemporaryFile(buffering=0)
    while True:
        file = path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except BlockingIOError:
            file.close()
            raise UsageError(
                f"{path}: another sweep writes to it",
                hint="wait for its end, or choose another output file",
            ) from None
        except BaseException:
            file.close()
            raise
        # Whoever had locked it has removed it, between this process's opening and its lock.
        file.close()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Returns whether a path still leads to a file that is open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _line(values: Mapping[str, Any]) -> bytes:
    body = json.dumps(values, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _plain(line: bytes) -> dict[str, Any]:
    """Returns the mapping that a line holds; empty if it holds none, is torn, or has changed."""
    body = line[_SUM:-1]
    if line != b"%08x %b\n" % (zlib.crc32(body), body):
        return {}
    try:
        values = json.loads(body)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _lines(file: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file with their offsets; the last one may lack its end."""
    rest = b""
    while data := os.pread(file, _CHUNK, start + len(rest)):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield start, line + b"\n"
            start += len(line) + 1
    if rest:
        yield start, rest
