"""What goes over the network and what is timed ahead of the loop never share a link."""

from collections.abc import Callable

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

    def take(self, name: str, line: str, *pairs: tuple[int, int], **times: int) -> Claim:
        """Claims the links between pairs of SIPs, with a lead and a tail."""

        def repeat() -> tuple[int, Callable[[], None]]:
            return 0, lambda: self.told.append(name)

        node = self._topology.cube_node
        paths = [
            Path(self._topology.route(node(one), node(two)), Bandwidth(10**11), 256)
            for one, two in pairs
        ]
        return self._claims.take(Use(paths, **times), line, repeat)


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
