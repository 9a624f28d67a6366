"""Which process runs a batch, when several test processes need it."""

import json
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from kernbench.testing.result_files import read_results, write_whole
from kernbench.testing.results import CaseResult

_SHORTEST_S: Final = 0.002
_LONGEST_S: Final = 0.05
"""Bounds of the seconds between two looks at a batch that another process runs."""


class Ended(NamedTuple):
    """How a batch ended.

    Attributes:
        reason: Why cases may have no result; empty if the batch came to its end.
        tail: The last lines that its process wrote to standard error.
        nodeid: The case that ran when the batch ended early; empty if none did.
    """

    reason: str = ""
    tail: str = ""
    nodeid: str = ""


class Claim(NamedTuple):
    """The right to run a batch, which only this process has while it lives.

    Attributes:
        folder: Folder of the batch.
        number: How many processes had the right, and died.
    """

    folder: Path
    number: int

    @property
    def results(self) -> Path:
        """The file of results of this run of the batch."""
        return _results(self.folder, self.number)

    def end(self, ended: Ended) -> None:
        """Lets others know that there will be no more results.

        Raises:
            OSError: If the file cannot be written; others may then run the batch.
        """
        try:
            write_whole(self.folder / f"ended.{self.number}", json.dumps(ended))
        except OSError:
            (self.folder / f"claim.{self.number}").unlink(missing_ok=True)
            raise


def claim(folder: Path) -> Claim | None:
    """Returns the right to run a batch; None once another process has run it.

    Waits while a process that has the right lives; if it dies, this process or another takes over.

    Args:
        folder: Folder of the batch, which all processes share; it is made if there is none.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pause_s = _SHORTEST_S
    number = 0
    while True:
        if _ended(folder, number) is not None:
            return None
        holder = _holder(folder, number)
        if holder is None:
            if _take(folder, number):
                return Claim(folder, number)
        elif _lives(*holder):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        elif _ended(folder, number) is None:  # it may have ended the batch between the two looks
            number += 1


def outcome(folder: Path) -> tuple[dict[str, CaseResult], Ended]:
    """Returns the results of a batch by the name of the test, and how the batch ended.

    Args:
        folder: Folder of the batch, which `claim` has given or waited for.

    Raises:
        ResultsError: If a file of results cannot be read.
    """
    results: dict[str, CaseResult] = {}
    number = 0
    while _holder(folder, number) is not None:
        # What a process has found before it died stands.
        results = {**read_results(_results(folder, number)), **results}
        number += 1
    return results, _ended(folder, number - 1) or Ended("it is still under way")


def _results(folder: Path, number: int) -> Path:
    return folder / f"results.{number}.json"


def _ended(folder: Path, number: int) -> Ended | None:
    try:
        return Ended(*json.loads((folder / f"ended.{number}").read_bytes()))
    except FileNotFoundError:
        return None


def _holder(folder: Path, number: int) -> tuple[int, str] | None:
    """Returns the process that has the right, and when it started; None if nobody has it."""
    try:
        pid, started = json.loads((folder / f"claim.{number}").read_bytes())
    except FileNotFoundError:
        return None
    return pid, started


def _take(folder: Path, number: int) -> bool:
    """Returns whether this process has now the right; the file comes into being with its text."""
    pid = os.getpid()
    mine, claimed = folder / f"claim.tmp.{pid}", folder / f"claim.{number}"
    mine.write_text(json.dumps([pid, _started(pid)]), encoding="utf-8")
    try:
        os.link(mine, claimed)
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def _lives(pid: int, started: str) -> bool:
    """Returns whether a process lives that is no later one of the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(pid) == started


def _started(pid: int) -> str:
    """Returns the start of a process in ticks of the system; empty if it is not known.

    A process that has ended, but whose parent has not asked how, has no start either.

    Source: proc_pid_stat(5), fields 3 and 22.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
