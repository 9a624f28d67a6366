"""Whether the exchanges of an algorithm fit together, and which of its lines do not."""

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.ccl.deliveries import follow
from kernbench.ccl.plan import (
    NOTHING,
    Algorithm,
    AlgorithmError,
    Plan,
    Recorder,
    Setting,
)
from kernbench.errors import CallSite, call_site, site_fact

_SHOWN: Final = 8
"""How many misfits a report tells; the rest is counted."""


class _Misfit(NamedTuple):
    """An exchange that has no partner, or another one than it expects.

    Attributes:
        rank: The rank whose exchange it is.
        step: Its number among those of the rank that send or receive.
        text: What is wrong.
        waits: Whether the rank waits for ever.
    """

    rank: int
    step: int
    text: str
    waits: bool


def check_fits(plan: Plan, algorithm: Algorithm, setting: Setting) -> None:
    """Checks that every send has its receive, of as many chunks, and that no rank waits for ever.

    Queues are taken as endless here: too few slots are found while the collective runs.

    Args:
        plan: What the algorithm exchanges.
        algorithm: What the plan was recorded of.
        setting: Everything that the algorithm can see besides its rank.

    Raises:
        AlgorithmError: If exchanges do not fit (K7, if ranks wait).
    """
    found = _misfits(plan)
    if not found:
        return
    facts = []
    for misfit in found[:_SHOWN]:
        site = _sites(algorithm, setting, misfit.rank)[misfit.step]
        facts.append(f"{misfit.text}, {site_fact(site)}")
    if len(found) > _SHOWN:
        facts.append(f"and {len(found) - _SHOWN} more")
    waits = any(misfit.waits for misfit in found)
    raise AlgorithmError(
        f"the exchanges of {setting.operation} between {setting.world_size} ranks "
        + ("wait for each other for ever" if waits else "do not fit together"),
        facts,
        hint="every send needs a receive at the other rank, in the same order and with the same "
        "span; a rank that leaves one out, or has a turn fewer, keeps its partners waiting",
        code="K7" if waits else "",
    )


@cached("ccl.fits")
def _misfits(plan: Plan) -> Sequence[_Misfit]:
    """Returns what does not fit: ranks that wait, those for ranks that have ended first."""
    if plan.aligned or fits(plan):
        return ()
    ranks = range(plan.world_size)
    steps = [plan.of(rank) for rank in ranks]
    found = []

    def receive(rank: int, number: int, other: int) -> None:
        step = steps[rank][number]
        span = steps[step.source][other].span
        if span != step.span:
            text = f"rank {rank} receives span={step.span} of rank {step.source}"
            found.append(_Misfit(rank, number, f"{text}, which sent {span}", waits=False))

    # A message is the number of the exchange in which it leaves.
    at, queues = follow(steps, lambda _, number: number, receive)
    stuck = [rank for rank in ranks if at[rank] < len(steps[rank])]
    waiting = {rank: steps[rank][at[rank]].source for rank in stuck}
    for rank in sorted(stuck, key=lambda rank: waiting[rank] in waiting):
        source = waiting[rank]
        state = f"waits for rank {waiting[source]}" if source in waiting else "has ended"
        text = f"rank {rank} waits for a message from rank {source}, which {state}"
        found.append(_Misfit(rank, at[rank], text, waits=True))
    for (sender, receiver), queue in sorted(queues.items()):
        if queue and receiver not in waiting:
            text = f"rank {sender} sends what rank {receiver} never receives"
            found.append(_Misfit(sender, queue[0], text, waits=False))
    return found


def fits(plan: Plan) -> bool:
    """Returns whether everything fits, without a word about what does not: plans may be large."""
    leaves, sender = np.nonzero(plan.send != NOTHING)
    arrives, receiver = np.nonzero(plan.receive != NOTHING)
    if len(leaves) != len(arrives):
        return False
    ranks = plan.world_size
    sent = sender * ranks + plan.to[leaves, sender]
    received = plan.source[arrives, receiver].astype(np.int64) * ranks + receiver
    # Messages between two ranks arrive in the order in which they leave.
    first, then = np.argsort(sent, kind="stable"), np.argsort(received, kind="stable")
    spans = plan.span[leaves, sender][first], plan.span[arrives, receiver][then]
    if not np.array_equal(sent[first], received[then]) or not np.array_equal(*spans):
        return False
    order = np.lexsort((arrives[then], receiver[then]))
    counts = np.bincount(receiver, minlength=ranks)
    columns = (each[order] for each in (arrives[then], sender[first], leaves[first]))
    return _all_end(*([part.tolist() for part in _parts(each, counts)] for each in columns))


def _parts(numbers: Any, counts: Any) -> list[Any]:
    return np.split(numbers, np.cumsum(counts)[:-1])


def _all_end(receives: list[list[int]], sources: list[list[int]], leaves: list[list[int]]) -> bool:
    """Returns whether every rank gets all that it receives.

    Args:
        receives: By rank, the steps in which it receives, in order.
        sources: Of whom.
        leaves: In which step of the other rank it leaves; that is before the other one receives.
    """
    done = [0] * len(receives)
    at = [steps[0] if steps else _END for steps in receives]  # the step that each has reached
    waiting: dict[int, list[int]] = {}  # by rank, those that wait for it
    ready = list(range(len(receives)))
    while ready:
        rank = ready.pop()
        steps, others, needed = receives[rank], sources[rank], leaves[rank]
        place, before = done[rank], at[rank]
        while place < len(steps) and at[others[place]] >= needed[place]:
            place += 1
            at[rank] = steps[place] if place < len(steps) else _END
        done[rank] = place
        if place < len(steps):
            waiting.setdefault(others[place], []).append(rank)
        if at[rank] > before:
            ready += waiting.pop(rank, ())
    return all(reached == _END for reached in at)


_END: Final = sys.maxsize


def _sites(algorithm: Algorithm, setting: Setting, rank: int) -> list[CallSite | None]:
    """Returns the line of each exchange of a rank that sends or receives."""
    recorder = _Sited(rank, setting, set())
    algorithm(recorder)
    return recorder.sites


class _Sited(Recorder):
    """Notes where the algorithm calls each exchange that sends or receives.

    Attributes:
        sites: The places, in order.
    """

    def __init__(self, rank: int, setting: Setting, asked: set[int]) -> None:
        super().__init__(rank, setting, asked)
        self.sites: Final[list[CallSite | None]] = []

    def exchange(self, **arguments: Any) -> None:
        super().exchange(**arguments)
        if arguments["send"] != NOTHING or arguments["receive"] != NOTHING:
            self.sites.append(call_site())
