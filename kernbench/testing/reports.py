"""The report of a case whose ranks, or whose module, have failed."""

from collections.abc import Iterable

from kernbench.errors import KernbenchError, explained_by
from kernbench.ranks.ranges import folded
from kernbench.ranks.spawn_errors import SpawnException, text_of
from kernbench.scripts.failures import user_frames
from kernbench.testing.cases import CaseRequest


def report_of(error: SpawnException, ranks: Iterable[int]) -> str:
    """Returns the report of the first rank that failed, with the last lines of the others.

    Args:
        ranks: The ranks whose errors count.
    """
    first, *others = sorted(ranks)
    mine = error.errors[first]
    told = f"{type(mine).__name__}: {text_of(mine)}".rstrip(": ")
    lines = ["\n".join([f"[Rank {first}] {told}", *user_frames(mine)])]
    alike: dict[str, list[int]] = {}
    for rank in others:
        alike.setdefault(_last_line(error.errors[rank]), []).append(rank)
    lines += [f"[{folded(found).capitalize()}] {line}" for line, found in alike.items()]
    lines += error.aborted_lines()
    if error.codes:
        lines.append(explained_by(error.codes))
    return "\n".join(lines)


def report_of_import(request: CaseRequest, error: BaseException) -> str:
    """Returns the report of a case whose module could not be imported in a worker process.

    Args:
        error: What the import has raised.
    """
    told = f"{type(error).__name__}: {text_of(error)}".rstrip(": ")
    where = f"the worker process cannot import {request.file}, which registers case {request.case}"
    return "\n".join([f"{where}: {told}", *user_frames(error)])


def _last_line(error: BaseException) -> str:
    summary = error.summary if isinstance(error, KernbenchError) else text_of(error)
    return f"{type(error).__name__}: {summary.partition(chr(10))[0]}".rstrip(": ")
