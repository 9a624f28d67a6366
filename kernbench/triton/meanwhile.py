"""Work that goes on in a process of its own while this one does something else."""

import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO, Any, Final, NoReturn

_OWN: Final = "kernbench"
"""What the names of this package's threads begin with: these wait while somebody forks."""

_DONE: Final = "\n"
"""The line after the last answer."""


def meanwhile(work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begins to do work in a fork of this process, and returns what it yields, when it is there.

    Where no process can be forked, the work is done here as its results are asked for; so is what
    the other process could not do, so that an error is one of the caller's. A process that runs
    threads of others is not forked: one of them may hold a lock that nobody would free.

    Args:
        work: Yields values that JSON has.
    """
    if any(map(_is_foreign, threading.enumerate())):
        return work()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what they hold, both processes would write
    reads, writes = os.pipe()
    try:
        with warnings.catch_warnings():  # of Python 3.12 about threads, which wait
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:  # no memory, or too many processes
        os.close(reads)
        os.close(writes)
        return work()
    if pid == 0:
        _answer(work, writes)
    os.close(writes)
    return _answers(_Child(pid, reads), work)


def _is_foreign(thread: threading.Thread) -> bool:
    # A rank takes its own thread for the main one; the process's has its number, on Linux.
    main = thread.native_id == os.getpid()
    own = thread is threading.current_thread() or thread.name.startswith(_OWN)
    return not (main or own)


def _answer(work: Callable[[], Iterator[Any]], writes: int) -> NoReturn:
    """Does the work in the fork, and ends the process, which has nothing of its own to tidy up."""
    try:
        with open(writes, "w", encoding="utf-8") as file:
            for each in work():
                print(json.dumps(each), file=file, flush=True)
            file.write(_DONE)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(0)


class _Child:
    """The process that does the work.

    Args:
        pid: Its number.
        reads: Descriptor of its answers.
    """

    def __init__(self, pid: int, reads: int) -> None:
        self.answers: Final = os.fdopen(reads, encoding="utf-8")
        self.ended: Final = weakref.finalize(self, _ended, pid, self.answers, os.getpid())


def _ended(pid: int, answers: IO[str], parent: int) -> None:
    """Waits for a process to end; a later fork of its parent has it not."""
    answers.close()
    if os.getpid() == parent:
        os.waitpid(pid, 0)


def _answers(child: _Child, work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    had, line = 0, ""
    for line in child.answers:
        if line != _DONE:
            yield json.loads(line)
            had += 1
    child.ended()
    if line != _DONE:
        yield from islice(work(), had, None)
