"""The file that holds the results of a batch: as a whole, and never a part of it."""

import json
import os
from pathlib import Path
from typing import Final

from kernbench.errors import KernbenchError
from kernbench.testing.results import CaseResult


class ResultsError(KernbenchError):
    """A file of results cannot be read."""


class ResultsFile:
    """Writes the results of a batch, all of them after each.

    A reader sees the old or the new list, whenever the process is killed.

    Args:
        path: The file; results that it has stay in it.

    Raises:
        ResultsError: If there is a file that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        # Each result is encoded once, however often the list is written.
        self._lines: Final = {name: _line(found) for name, found in read_results(path).items()}

    def add(self, result: CaseResult) -> None:
        """Writes the list with one more result; one of the same test is replaced.

        Raises:
            OSError: If the file cannot be written.
        """
        self._lines[result.nodeid] = _line(result)
        write_whole(self._path, "[\n" + ",\n".join(self._lines.values()) + "\n]\n")


def read_results(path: Path) -> dict[str, CaseResult]:
    """Returns the results of a file by the name of the test; none if there is no file.

    Raises:
        ResultsError: If it is not what `ResultsFile` writes.
    """
    try:
        documents = json.loads(path.read_bytes())
        results = [CaseResult.from_json(document) for document in documents]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, KernbenchError) as error:
        raise ResultsError(f"{path}: expected a list of results: {error}") from error
    return {result.nodeid: result for result in results}


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that readers see what was there before, or all that is new.

    Args:
        text: What it holds from then on.

    Raises:
        OSError: If it cannot be written.
    """
    beside = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    with beside.open("wb", buffering=0) as file:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    os.replace(beside, path)


def _line(result: CaseResult) -> str:
    return json.dumps(result.to_json())
