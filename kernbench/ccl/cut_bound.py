"""The least time of a collective, whatever its algorithm: bytes that must cross a cut of the links.

Let a cut divide the machine into two sides, with ranks `X` of the `N` on the near side and at least
one on each. If `D` bytes must go from `X` to the other ranks, and the links from the near side to
the far one carry `C` bytes a second together, the collective takes at least `D / C`: of the cuts
with the same `X`, the min cut says most. `D` follows from what ranks give and take, for buffers of
`S` bytes (all blocks together; of an all-to-all, all blocks that a rank sends):

| operation | `D` |
|---|---|
| all-reduce | `S`: what the ranks of `X` have added up is in no other rank's input |
| reduce | `S` if the root is on the far side: the same, to the root |
| broadcast | `S` if the root is in `X` |
| all-gather | `S |X| / N`: the blocks of `X` |
| reduce-scatter | `S (N - |X|) / N`: of each block of the far side, a partial sum |
| gather | `S |X| / N` if the root is on the far side |
| scatter | `S (N - |X|) / N` if the root is in `X` |
| all-to-all | `S |X| (N - |X|) / N`: a block of `S / N` from each rank of `X` to each other |

An all-reduce whose links add nothing has a second bound. Take `K` parts of the machine with at
least one rank in each, and each rank in one. To add up an element, at least `K - 1` partial sums
must go from one part to another; then at least `K - 1` parts must get the result, which is nowhere
before the last sum is made (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009, for parts of one rank). So `2 (K - 1) S` bytes leave parts, which
takes at least as long as all links that leave a part need together. Parts here: the SIPs, and what
cuts are made of.

No multicast and no sum in a switch is simulated. Which cuts are tried: all, if few nodes are there
(`_ALL`); else each SIP alone, the halves, quarters and so on of the SIPs in their order, slabs of a
grid, and nodes and leaves. Every cut gives a true bound, so further cuts could only raise it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.topology import Topology
from kernbench.units import PS_PER_S

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

_ALL: Final = 14
"""Number of nodes up to which all cuts are tried."""

_PARTS: Final = 16
"""Most parts of equal size, in order of the SIPs, into which a large machine is cut."""

_HALF: Final = 2
"""Ratio to the bound from which on a collective is reported as limited by something else, and of
a time to what takes half of it."""

_SHOWN: Final = 4
"""Number of ranks up to which a report lists them."""


@dataclass(frozen=True, slots=True)
class CutBound:
    """The least time that links leave to an operation.

    Attributes:
        time: Picoseconds.
        nbytes: Bytes that must cross.
        rate: Bytes a second of the links that they cross, together.
        where: Which links these are.
    """

    time: float
    nbytes: float
    rate: float
    where: str

    def __str__(self) -> str:
        return (
            f"{_digits(self.time / 1e6, 4)} us: {_digits(self.nbytes / (1 << 20), 4)} MiB must "
            f"leave {self.where}, over {_digits(self.rate / 1e9, 4)} GB/s"
        )


def _digits(amount: float, digits: int) -> str:
    """Returns an amount with so many digits, and without an exponent where it is large.

    Args:
        amount: Zero or more.
    """
    return f"{amount:.{digits}g}" if amount < 10**digits - 0.5 else f"{amount:,.0f}"


def shortfall(
    bound: CutBound, time: int, least: float, algorithm: str, issued: int = 0
) -> str | None:
    """Returns what limits an operation; None if it gets half of its cut bound or more.

    Args:
        bound: Of its bytes on its ranks.
        time: How long it takes, in picoseconds.
        least: About how long it would take with hardly any bytes, in picoseconds.
        algorithm: Name of its algorithm.
        issued: How long a host takes to issue it, in picoseconds; `time` may hold that, too.
    """
    if time <= _HALF * bound.time:
        return None
    share = f"{100 * bound.time / time:.3g} % of the bound of the links"
    if _HALF * issued >= time:
        host = f"the host, which issues one in {_digits(issued / 1e6, 3)} us"
        return f"limited by {host}: {share}, {bound}"
    if time - issued <= _HALF * least:
        return f"limited by launch and latencies ({_digits(least / 1e6, 3)} us): {share}, {bound}"
    return f"limited by the messages of {algorithm}: {share}, {bound}"


class _Machine:
    """SIPs, switches and routers as numbers, and the links between them.

    The cubes of a SIP are one node, whose own links bound nothing.

    Args:
        topology: The machine.
    """

    def __init__(self, topology: Topology) -> None:
        self.sips: Final = topology.world_size
        numbers: dict[str, int] = {f"sip{sip}": sip for sip in range(self.sips)}
        ends: list[tuple[int, int, int]] = []
        for link in topology.links:
            src, dst = (end.partition(".")[0] for end in (link.src, link.dst))
            if src != dst:
                near, far = (numbers.setdefault(end, len(numbers)) for end in (src, dst))
                ends.append((near, far, link.bandwidth.per_second))
        table = np.array(ends, np.int64).reshape(-1, 3)
        self.nodes: Final = len(numbers)
        self.src: Final = table[:, 0]
        self.dst: Final = table[:, 1]
        self.rates: Final = table[:, 2].astype(np.float64)

    def out_of(self, sides: Bools) -> Floats:
        """Returns the rate of all links that leave each side; shape `[sides, nodes]` in."""
        leaving = sides[:, self.src] & ~sides[:, self.dst]
        rates: Floats = leaving @ self.rates
        return rates

    def with_switches(self, side: Bools) -> Iterator[Bools]:
        """Yields a side of SIPs without other nodes, with those inside it, and with all others."""
        yield side
        inside = side.copy()
        others = np.arange(self.sips, self.nodes)
        neighbours_out = np.zeros(self.nodes, np.bool_)
        neighbours_out[self.dst[~side[self.src] & (self.src < self.sips)]] = True
        inside[others] = ~neighbours_out[others] & np.isin(others, self.dst[side[self.src]])
        yield inside
        every = side.copy()
        every[others] = True
        yield every


def _groups(topology: Topology) -> Iterator[list[list[int]]]:
    """Yields divisions of the SIPs of a large machine; each is worth a cut round each part."""
    count, system = topology.world_size, topology.machine.system
    parts = 2
    while parts <= min(_PARTS, count // 2):
        size = -(-count // parts)
        yield [list(range(low, min(low + size, count))) for low in range(0, count, size)]
        parts *= 2
    extents, stride = topology.grid(range(count)), 1
    for extent in extents:
        half = max(1, extent // 2)
        slabs: list[list[int]] = [[], []]
        for sip in range(count):
            slabs[sip // stride % extent >= half].append(sip)
        yield [slab for slab in slabs if slab]
        stride *= extent
    network = system.sips.network
    for group in (network.node, network.leaf):
        if group is not None:
            yield [list(range(low, low + group.size)) for low in range(0, count, group.size)]


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The cuts that are tried on a machine, and the rates of links in bytes a second.

    Attributes:
        sides: Near side of each cut, shape `[cuts, nodes]`.
        rates: Rate of the links that leave each of them.
        parts: Divisions of the SIPs: the number of each SIP's part, with the rate of the links that
            leave each part.
        leaving: Rate of the links that leave each node.
        reaching: Rate of the links that reach each node.
    """

    sides: Bools
    rates: Floats
    parts: tuple[tuple[Ints, Floats], ...]
    leaving: Floats
    reaching: Floats


