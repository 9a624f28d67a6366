"""Flows that share the ports of a switch as a fluid: max-min fair rates, exact in integers.

Progressive filling after Bertsekas and Gallager, "Data Networks" (2nd ed., 1992), section 6.5.2:
the most contended port fixes the rate of its flows, and so on with what is left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kernbench.des import EventLoop, Owner
from kernbench.units import PS_PER_S, Rate


def _per_ps(rate: Rate) -> Fraction:
    return Fraction(rate.per_second, PS_PER_S)


@dataclass(slots=True, eq=False)
class _Flow:
    ports: tuple[int, ...]
    cap: Fraction
    left: Fraction
    updated: int
    finished: Callable[[int], None]
    rate: Fraction = Fraction(0)


class Fluid:
    """All flows through the ports of one switch.

    Args:
        loop: The clock.
        owner: Orders its events at equal times.
        capacity: Bandwidth of each port, by link index.
    """

    def __init__(self, loop: EventLoop, owner: Owner, capacity: dict[int, Rate]) -> None:
        self._loop: Final = loop
        self._owner: Final = owner
        self._capacity: Final = {port: _per_ps(rate) for port, rate in capacity.items()}
        self._flows: dict[tuple[int, int], _Flow] = {}
        self._version = 0

    def start(
        self,
        owner: Owner,
        ports: Iterable[int],
        cap: Rate,
        nbytes: int,
        finished: Callable[[int], None],
    ) -> None:
        """Starts a flow now and calls `finished(time)` when its last byte is through.

        Args:
            owner: The sender; orders flows that end at the same time.
            ports: Link indices that it passes.
            cap: The most that the sender injects.
            nbytes: Size.
            finished: Called in the hub.
        """
        now = self._loop.now
        owner.sequence += 1
        flow = _Flow(tuple(ports), _per_ps(cap), Fraction(nbytes), now, finished)
        self._flows[owner.key, owner.sequence] = flow
        self._solve_at(now)

    def _solve_at(self, time: int) -> None:
        # Only the latest request counts: all starts and ends of an instant share one solution.
        self._version += 1
        self._loop.at(time, self._owner, self._solve, self._version)

    def _solve(self, version: int) -> None:
        if version != self._version:
            return
        now = self._loop.now
        ended = []
        for key in sorted(self._flows):
            flow = self._flows[key]
            flow.left -= flow.rate * (now - flow.updated)
            flow.updated = now
            if flow.left <= 0:
                ended.append(self._flows.pop(key))
        if self._flows:
            self._share()
            self._solve_at(min(now + -((-flow.left) // flow.rate) for flow in self._flows.values()))
        for flow in ended:
            flow.finished(now)

    def _share(self) -> None:
        unfixed = dict(self._flows)
        left = dict(self._capacity)
        while unfixed:
            users: dict[int, int] = {}
            for flow in unfixed.values():
                for port in flow.ports:
                    users[port] = users.get(port, 0) + 1
            share = min(left[port] / count for port, count in users.items())
            tightest = {port for port, count in users.items() if left[port] / count == share}
            lowest_cap = min(flow.cap for flow in unfixed.values())
            rate = min(share, lowest_cap)
            for key, flow in list(unfixed.items()):
                if flow.cap == rate or (rate == share and not tightest.isdisjoint(flow.ports)):
                    flow.rate = rate
                    for port in flow.ports:
                        left[port] -= rate
                    del unfixed[key]
