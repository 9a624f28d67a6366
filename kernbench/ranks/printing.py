"""Keeps the lines that ranks print whole, although a rank may wait in the middle of a line.

`print("loss", x)` writes its parts one by one, and making the text of `x` lets other ranks run.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from kernbench.des import current_task
from kernbench.process.process import Process


class WholeLines:
    """Wraps a text stream and holds back the unfinished line of each rank until the line ends.

    All other attributes are those of the wrapped stream.

    Args:
        out: The wrapped stream.
    """

    def __init__(self, out: TextIO) -> None:
        self._out: Final = out
        self._begun: Final[dict[int, str]] = {}

    def write(self, text: str) -> int:
        """Writes a text; if a rank writes it, the part after the last newline is held back."""
        task = current_task()
        process = None if task is None else task.subject
        if not isinstance(process, Process) or not isinstance(text, str):
            return self._out.write(text)
        lines, newline, rest = text.rpartition("\n")
        begun = self._begun.pop(process.rank, "")
        if newline:
            self._out.write(f"{begun}{lines}\n")
            begun = ""
        if begun or rest:
            self._begun[process.rank] = begun + rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes the calling rank's unfinished line, and flushes the stream."""
        task = current_task()
        if task is not None and isinstance(task.subject, Process):
            self.finish(task.subject.rank)
        self._out.flush()

    def finish(self, rank: int) -> None:
        """Writes the unfinished line of a rank."""
        if rank in self._begun:
            self._out.write(self._begun.pop(rank))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def whole_lines(ranks: int) -> Iterator[WholeLines | None]:
    """Keeps printed lines whole inside a block; yields None if there is no standard output.

    Args:
        ranks: Number of ranks.
    """
    before: Any = sys.stdout
    if before is None:
        yield None
        return
    lines = WholeLines(before)
    stands: Any = lines
    sys.stdout = stands
    try:
        yield lines
    finally:
        for rank in range(ranks):
            lines.finish(rank)
        if sys.stdout is stands:  # otherwise the program has replaced the stream
            sys.stdout = before
