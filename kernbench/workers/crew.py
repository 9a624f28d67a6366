"""Several workers that share out jobs."""

import selectors
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

from kernbench.workers.failing import CaseFailed, Message, WorkerError
from kernbench.workers.worker import LOOK_S, Worker


class Job(NamedTuple):
    """Something to ask one worker, whichever it is.

    Attributes:
        name: Name of the job in reports.
        op: Name of the handler.
        fields: Plain values of the request.
        timeout_s: Seconds of wall time that the answer may take; None for no limit.
    """

    name: str
    op: str
    fields: Mapping[str, Any]
    timeout_s: float | None = None


class Answer(NamedTuple):
    """What came of a job.

    Attributes:
        job: The job.
        pid: The process that was asked last.
        response: The response, of which `ok` may be false; None if there is none.
        error: Why there is no response; None if there is one.
        tries: How many processes were asked.
    """

    job: Job
    pid: int
    response: Message | None
    error: WorkerError | None
    tries: int


class Crew:
    """Workers that share out jobs; those that die are replaced.

    Args:
        module: Name of the module with the handlers, see `serving.serve`.
        size: Most processes at a time; they start when there is work for them.
        environment: Their environment variables; None for those of this process.
        echo: Whether to write what they print to `sys.stderr`.
        retries: How often a job is given to a fresh process after one that did not answer.
        label: What a line about a retry says the crew is, such as `world=8`.
    """

    def __init__(
        self,
        module: str,
        size: int = 1,
        *,
        environment: Mapping[str, str] | None = None,
        echo: bool = True,
        retries: int = 1,
        label: str = "",
    ) -> None:
        self._module = module
        self._size: Final = size
        self._environment = environment
        self._echo = echo
        self._retries = retries
        self._label = label
        self._idle: list[Worker] = []
        self._busy: dict[Worker, tuple[Job, int]] = {}
        self._running: object = None  # stands for the run under way

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Yields the answers to jobs as they come; takes the next job when a worker is free.

        What an answer's job was asked is done when it is yielded, whatever happens to later ones.
        Who stops to iterate, or begins another run, gives up what is under way: the workers that
        are busy are killed.

        Args:
            jobs: The jobs, in the order in which they begin.
        """
        self._stop()
        this = self._running = object()
        left = iter(jobs)
        again: deque[tuple[Job, int]] = deque()
        with selectors.DefaultSelector() as selector:
            try:
                while True:
                    for answer in self._fill(left, again, selector):
                        yield from self._settle(answer, again)
                        if self._running is not this:
                            return
                    if not self._busy:
                        return
                    for worker in self._answered(selector):
                        yield from self._settle(self._hear(worker, selector), again)
                        if self._running is not this:
                            return
            finally:
                if self._running is this:
                    self._stop()

    def discard(self) -> None:
        """Ends the workers that are idle, so that the next job has a fresh one."""
        for worker in self._idle:
            worker.dismiss()
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Ends all workers; kills those that are busy, and a run that is under way ends."""
        self._stop()
        self.discard()

    def _stop(self) -> None:
        self._running = None
        while self._busy:
            self._busy.popitem()[0].kill()

    def _fill(
        self,
        left: Iterator[Job],
        again: "deque[tuple[Job, int]]",
        selector: selectors.BaseSelector,
    ) -> Iterator[Answer]:
        """Gives jobs to workers that are free; yields an answer where there will be none."""
        while len(self._busy) < self._size:
            job, tried = again.popleft() if again else (next(left, None), 0)
            if job is None:
                return
            pid = 0
            try:
                worker = self._free(fresh=tried > 0)
                pid = worker.pid
                worker.ask(job.op, job.timeout_s, **job.fields)
            except WorkerError as error:
                yield Answer(job, pid, None, error, tried + 1)
            else:
                self._busy[worker] = job, tried
                selector.register(worker, selectors.EVENT_READ)

    def _free(self, fresh: bool) -> Worker:
        """Returns a worker that is idle, and has not died meanwhile, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive and not fresh:
                return worker
            worker.close()
            if fresh:
                break
        return Worker(self._module, environment=self._environment, echo=self._echo)

    def _answered(self, selector: selectors.BaseSelector) -> list[Worker]:
        """Waits for a while; returns the workers that have answered, or will not."""
        limits = [left for worker in self._busy if (left := worker.left_s) is not None]
        selector.select(min([*limits, LOOK_S]))
        return [worker for worker in self._busy if worker.poll()]

    def _hear(self, worker: Worker, selector: selectors.BaseSelector) -> Answer:
        job, tried = self._busy.pop(worker)
        selector.unregister(worker)
        try:
            response = worker.answer()
        except CaseFailed as failed:
            response = failed.response
        except WorkerError as error:
            return Answer(job, worker.pid, None, error, tried + 1)
        self._idle.append(worker)
        return Answer(job, worker.pid, response, None, tried + 1)

    def _settle(self, answer: Answer, again: "deque[tuple[Job, int]]") -> Iterator[Answer]:
        """Yields an answer, unless its job is to be tried again."""
        error = answer.error
        if error is None:
            yield answer
            return
        last = answer.tries > self._retries
        line = "[POOL-RETRY-FAIL]" if last and self._retries else "[POOL-RETRY]"
        if self._retries:
            about = f"{self._label} " if self._label else ""
            print(
                f"{line} {about}job={answer.job.name} attempt={answer.tries} reason={error.reason}",
                file=sys.stderr,
            )
        if last:
            yield answer
        else:
            again.append((answer.job, answer.tries))
