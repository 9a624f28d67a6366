"""Texts of reports as tests state them: files by no name, lines counted from the worker's."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.ranks.spawn_errors import text_of
from kernbench.testing import Kernbench

Worker = Callable[..., Any]

_PLACE = re.compile(r"[^\s\"]*\.py:(\d+):\d+")
_LINE = re.compile(r"\(l\.(\d+)\)")


def relative(text: str, worker: Worker) -> str:
    """Writes `FILE+2` for the second line after that of the worker's `def`."""
    first = worker.__code__.co_firstlineno
    text = _PLACE.sub(lambda found: f"FILE+{int(found[1]) - first}", text)
    return _LINE.sub(lambda found: f"(l.+{int(found[1]) - first})", text)


def failure(kernbench: Kernbench, worker: Worker, nprocs: int, **dials: Any) -> SpawnException:
    """Returns how a spawn fails."""
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=nprocs, **dials)
    return caught.value


def views(
    kernbench: Kernbench, worker: Worker, nprocs: int, **dials: Any
) -> dict[tuple[int, ...], str]:
    """Returns the full text that failed ranks get, by those who get the same, in their order."""
    alike: dict[str, tuple[int, ...]] = {}
    for rank, error in failure(kernbench, worker, nprocs, **dials).errors.items():
        text = f"{type(error).__name__}: {relative(text_of(error), worker)}"
        alike[text] = (*alike.get(text, ()), rank)
    return {ranks: text for text, ranks in alike.items()}
