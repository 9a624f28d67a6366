"""What goes over the network and what is timed ahead of the loop never share a link."""

from collections.abc import Callable, Collection

import pytest

from kernbench.des import EventLoop
from kernbench.hw.claims import Claim, Claims, Use
from kernbench.hw.path import Path
from kernbench.topology import Topology
from kernbench.units import Bandwidth


class Lines:
    """Claims by name, and who was told of company, in order."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._claims = Claims(EventLoop())
        self.told: list[str] = []
        self.free: dict[int, int] = {}  # by link, from when on nobody who is alone uses it
        self.late: set[str] = set()  # names of those whose senders begin later, see `begin`
        self.start = 0  # when whoever takes or begins next comes to the links

    def take(self, name: str, line: str, *pairs: tuple[int, int], **times: int) -> Claim:
        """Claims the links between pairs of SIPs, with a lead and a tail."""

        def repeat() -> tuple[int, Callable[[], None]]:
            return 0, lambda: self.told.append(name)

        node = self._topology.cube_node
        paths = [
            Path(self._topology.route(node(one), node(two)), Bandwidth(10**11), 256)
            for one, two in pairs
        ]
        use = Use(paths, times.get("lead", 0), times.get("tail", 0))
        claim = self._claims.take(use, line, repeat, self.free.get)
        if claim.alone and name not in self.late:
            self._begin(claim, use.links, begun=False)
        return claim

    def _begin(self, claim: Claim, links: Collection[int], *, begun: bool) -> None:
        if self._claims.busy(claim.use, claim.line, links, self.start):
            self._claims.share(claim, begun=begun)
        else:
            self._claims.hold(claim, links)

    def begin(self, claim: Claim, *pairs: tuple[int, int]) -> None:
        """Lets the senders of some pairs begin."""
        node = self._topology.cube_node
        for one, two in pairs:
            links = [link.index for link in self._topology.route(node(one), node(two))]
            self._begin(claim, links, begun=True)

    def free_at(self, time: int, one: int, two: int) -> None:
        """Lets the links between two SIPs be free from a time on."""
        for link in self._topology.sip_route(one, two):
            self.free[link.index] = time

    def drop(self, claim: Claim) -> None:
        """Ends a claim."""
        self._claims.drop(claim)


@pytest.fixture
def lines(topology: Callable[[str], Topology]) -> Lines:
    """Claims on the links of the default machine."""
    return Lines(topology("sip8"))


def test_who_meets_company_tells_those_before_it_in_its_line(lines: Lines) -> None:
    first = lines.take("first", "A", (1, 2))
    other = lines.take("other", "B", (2, 1))
    assert [first.alone, other.alone] == [True, True]
    # In line with the first, and in the way of the other.
    assert not lines.take("second", "A", (1, 2), (2, 1)).alone
    assert lines.told == ["first", "other"]
    assert [first.alone, other.alone] == [False, False]
    assert not lines.take("third", "C", (1, 2)).alone
    assert lines.told == ["first", "other"], "each is told once"


def test_a_line_needs_links_that_are_free_before_the_next_begins(lines: Lines) -> None:
    assert lines.take("first", "A", (0, 1), lead=5, tail=7).alone
    assert lines.take("second", "A", (0, 1), lead=7, tail=3).alone
    assert not lines.told
    assert not lines.take("third", "A", (0, 1), lead=6, tail=3).alone, "the first holds it for 7"
    assert lines.told == ["first", "second"]


def test_a_link_is_free_for_others_once_its_last_message_is_through(lines: Lines) -> None:
    lines.free_at(10, 0, 1)
    first = lines.take("first", "A", (0, 1), (1, 2))
    lines.start = 10
    assert lines.take("second", "B", (0, 1)).alone
    assert first.alone
    lines.start = 9
    assert not lines.take("third", "C", (0, 1)).alone, "the first is on it until 10"
    assert sorted(lines.told) == ["first", "second"]


def test_nobody_is_in_the_way_on_links_whose_time_is_unknown_but_his_own(lines: Lines) -> None:
    lines.take("first", "A", (0, 1), (1, 2))
    lines.start = 10**12
    assert lines.take("second", "B", (2, 3)).alone
    assert not lines.take("third", "C", (1, 2)).alone
    assert lines.told == ["first"]


def test_who_is_alone_gets_links_as_its_senders_begin(lines: Lines) -> None:
    lines.late.add("ring")
    ring = lines.take("ring", "A", (0, 1), (1, 2), (2, 3))
    lines.begin(ring, (0, 1))
    before = lines.take("before", "B", (2, 3))
    assert ring.alone
    assert before.alone
    lines.free_at(5, 2, 3)
    lines.start = 5
    lines.begin(ring, (2, 3))  # the message before is through by then
    assert ring.alone
    lines.free_at(8, 1, 2)
    late = lines.take("late", "C", (1, 2))
    lines.begin(ring, (1, 2))  # while the message is there
    assert [ring.alone, late.alone] == [False, False]
    assert sorted(lines.told) == ["before", "late", "ring"]


def test_what_goes_over_the_network_has_all_its_links_until_it_is_dropped(lines: Lines) -> None:
    lines.late.add("ring")
    ring = lines.take("ring", "A", (0, 1), (1, 2))
    lines.begin(ring, (0, 1))
    assert not lines.take("second", "B", (0, 1)).alone
    assert not lines.take("third", "C", (1, 2)).alone, "on a link whose sender has not begun"
    lines.drop(ring)
    lines.start = 1
    assert lines.take("fourth", "D", (2, 3)).alone
