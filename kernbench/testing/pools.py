"""Mode `pool`: a process for each world size, which runs one case after another."""

import sys
from collections.abc import Mapping
from dataclasses import replace

from kernbench.testing.cases import CaseRequest
from kernbench.testing.remote import MODULE, is_clean, result_of, result_of_end
from kernbench.testing.results import CaseResult
from kernbench.workers.crew import Crew, Job


class Pools:
    """Runs cases in processes that are kept, one for each world size.

    A process that dies, hangs or breaks the protocol is replaced, and its case is tried once more:
    the type of the failure says which it was. A case that failed is not tried again. If it
    has left something behind, the next case of its world size gets a fresh process.

    Args:
        environment: Environment variables of the processes; cases bring those that tests change.
        timeout_s: Seconds of wall time that a case may take.
        most: Most processes at a time; None for no limit. Beyond it the one that was idle longest
            ends.
        timing: Whether to write a line about each case to standard error.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        timeout_s: float,
        most: int | None = None,
        timing: bool = False,
    ) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._most = most
        self._timing = timing
        self._crews: dict[int, Crew] = {}  # the one that was asked last is the last

    def run(self, request: CaseRequest) -> CaseResult:
        """Returns what came of a case; waits for it."""
        crew = self._crew(request.world_size)
        job = Job(request.nodeid, "run", request.to_json(), self._timeout_s)
        try:
            [answer] = crew.run([job])
        except BaseException:
            crew.close()  # the tests are interrupted while its process is busy
            raise
        if answer.error is not None:
            result = result_of_end(request, answer.error)
        else:
            assert answer.response is not None
            result = result_of(request, answer.response)
        result = replace(result, retries=answer.tries - 1)
        if not is_clean(result):
            crew.discard()
        if self._timing:
            print(
                f"[POOL-TIMING] case={request.case} world={request.world_size} "
                f"wall_s={result.wall_s:.6f} sim_s={result.sim_s:.9g} ok={result.ok}",
                file=sys.stderr,
            )
        return result

    def close(self) -> None:
        """Ends all processes."""
        while self._crews:
            self._crews.popitem()[1].close()

    def _crew(self, world_size: int) -> Crew:
        crew = self._crews.pop(world_size, None)
        if crew is None:
            while self._most is not None and len(self._crews) >= self._most:
                self._crews.pop(next(iter(self._crews))).close()
            crew = Crew(MODULE, environment=self._environment, label=f"world={world_size}")
        self._crews[world_size] = crew
        return crew
