"""What ranks print comes out in whole lines, though a rank may wait in the middle of one.

`print("loss", x)` writes its parts one by one, and making the text of `x` lets others run.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from kernbench.des import current_task
from kernbench.process.process import Process


class WholeLines:
    """Stands for a text stream; holds back what a rank has begun to write until its line ends.

    Everything else that a text stream can do is done by the one it stands for.

    Args:
        out: Where lines go.
    """

    def __init__(self, out: TextIO) -> None:
        self._out: Final = out
        self._begun: Final[dict[int, str]] = {}

    def write(self, text: str) -> int:
        """Writes a text; what comes after its last newline is kept if a rank writes it."""
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
        """Writes what the calling rank has begun, as it is asked for."""
        task = current_task()
        if task is not None and isinstance(task.subject, Process):
            self.finish(task.subject.rank)
        self._out.flush()

    def finish(self, rank: int) -> None:
        """Writes what a rank has begun."""
        if rank in self._begun:
            self._out.write(self._begun.pop(rank))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def whole_lines(ranks: int) -> Iterator[WholeLines | None]:
    """Lets what ranks print come out in whole lines; None if there is no standard output."""
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
        if sys.stdout is stands:  # else the program has put another one there
            sys.stdout = before
