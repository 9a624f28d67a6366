"""Flows that share ports as a fluid: max-min fair rates, exact in integers.

Progressive filling after Bertsekas and Gallager, "Data Networks" (2nd ed., 1992), section 6.5.2:
the most contended port fixes the rate of its flows; the rule is applied again to the other flows.
The rate and the remaining bytes of a flow are fractions, kept as two integers each, because
`fractions.Fraction` costs ten times the arithmetic.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from operator import attrgetter
from typing import Any, Final

from kernbench.caches import Table
from kernbench.des import EventLoop, Owner, order
from kernbench.units import PS_PER_S, Rate

_KEPT: Final = 64
"""Most flows of a group whose rates are kept; larger groups seldom come again."""

_FAR_OFF: Final = 1 << 62

_by_way: Final = attrgetter("way")


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer.

    Attributes:
        key: Orders flows that end at the same time.
        way: Number of the ports and the highest rate together.
        ports: Indices of the links that the flow passes.
        cap: Highest rate of the sender, in bytes a second.
        left: Data not yet through, in bytes times `PS_PER_S * scale`.
        scale: Denominator of `left`.
        rate: Rate of the flow, in bytes a second times `per`.
        per: Denominator of `rate`.
        updated: Time for which `left` holds, in picoseconds: when the rate changed last.
        ends: When the flow ends at its present rate, in picoseconds; far off while it has no rate.
        finished: Called with the end of the flow, in picoseconds.
        group: Flows that share ports with this flow, directly or through others.
    """

    key: tuple[int, int]
    way: int
    ports: tuple[int, ...]
    cap: int
    left: int
    updated: int
    finished: Callable[[int], None]
    group: "_Group"
    scale: int = 1
    rate: int = 0
    per: int = 1
    ends: int = _FAR_OFF

    def go_on(self, now: int, rate: int, per: int) -> None:
        """Gives the flow a rate from now on.

        With the same rate it ends when it would have ended: the end is rounded up, and the time
        that has passed is a whole number of picoseconds.

        Args:
            now: The time, in picoseconds.
            rate: Bytes a second, times `per`.
            per: Denominator of the rate.
        """
        if rate == self.rate and per == self.per:
            return
        elapsed = now - self.updated
        self.updated = now
        if self.per != self.scale:
            # Counts of flows are small, so the common denominator stays so too.
            common = self.per * self.scale // gcd(self.per, self.scale)
            self.left *= common // self.scale
            self.scale = common
        self.left -= self.rate * (self.scale // self.per) * elapsed
        self.rate, self.per = rate, per
        self.ends = now - (-self.left * per // (rate * self.scale))

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self.updated += by
        self.ends += by

    def state(self, now: int) -> tuple[Any, ...]:
        """Returns all that becomes of the flow depends on; times are counted from `now`."""
        amounts = self.cap, self.left, self.scale, self.rate, self.per
        return (*amounts, self.updated - now, self.ports)


_Part = Sequence[tuple[int, int, int]]
"""Flows that share ports: the place of each in a list, the rate, and the rate's denominator."""


@dataclass(slots=True, eq=False)
class _Group:
    """Flows that share ports, directly or through others, and no port with any other flow.

    A group has one future event: its next end, or its solution while the group waits.

    Attributes:
        flows: The flows.
        waiting: Whether the rates are still to be found, at the end of this very instant.
        loose: Whether flows ended since the rates were found; the rest may share no ports any more.
        replaced: Whether the flows have moved to other groups; the group's event then does nothing.
    """

    flows: list[Flow]
    waiting: bool = False
    loose: bool = False
    replaced: bool = False


class Fluid:
    """All flows through the ports of a machine.

    The flows of one group are solved together, once for all that start and end at an instant;
    flows of other groups are neither read nor changed, so that groups may be at different times.

    Args:
        loop: The clock.
        owner: Orders the ends of flows among other events at equal times.
        capacity: Bandwidth of each port, in bytes a second, by link index.
    """

    def __init__(self, loop: EventLoop, owner: Owner, capacity: dict[int, Rate]) -> None:
        self._loop: Final = loop
        self._owner: Final = owner
        self._last: Final = loop.owner(order.SOLVE)
        self._capacity: Final = {port: rate.per_second for port, rate in capacity.items()}
        self._users: Final[dict[int, dict[Flow, None]]] = {port: {} for port in capacity}
        self._ended: Final[dict[int, list[Flow]]] = {}
        self._ways: Final[dict[tuple[tuple[int, ...], int], int]] = {}
        self._kept: Final[Table[tuple[int, ...], list[_Part]]] = Table("hw.rates")

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
            ports: Indices of the links that the flow passes.
            cap: Highest rate of the sender.
            nbytes: Size of the flow in bytes.
            finished: Called by the event loop with the end of the flow, in picoseconds.
        """
        now = self._loop.now
        owner.sequence += 1
        key = owner.key, owner.sequence
        group = _Group([])
        way = tuple(ports), cap.per_second
        number = self._ways.setdefault(way, len(self._ways))
        flow = Flow(key, number, *way, nbytes * PS_PER_S, now, finished, group)
        if nbytes == 0:
            self._end(flow, now)
            return
        group.flows.append(flow)
        for port in flow.ports:
            users = self._users[port]
            if users:
                # All users of a port are in one group, which may be the new flow's own by now.
                group = _joined(group, next(iter(users)).group)
            users[flow] = None
        if len(group.flows) == 1:
            self._run_alone(group)
        elif not group.waiting:
            self._wait(group)

    def flows_of(self, group: _Group | None = None) -> list[Flow] | None:
        """Returns the flows that a queued call is about, in order; None while rates are unknown.

        Args:
            group: Argument of the call.
        """
        if group is None or group.waiting:
            return None
        return [] if group.replaced else sorted(group.flows, key=lambda flow: flow.key)

    def _wait(self, group: _Group) -> None:
        group.waiting = True
        self._loop.at(self._loop.now, self._last, self._solve, group)

    def _run_alone(self, group: _Group) -> None:
        (flow,) = group.flows
        rate = flow.cap
        for port in flow.ports:
            capacity = self._capacity[port]
            rate = capacity if capacity < rate else rate
        flow.go_on(self._loop.now, rate, 1)
        self._loop.at(flow.ends, self._owner, self._next_end, group)

    def _next_end(self, group: _Group) -> None:
        if group.replaced:
            return
        self._take_out(group)
        if group.flows:
            self._wait(group)

    def _take_out(self, group: _Group) -> None:
        """Takes finished flows out of a group."""
        now = self._loop.now
        for flow in group.flows:
            if flow.ends <= now:
                group.loose = True
                for port in flow.ports:
                    self._users[port].pop(flow, None)  # a way may name a port twice
                self._end(flow, now)
        if group.loose:
            group.flows = [flow for flow in group.flows if flow.ends > now]

    def _end(self, flow: Flow, now: int) -> None:
        ended = self._ended.get(now)
        if ended is None:
            # Every other flow that ends at this instant has an earlier event.
            ended = self._ended[now] = []
            self._loop.at(now, self._owner, self._call)
        ended.append(flow)

    def _call(self) -> None:
        now = self._loop.now
        ended = self._ended.pop(now)
        ended.sort(key=lambda flow: flow.key)
        for flow in ended:
            flow.finished(now)

    def _solve(self, group: _Group) -> None:
        """Finds the rates and the next end of a group, or of each part if it fell apart."""
        if group.replaced:
            return
        self._take_out(group)
        group.waiting = False
        flows, now = group.flows, self._loop.now
        self._loop.spend(len(flows))
        parts = self._shared(group)
        group.replaced = True
        for part in parts:
            own = _Group([])
            for place, rate, per in part:
                flow = flows[place]
                flow.group = own
                flow.go_on(now, rate, per)
                own.flows.append(flow)
            end = min([flow.ends for flow in own.flows])
            self._loop.at(end, self._owner, self._next_end, own)

    def _shared(self, group: _Group) -> list[_Part]:
        """Returns the rates of the flows of a group by parts that still share ports.

        They depend on nothing but the ways of the flows, which come again and again while senders
        send one message after the other. The flows of the group come into the order of their ways.
        """
        flows = group.flows
        if len(flows) > _KEPT:
            return self._found(group)
        flows.sort(key=_by_way)
        key = tuple([flow.way for flow in flows])
        parts = self._kept.get(key)
        if parts is None:
            parts = self._found(group)
            self._kept.keep(key, parts)
        return parts

    def _found(self, group: _Group) -> list[_Part]:
        """Finds what `_shared` returns."""
        numbers = {id(flow): number for number, flow in enumerate(group.flows)}
        parts = self._parts(group) if group.loose else [group]
        return [
            [(numbers[id(flow)], *rate) for flow, rate in self._rates(part.flows).items()]
            for part in parts
        ]

    def _parts(self, group: _Group) -> list[_Group]:
        """Splits a group into groups whose flows still share ports."""
        parts = []
        for first in group.flows:
            if first.group is not group:
                continue
            part = first.group = _Group([first])
            seen: set[int] = set()
            for flow in part.flows:  # grows while it is walked
                for port in flow.ports:
                    if port not in seen:
                        seen.add(port)
                        for other in self._users[port]:
                            if other.group is not part:
                                other.group = part
                                part.flows.append(other)
            parts.append(part)
        return parts

    def _rates(self, flows: Sequence[Flow]) -> dict[Flow, tuple[int, int]]:
        """Returns the max-min fair rate of each flow of a group, with its denominator."""
        rates: dict[Flow, tuple[int, int]] = {}
        spare: dict[int, int] = {}  # of each port, times `per`
        count: dict[int, int] = {}  # of flows on it without a rate
        for flow in flows:
            for port in flow.ports:
                spare[port] = self._capacity[port]
                count[port] = count.get(port, 0) + 1
        per = 1
        by_cap = sorted(flows, key=lambda flow: flow.cap)
        place = 0
        while len(rates) < len(flows):
            while by_cap[place] in rates:
                place += 1
            # The share is a fraction, least / users; a lowest cap below it comes first.
            least, users, tightest = by_cap[place].cap * per, 1, list[int]()
            for port, flows_here in count.items():
                difference = spare[port] * users - least * flows_here
                if difference < 0:
                    least, users, tightest = spare[port], flows_here, [port]
                elif difference == 0 and flows_here:
                    tightest.append(port)
            if least % users:
                factor = users // gcd(least, users)
                per *= factor
                least *= factor
                for port in spare:
                    spare[port] *= factor
            rate = least // users
            fixed = [flow for port in tightest for flow in self._users[port]]
            while place < len(by_cap) and by_cap[place].cap * per == rate:
                fixed.append(by_cap[place])
                place += 1
            for flow in fixed:
                if flow in rates:
                    continue
                common = gcd(rate, per)
                rates[flow] = rate // common, per // common
                for port in flow.ports:
                    spare[port] -= rate
                    count[port] -= 1
        return rates


def _joined(group: _Group, other: _Group) -> _Group:
    """Joins the group of a new flow and the group of a flow on the same port.

    The event of a waiting group is at this instant already, and a new group has no event. The end
    event of a running group lapses, because the joined group is solved again.
    """
    if group is other:
        return group
    kept, gone = (other, group) if other.waiting and not group.waiting else (group, other)
    gone.replaced = True
    kept.loose |= gone.loose
    kept.flows += gone.flows
    for flow in gone.flows:
        flow.group = kept
    return kept
