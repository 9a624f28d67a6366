"""Long messages between two ranks: timed once for each pattern of starts, and nobody can tell."""

from collections.abc import Callable
from typing import Any

import pytest
from ccl_operations import even
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ccl_cycles import NEVER, Log, looking

from kernbench import caches
from kernbench.ccl.channel import ChannelPlan
from kernbench.ccl.replay import Replay
from kernbench.topology import Topology

SLOTS, PIECE = 3, 128
QUEUE = ["defaults.slot_size=512 B", f"defaults.n_slots={SLOTS}"]
"""A piece has 128 elements."""


@pytest.fixture(scope="module")
def switch(make_topology: Callable[..., Topology]) -> Topology:
    return make_topology(4, {"kind": "switch"})


def send(log: Log, sender: int, receiver: int, pieces: int, starts: list[int]) -> None:
    case = even("broadcast", 2, pieces * PIECE)
    log.issue("direct", case, *QUEUE, sips=[sender, receiver], starts=starts)


@settings(max_examples=examples(12), deadline=None)
@given(
    pieces=st.sampled_from([1, SLOTS, SLOTS + 1, 40, 41]),
    skews=st.lists(st.integers(-9_000_000, 9_000_000), min_size=1, max_size=3),
    company=st.none() | st.integers(0, 50_000_000),
    record=st.booleans(),
)
def test_messages_timed_at_once_are_those_of_a_replay(
    switch: Topology, pieces: int, skews: list[int], company: int | None, record: bool
) -> None:
    def outcome(*, gathers: bool, shadow: bool = False) -> Any:
        caches.clear()
        with looking(8 if gathers else NEVER), pytest.MonkeyPatch.context() as patch:
            if not gathers:
                patch.setattr(ChannelPlan, "gathers", property(lambda self: self.in_lanes))
            log = Log(switch, record=record, shadow=shadow)
            for number, skew in enumerate(skews):
                begin = 10_000_000 + number * 40_000_000
                send(log, 0, 1, pieces, [begin, begin + skew])
            if company is not None:
                send(log, 2, 1, 20, [company, company])
            return log.run()

    expected = outcome(gathers=False)
    assert outcome(gathers=True) == expected
    assert outcome(gathers=True, shadow=True) == expected


@pytest.mark.parametrize(("pieces", "replays"), [(SLOTS, 5), (SLOTS + 1, 1)])
def test_a_long_message_is_replayed_once_for_each_pattern_of_starts(
    switch: Topology, monkeypatch: pytest.MonkeyPatch, pieces: int, replays: int
) -> None:
    caches.clear()
    starts: list[int] = []
    start = Replay.start

    def counted(self: Replay, rank: int, time: int) -> None:
        starts.append(rank)
        start(self, rank, time)

    monkeypatch.setattr(Replay, "start", counted)
    log = Log(switch, record=False)
    for number in range(5):
        begin = number * 40_000_000
        send(log, 0, 1, pieces, [begin, begin + 1000])
    log.run()
    assert sorted(starts) == [0] * replays + [1] * replays
