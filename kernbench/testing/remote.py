"""A case in another process: what is sent, and what its answer, or its end, says."""

from typing import Any, Final

from kernbench.testing.cases import CaseRequest
from kernbench.testing.results import CaseResult
from kernbench.workers.failing import CaseFailed, Message, WorkerError, with_last_words
from kernbench.workers.worker import Worker

MODULE: Final = "kernbench.testing.worker"
"""Module with the handlers: `run` runs a case, `record` also writes what came of it."""


def ask(
    worker: Worker, request: CaseRequest, timeout_s: float, op: str = "run", **fields: Any
) -> CaseResult:
    """Returns what came of a case in another process; waits for it.

    Args:
        worker: The process.
        timeout_s: Seconds of wall time that it may take.
        op: Name of the handler.
        fields: Further values for the handler.

    Raises:
        WorkerError: If there is no answer; the process is then gone.
    """
    try:
        return result_of(request, worker.call(op, timeout_s, **request.to_json(), **fields))
    except CaseFailed as failed:
        return result_of(request, failed.response)


def result_of(request: CaseRequest, response: Message) -> CaseResult:
    """Returns what an answer says of a case.

    Args:
        response: The answer; without the values of a result if the case could not be run.
    """
    if "nodeid" in response:
        return CaseResult.from_json(response)
    return CaseResult(nodeid=request.nodeid, ok=False, error=str(response.get("error", "")))


def result_of_end(request: CaseRequest, error: WorkerError) -> CaseResult:
    """Returns the failure of a case whose process gave no answer."""
    text = f"{request.nodeid}: no result of case {request.case}: {why(error)}"
    return CaseResult(nodeid=request.nodeid, ok=False, error=with_last_words(text, error.tail))


def why(error: WorkerError) -> str:
    """Returns in one line why there is no answer."""
    return ", ".join([error.summary, *(str(fact) for fact in error.facts)])


def is_clean(result: CaseResult) -> bool:
    """Returns whether a process may go on after a case: it has not failed for what it left."""
    return result.ok or not result.leaks