@cached("ccl.cuts")
def _cuts_of(topology: Topology) -> _Cuts:
    machine = _Machine(topology)
    found, divisions = [], []
    for division in _groups(topology):
        part_of, rates = np.zeros(machine.sips, np.int64), np.zeros(len(division))
        for number, part in enumerate(division):
            part_of[part] = number
            side = np.zeros(machine.nodes, np.bool_)
            side[part] = True
            near = np.array(list(machine.with_switches(side)))
            rates[number] = machine.out_of(near).min()
            found += [near, ~near]
        divisions.append((part_of, rates))
    if machine.nodes <= _ALL:
        masks = np.arange(1, (1 << machine.nodes) - 1)
        found = [(masks[:, None] >> np.arange(machine.nodes) & 1).astype(np.bool_)]
    sides = np.concatenate(found) if found else np.zeros((0, machine.nodes), np.bool_)
    return _Cuts(
        sides,
        machine.out_of(sides),
        tuple(divisions),
        np.bincount(machine.src, machine.rates, machine.nodes).astype(np.float64),
        np.bincount(machine.dst, machine.rates, machine.nodes).astype(np.float64),
    )


def _crossing(operation: str, near: Any, far: Any, root: Bools) -> Floats:
    """Returns the part of the buffer that must cross; see the table above.

    Args:
        operation: A key of `OPERATIONS`.
        near: Ranks on the near side of each cut, at least one.
        far: Ranks on its far side, at least one.
        root: Whether the root is on the near side.
    """
    near, far = near.astype(np.float64), far.astype(np.float64)
    n = near + far
    ours: Floats = root.astype(np.float64)
    parts: dict[str, Floats] = {
        "all_reduce": np.ones(len(near)),
        "reduce": 1 - ours,
        "broadcast": ours,
        "send_recv": ours,
        "all_gather": near / n,
        "reduce_scatter": far / n,
        "gather": (1 - ours) * near / n,
        "scatter": ours * far / n,
        "all_to_all": near * far / n,
    }
    return parts[operation]


