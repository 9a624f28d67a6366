"""Mode `batch`: cases are foreseen, and run in batches in another process."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernbench.testing.cases import CaseRequest
from kernbench.testing.claims import Claim, Ended, claim, outcome
from kernbench.testing.remote import (
    MODULE,
    ask,
    is_clean,
    result_of_end,
    why,
)
from kernbench.testing.result_files import ResultsError
from kernbench.testing.results import CaseResult
from kernbench.workers.failing import WorkerError, with_last_words
from kernbench.workers.worker import Worker


class Batch(NamedTuple):
    """Cases of one world size, in the order of their tests.

    Attributes:
        requests: The cases.
        name: The same in all processes that foresee the same cases.
    """

    requests: tuple[CaseRequest, ...]
    name: str


def batches_of(requests: Iterable[CaseRequest], size: int) -> list[Batch]:
    """Returns cases in batches.

    Args:
        requests: The cases, in the order of their tests.
        size: Most cases of a batch.
    """
    worlds: dict[int, list[CaseRequest]] = {}
    for request in requests:
        worlds.setdefault(request.world_size, []).append(request)
    return [
        _batch(cases[first : first + size])
        for cases in worlds.values()
        for first in range(0, len(cases), size)
    ]


def _batch(requests: Iterable[CaseRequest]) -> Batch:
    cases = tuple(requests)
    text = json.dumps([request.to_json() for request in cases], sort_keys=True)
    return Batch(cases, hashlib.sha256(text.encode()).hexdigest()[:24])


class Batched:
    """Looks up what came of cases; a batch runs when the first of its tests asks.

    The process of a batch writes all results to a file after each case. When it ends early, in
    whichever way, the cases without a result run alone, each in a fresh process, when their tests
    ask: the one that ended the batch fails under its own name, and the others do not.

    One process serves batch after batch while cases leave nothing behind, since a start costs as
    much as a hundred small cases.

    Args:
        foreseen: Returns what tests will ask for, as far as it is known, in their order. The first
            process starts meanwhile.
        environment: Environment variables of the processes; cases bring those that tests change.
        folder: Folder for batches, which all processes of the test run share.
        size: Most cases of a batch.
        timeout_s: Seconds of wall time that a case may take.
        retry: Whether cases without a result run alone; if not, they fail.
        most: Most processes at a time; None for no limit.
    """

    def __init__(
        self,
        foreseen: Callable[[], Iterable[CaseRequest]],
        environment: Mapping[str, str],
        folder: Path,
        *,
        size: int,
        timeout_s: float,
        retry: bool = True,
        most: int | None = None,
    ) -> None:
        self._environment = environment
        self._folder: Final = folder
        self._timeout_s = timeout_s
        self._retry = retry
        self._most = most
        self._outcomes: Final[dict[str, tuple[dict[str, CaseResult], Ended]]] = {}
        self._worker: Worker | None = None
        with suppress(WorkerError):  # if it cannot start, the first case tells
            self._worker = Worker(MODULE, environment=environment)
        try:
            batches = batches_of(foreseen(), size)
        except BaseException:
            self.close()  # the tests are interrupted
            raise
        self._foreseen: Final = {
            request.nodeid: (batch, request) for batch in batches for request in batch.requests
        }

    def run(self, request: CaseRequest) -> CaseResult:
        """Returns what came of a case; waits for it, and for others of its batch."""
        # A result is given once: a test that is run again runs its case again.
        batch, foreseen = self._foreseen.pop(request.nodeid, (None, None))
        if batch is None or foreseen != request:
            return self._run_singly(request)
        results, ended = self._outcome(batch)
        result = results.get(request.nodeid)
        if result is not None:
            return result
        if self._retry:
            return self._run_alone(request, _own_reason(request, ended))
        candidates = [r.nodeid for r in batch.requests if r.nodeid not in results]
        return CaseResult(nodeid=request.nodeid, ok=False, error=_one_of(candidates, ended))

    def close(self) -> None:
        """Ends the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _outcome(self, batch: Batch) -> tuple[dict[str, CaseResult], Ended]:
        """Returns the results of a batch, and how it ended; runs it unless another process does."""
        if batch.name not in self._outcomes:
            folder = self._folder / batch.name
            try:
                mine = claim(folder)
                if mine is not None:
                    self._run_batch(batch, mine)
                self._outcomes[batch.name] = outcome(folder)
            except (OSError, ResultsError) as error:
                self._outcomes[batch.name] = {}, Ended(f"its results are lost: {error}")
        return self._outcomes[batch.name]

    def _run_batch(self, batch: Batch, mine: Claim) -> None:
        ended = Ended("the tests were interrupted")
        try:
            known, _ = outcome(mine.folder)
            for request in batch.requests:
                if request.nodeid not in known:
                    ended = ended._replace(nodeid=request.nodeid)
                    self._ask(request, "record", path=str(mine.results))
            ended = Ended()
        except WorkerError as error:
            ended = Ended(why(error), error.tail, ended.nodeid)
        finally:
            mine.end(ended)

    def _run_singly(self, request: CaseRequest) -> CaseResult:
        """Returns what came of a case that was not foreseen."""
        try:
            return self._ask(request, "run")
        except WorkerError as error:
            if self._retry:
                return self._run_alone(request, why(error))
            return result_of_end(request, error)

    def _run_alone(self, request: CaseRequest, reason: str) -> CaseResult:
        """Returns what came of a case in a process that runs nothing else."""
        about = f"world={request.world_size} job={request.nodeid}"
        print(f"[BATCH-RETRY] {about} reason={reason or 'no result'}", file=sys.stderr)
        if self._most == 1:
            self.close()
        try:
            with Worker(MODULE, environment=self._environment) as worker:
                result = ask(worker, request, self._timeout_s)
        except WorkerError as error:
            result = result_of_end(request, error)
        return replace(result, retries=1)

    def _ask(self, request: CaseRequest, op: str, **fields: Any) -> CaseResult:
        """Returns what came of a case in the process that is kept.

        Raises:
            WorkerError: If there is no answer.
        """
        if self._worker is not None and not self._worker.alive:
            self.close()  # what a case left has ended it since
        if self._worker is None:
            self._worker = Worker(MODULE, environment=self._environment)
        worker, self._worker = self._worker, None
        try:
            result = ask(worker, request, self._timeout_s, op, **fields)
        except BaseException:
            worker.kill()  # also if the tests are interrupted while it is busy
            raise
        if is_clean(result):
            self._worker = worker
        else:
            worker.close()
        return result


def _own_reason(request: CaseRequest, ended: Ended) -> str:
    """Returns why a case has no result: it ended its batch, or another had ended that before."""
    if not ended.nodeid or ended.nodeid == request.nodeid:
        return ended.reason
    return f"not run, as {ended.nodeid} ended the batch before: {ended.reason}"


def _one_of(candidates: list[str], ended: Ended) -> str:
    """Returns the report of a batch of which any of several cases may have ended it."""
    early = f"the process of the batch ended early: {ended.reason}"
    lines = [f"no result: {early if ended.reason else 'it could not be written'}"]
    lines += ["  it was one of these cases:", *(f"    {name}" for name in candidates)]
    lines.append("  hint: with KERNBENCH_TEST_BATCH_RETRY=1 each of them is tried alone")
    return with_last_words("\n".join(lines), ended.tail)
