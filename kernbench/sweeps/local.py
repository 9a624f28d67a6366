"""Runs on processes of this machine."""

import os
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernbench.errors import KernbenchError
from kernbench.scripts.failures import failure_of, report
from kernbench.sweeps import printed
from kernbench.sweeps.records import Record, Run
from kernbench.workers.crew import Answer, Crew, Job
from kernbench.workers.failing import PoolTimeout

WORKER: Final = "kernbench.sweeps.worker"

_SETTINGS: Final = {
    # One thread: several fight over the cores, and make results depend on the machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Processes must agree on the order of sets.
    "PYTHONHASHSEED": "0",
}


class RunDiedError(KernbenchError):
    """A run has ended the process in which it took place."""


class RunTimeoutError(KernbenchError):
    """A run has taken more wall time than it may."""


@dataclass(frozen=True, slots=True)
class Local:
    """Gives runs to processes of this machine, which live on from run to run.

    A run that ends its process, or does not end in time, fails alone: the process is replaced.

    Attributes:
        jobs: Number of processes.
        timeout_s: Seconds of wall time that a run may take; None for any.
    """

    jobs: int = 1
    timeout_s: float | None = None

    def __call__(self, runs: Iterable[Run]) -> Generator[Record, None, None]:
        """Yields the records of runs as they come.

        Args:
            runs: The runs, in the order in which they begin.

        Raises:
            WorkerError: If no process can be started.
        """
        begun: dict[str, tuple[Run, float]] = {}

        def asked() -> Iterator[Job]:
            for run in runs:
                begun[run.key] = run, time.perf_counter()
                fields = {"spec": run.spec.to_json(), "printed": str(folder)}
                yield Job(run.key, "run", fields, self.timeout_s)

        with printed.folder() as folder, crew_of(self.jobs) as crew:
            for answer in crew.run(asked()):
                run, start = begun.pop(answer.job.name)
                wall_s = round(time.perf_counter() - start, 6)
                yield record_of(run, answer, folder, wall_s)


def crew_of(size: int, module: str | None = None) -> Crew:
    """Returns processes in which runs take place that know nothing of each other.

    Args:
        size: Most processes at a time.
        module: Name of the module with their handlers, see `serving.serve`; None for those of a
            sweep.
    """
    environment = {**_SETTINGS, **os.environ}
    return Crew(module or WORKER, size, environment=environment, echo=False, retries=0)


def record_of(run: Run, answer: Answer, folder: Path, wall_s: float) -> Record:
    """Returns the record of a run that a worker was asked for.

    Args:
        answer: What came from the worker.
        folder: Folder of what runs have printed.
        wall_s: Seconds of wall time that it took.

    Raises:
        WorkerError: If the worker has never begun.
        KernbenchError: If the worker cannot make a record, which is a bug.
    """
    response = answer.response
    if response is not None:
        if response.get("ok") is not True:
            raise KernbenchError(f"a run has no record: {response.get('error')}")
        values = response["record"]
        values["results"] = tuple(values["results"])
        if values["breakdown"] is not None:
            values["breakdown"] = tuple(values["breakdown"])
        return Record(run=run, wall_s=wall_s, **values)
    assert answer.error is not None
    file = folder / str(answer.pid)
    if not file.exists():
        raise answer.error
    error: KernbenchError
    if isinstance(answer.error, PoolTimeout):
        limit = answer.job.timeout_s
        error = RunTimeoutError(
            f"the run took more than {limit:g} s of wall time",
            hint="--timeout sets the limit",
        )
    else:
        error = RunDiedError("the run has ended its process", answer.error.facts)
    failure = {**failure_of(error, run.spec), "output": printed.tail(file)}
    file.unlink()
    return Record(run=run, ok=False, failure=failure, report=report(error), wall_s=wall_s)
