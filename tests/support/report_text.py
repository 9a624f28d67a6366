"""Texts of reports as tests state them: files by no name, ranks that get the same together."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from kernbench.ranks.spawn_errors import text_of
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

Worker = Callable[..., Any]

_PLACE = re.compile(r"[^\s\"]*\.py:(\d+):\d+")
_LINE = re.compile(r"\(l\.(\d+)\)")


def cut(text: str) -> str:
    """Cuts what differs between machines: file names with their lines, and times."""
    text = re.sub(r"/\S*\.py:\d+:\d+", "FILE", text)
    return re.sub(r"\b\d+(\.\d+)? (ps|ns|us|ms|s)\b", "T", text)


def relative(text: str, worker: Worker) -> str:
    """Writes `FILE+2` for the second line after that of the worker's `def`."""
    first = _line_of_def(worker)
    text = _PLACE.sub(lambda found: f"FILE+{int(found[1]) - first}", text)
    return _LINE.sub(lambda found: f"(l.+{int(found[1]) - first})", text)


def _line_of_def(worker: Worker) -> int:
    """Returns the line of `def`: decorators, with the texts in them, come before it."""
    lines, first = inspect.getsourcelines(worker)
    return first + next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


def failure(kernbench: Kernbench, worker: Worker, nprocs: int, **dials: Any) -> SpawnException:
    """Returns how a spawn fails."""
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=nprocs, **dials)
    return caught.value


def views(
    kernbench: Kernbench, worker: Worker, nprocs: int, **dials: Any
) -> dict[tuple[int, ...], str]:
    """Returns the full text that failed ranks get, by those who get the same, in their order."""

    def show(error: BaseException) -> str:
        return f"{type(error).__name__}: {relative(text_of(error), worker)}"

    return alike(failure(kernbench, worker, nprocs, **dials), show)


def alike(
    failed: SpawnException, show: Callable[[BaseException], str]
) -> dict[tuple[int, ...], str]:
    """Returns what `show` makes of each rank's error, by those who get the same."""
    found: dict[str, tuple[int, ...]] = {}
    for rank, error in failed.errors.items():
        text = show(error)
        found[text] = (*found.get(text, ()), rank)
    return {ranks: text for text, ranks in found.items()}
