"""Which of some algorithms is the fastest for a group, found by timing them within a budget.

What is spent are calls of the event loop, and turns of ranks that are replayed without it: never
the time of the computer, so a choice is the same in each run (ADR 0078).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Final, NamedTuple

from kernbench.ccl.alone import (
    Budget,
    OverBudgetError,
    TooLongError,
    messages_of,
    time_alone,
)
from kernbench.ccl.config import Chosen
from kernbench.ccl.plan import RefusedError
from kernbench.des import DeadlockError
from kernbench.memory import DType
from kernbench.topology import Topology

_CALLS: Final = 3
"""About how many calls a message takes; only the first size of a trial goes by it."""

_FIRST: Final = 64
"""Part of the budget that the first size of a long collective is about to take: one of so many."""

_FIRST_OVER: Final = 8
"""How many times the expected calls a trial may take until it is given up, if no size was timed."""

_OVER: Final = 2
"""The same, if one was."""

_NEAR: Final = 4
"""Parts of the whole size, from which on the whole is the next one."""

_LEVEL: Final = 1.25
"""Calls of a size over those of its half, up to which repetitions are skipped, in the whole too."""

_DOUBTS: Final = 2 / 3, 1 / 2, 1 / 10
"""By which part a time may be wrong that comes from an estimate, from one size, from two sizes."""


class Case(NamedTuple):
    """What is to be timed.

    Attributes:
        topology: The machine.
        operation: A key of `OPERATIONS`.
        sips: Device of each rank.
        nbytes: See `time_alone`.
        dtype: Of the elements.
        estimate: Returns the estimate of an algorithm for a size, in picoseconds.
    """

    topology: Topology
    operation: str
    sips: tuple[int, ...]
    nbytes: int
    dtype: DType
    estimate: Callable[[Chosen, int], float]


class Step(NamedTuple):
    """What a trial would do next.

    Attributes:
        size: Bytes to time.
        price: About how many calls it takes.
        allowed: The most calls that it may take.
    """

    size: int
    price: int
    allowed: int


@dataclass(eq=False)
class Trial:
    """What is known of an algorithm.

    Attributes:
        chosen: The algorithm.
        estimate: See `Estimator.estimate`.
        time: About how long it takes, in picoseconds: its estimate, until sizes tell more.
        doubt: By which part of it the time may be wrong; 0 if the whole size was timed.
        out: Whether it takes longer than one that was timed, refuses the group, or does not end.
    """

    chosen: Chosen
    estimate: float
    time: float = inf
    doubt: float = _DOUBTS[0]
    out: bool = False
    _times: dict[int, int] = field(default_factory=dict)
    _calls: dict[int, int] = field(default_factory=dict)
    _given_up: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.time = self.estimate

    @property
    def least(self) -> float:
        """Picoseconds that it takes at least."""
        return self.time * (1 - self.doubt)

    @property
    def most(self) -> float:
        """Picoseconds that it takes at most."""
        time = self.time if len(self._times) > 1 else max(self.time, self.estimate)
        return self.time if not self.doubt else time * (1 + self.doubt)

    def step(self, case: Case, size: int, budget: Budget, most: float) -> None:
        """Times a size.

        Args:
            most: Picoseconds after which the algorithm is out.
        """
        given = budget.left
        try:
            self._messages(case, size)
            time = time_alone(
                case.topology,
                self.chosen,
                case.operation,
                len(case.sips),
                size,
                sips=case.sips,
                most=int(most) if size == case.nbytes and most < inf else None,
                budget=budget,
                dtype=case.dtype,
                one_walk=True,
            )
            self._times[size], self._calls[size] = time, max(1, given - budget.left)
            self._tell(case, size)
        except OverBudgetError:
            self._given_up[size] = given
        except (TooLongError, DeadlockError, RefusedError):
            self.out = True

    def upcoming(self, case: Case, calls: int, number: int) -> Step:
        """Returns what is to be timed next.

        Args:
            calls: The budget of all trials.
            number: Number of trials.
        """
        try:
            return self._next(case, calls) if self._times else self._begin(case, calls, number)
        except RefusedError:
            self.out = True
            return Step(case.nbytes, calls + 1, 0)

    def _begin(self, case: Case, calls: int, number: int) -> Step:
        size = whole = case.nbytes
        count = self._messages(case, whole)
        price = _CALLS * (len(case.sips) + count)
        if price > calls // (2 * number) or whole in self._given_up:
            while size > 1 and price > calls // _FIRST:
                price, size = price // 2, size // 2
            cheaper = 2 * self._messages(case, size) <= count
            if not cheaper and whole not in self._given_up:  # a part tells less
                size, price = whole, _CALLS * count
        price = max(price, 2 * self._given_up.get(size, 0), 1)
        return Step(size, price, _FIRST_OVER * price)

    def _next(self, case: Case, calls: int) -> Step:
        last, whole = max(self._times), case.nbytes
        spent, size = self._calls[last], 2 * last
        if whole not in self._given_up and self._repeats(case, last):
            return Step(whole, spent, calls // 3)
        if _NEAR * last >= whole:
            size = whole
        grown = self._messages(case, size) / max(1, self._messages(case, last))
        price = max(int(spent * max(1.0, grown)), 2 * self._given_up.get(size, 0))
        return Step(size, price, _OVER * price)

    def _repeats(self, case: Case, last: int) -> bool:
        """Returns whether repetitions of the whole size are likely to be skipped."""
        before = self._calls.get(last // 2)
        if before is None:
            return False
        level = self._calls[last] <= _LEVEL * before
        counts = (self._messages(case, size) for size in (last, last // 2))
        return level and next(counts) > _LEVEL * next(counts)

    def _messages(self, case: Case, size: int) -> int:
        topology, operation, sips, _, dtype, _ = case
        return messages_of(topology, self.chosen, operation, sips, size, dtype)

    def _tell(self, case: Case, size: int) -> None:
        """Tells the time of the whole from the sizes so far.

        There are three ways, which err for different reasons: the estimate of the whole is as wrong
        as that of the size; it is wrong by as much time; and, from two sizes, time is affine once
        messages follow each other at one pace. It is their mean, and any of them may be right.
        """
        time, half = self._times[size], self._times.get(size // 2)
        if size == case.nbytes:
            self.time, self.doubt = time, 0.0
            return
        estimate = case.estimate(self.chosen, size)
        ways = [self.estimate * time / estimate, max(self.estimate + time - estimate, time)]
        doubt = _DOUBTS[1]
        if half is not None and half < time:
            ways.append(time + (time - half) * (case.nbytes - size) / (size // 2))
            doubt = _DOUBTS[2]
        self.time = prod(ways) ** (1 / len(ways))
        self.doubt = max(doubt, 1 - min(ways) / self.time, max(ways) / self.time - 1)


def timed(
    case: Case, trials: Sequence[Trial], calls: int, margin: Callable[[Chosen], float]
) -> list[Trial]:
    """Times algorithms until a budget is spent; those that may be the fastest get more of it.

    What is cheapest to learn comes first, so that none spends what the others need.

    Args:
        trials: The algorithms.
        calls: The budget: most calls of the event loop.
        margin: Returns how much longer than the fastest an algorithm may take, as a ratio, to be of
            interest.

    Returns:
        Those that may be chosen, with the times that are known then.
    """
    left, steps = calls, dict[Trial, Step]()
    while True:
        best = min((one.most for one in trials if not one.out), default=inf)
        some = [one for one in trials if not one.out and one.least <= best * margin(one.chosen)]
        if len(some) <= 1:
            return some
        for one in some:
            if one.doubt and one not in steps:
                steps[one] = one.upcoming(case, calls, len(trials))
        cheap = [one for one in some if one in steps and steps[one].price <= left]
        if not cheap:
            return [one for one in some if not one.out]
        one = min(cheap, key=lambda one: (steps[one].price, one.least))
        step = steps.pop(one)
        budget = Budget(min(step.allowed, left))
        given = budget.left
        # An estimate may be too low by more than its doubt: only what was timed rules others out.
        others = min((each.time for each in some if not each.doubt), default=inf)
        one.step(case, step.size, budget, others * margin(one.chosen))
        left -= given - budget.left
