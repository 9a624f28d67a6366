"""Runs the rows of tables, in processes of this machine, under each torch that there is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from kernbench.errors import KernbenchError, UsageError
from kernbench.sweeps.local import crew_of
from kernbench.validation.table import BRIDGE, OWN, Found, Line
from kernbench.workers.crew import Answer, Job

WORKER: Final = "kernbench.validation.worker"
_ROWS: Final = 8
"""Rows of a job; a whole program is a job of its own."""


def torches() -> tuple[str, ...]:
    """Returns which torches there are: `OWN`, and `BRIDGE` if PyTorch is installed."""
    return (OWN,) if find_spec("torch") is None else (OWN, BRIDGE)


@dataclass(frozen=True, slots=True)
class Result:
    """A row and what came of it.

    Attributes:
        line: The row.
        found: What came of it under each torch, by name.
    """

    line: Line
    found: dict[str, Found] = field(default_factory=dict)

    def error(self, torch: str, column: str) -> float | None:
        """Returns `predicted / measured - 1` of a cell; None if there is no prediction.

        Args:
            torch: Which torch.
            column: Column of the cell.
        """
        predicted = self.found[torch].predicted.get(column)
        return None if predicted is None else predicted / self.line.measured[column] - 1


def run(
    lines: Sequence[Line], topology: str, jobs: int, which: Sequence[str] | None = None
) -> list[Result]:
    """Runs rows and returns what came of them, in their order.

    Args:
        lines: The rows.
        topology: A topology file, or the name of a shipped machine.
        jobs: Most processes at a time.
        which: The torches; None for all there are.

    Raises:
        UsageError: If the machine cannot be used, or PyTorch is of a version that is not known.
        WorkerError: If a process has ended.
    """
    results = [Result(line) for line in lines]
    first: dict[tuple[str, ...], Result] = {}
    for result in results:
        first.setdefault(result.line.asked, result)
    chosen = torches() if which is None else which
    asked: dict[str, tuple[str, list[Result]]] = {}
    with crew_of(jobs, WORKER) as crew:
        for answer in crew.run(_jobs(list(first.values()), topology, chosen, asked)):
            torch, some = asked[answer.job.name]
            for result, values in zip(some, _values(answer), strict=True):
                result.found[torch] = Found(values["predicted"], values["missing"])
    for result in results:
        result.found.update(first[result.line.asked].found)
    return results


def _jobs(
    results: Sequence[Result],
    topology: str,
    which: Sequence[str],
    asked: dict[str, tuple[str, list[Result]]],
) -> Iterator[Job]:
    """Yields jobs, those of PyTorch first: they take longest."""
    for torch in reversed(which):
        for some in _shares(results):
            name = f"{torch} {some[0].line.place}"
            asked[name] = torch, some
            fields = {
                "table": some[0].line.table.name,
                "rows": [dict(result.line.row) for result in some],
                "torch": torch,
                "topology": topology,
            }
            yield Job(name, "rows", fields)


def _shares(results: Sequence[Result]) -> Iterator[list[Result]]:
    share: list[Result] = []
    for result in sorted(results, key=lambda each: not each.line.table.scripts):
        table = result.line.table
        if share and (share[0].line.table is not table or table.scripts or len(share) == _ROWS):
            yield share
            share = []
        share.append(result)
    if share:
        yield share


def _values(answer: Answer) -> list[dict[str, Any]]:
    response = answer.response
    if response is None:
        assert answer.error is not None
        raise answer.error
    if "usage" in response:
        summary, facts, hint, code = response["usage"]
        raise UsageError(summary, facts, hint=hint, code=code)
    if response.get("ok") is not True:
        raise KernbenchError(f"{answer.job.name}: {response.get('error')}")
    found: list[dict[str, Any]] = response["found"]
    return found