def cut_bound(
    topology: Topology, operation: str, nbytes: int, sips: Sequence[int], root: int = 0
) -> CutBound | None:
    """Returns the least time that the links leave to an operation.

    Args:
        operation: A key of `OPERATIONS`.
        nbytes: Size of all blocks of the buffer together.
        sips: Device of each rank of the group.
        root: Root inside the group; of operations without one, any rank.

    Returns:
        The bound; None if nothing must cross a link.
    """
    if len(set(sips)) < 2 or not nbytes:
        return None
    cuts, ranks, n = _cuts_of(topology), np.array(sips), len(sips)
    near = cuts.sides[:, ranks].sum(axis=1)
    cut = (near > 0) & (near < n) & (cuts.rates > 0)
    sides, near = cuts.sides[cut], near[cut]
    moved = nbytes * _crossing(operation, near, n - near, sides[:, sips[root]])
    found = [*_worst(moved, cuts.rates[cut], near, lambda which: _named(sides[which, ranks]))]
    one, is_root = np.ones(n), np.arange(n) == root
    moved = nbytes * _crossing(operation, one, n - one, is_root)
    found += _worst(moved, cuts.leaving[ranks], one, lambda which: f"rank {which}")
    moved = nbytes * _crossing(operation, n - one, one, ~is_root)
    found += _worst(moved, cuts.reaching[ranks], one, lambda which: f"all but rank {which}")
    if operation == "all_reduce":
        found.append(_all_parts(n, nbytes, cuts.leaving[ranks], "ranks"))
        for part_of, rates in cuts.parts:
            used = np.unique(part_of[ranks])
            found.append(
                _all_parts(len(used), nbytes, rates[used], f"groups of {n // len(used)} ranks")
            )
    return max(found, key=lambda bound: bound.time)


def _worst(
    moved: Floats, rates: Floats, near: Floats, name: Callable[[int], str]
) -> Iterator[CutBound]:
    """Yields the bound of the cut that takes longest, if there is a cut.

    Args:
        moved: Bytes that must cross each cut.
        rates: Rate of the links of each cut, in bytes a second.
        near: Ranks on the near side; of equal bounds, the one with the fewest is taken.
        name: Says which ranks are on the near side of a cut.
    """
    if len(moved):
        times = PS_PER_S * moved / rates
        which = int(np.lexsort((near, -times))[0])
        yield CutBound(float(times[which]), float(moved[which]), float(rates[which]), name(which))


def _all_parts(parts: int, nbytes: int, rates: Floats, what: str) -> CutBound:
    """Returns the second bound of an all-reduce, see above."""
    moved, rate = 2.0 * (parts - 1) * nbytes, float(rates.sum())
    return CutBound(PS_PER_S * moved / rate, moved, rate, f"the {parts} {what}, added up")


def _named(near: Bools) -> str:
    ranks = np.flatnonzero(near)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= _SHOWN:
        return f"ranks {', '.join(map(str, ranks))}"
    return f"{len(ranks)} ranks, {ranks[0]} and others"
