"""Ranks that begin late, with which others go round a ring in step, are timed as each alone."""

from dataclasses import replace
from typing import Any

import pytest
from ccl_machine import shipped_algorithm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_ccl_at_once import RING, SWITCH, TORUS, _machine, _prepared

from kernbench.ccl import lanes
from kernbench.ccl.channel import _replayed, together
from kernbench.ccl.config import Chosen

MACHINES = {
    "ring": (*RING, "system.sips.count=40"),
    "switch": (*SWITCH, "system.sips.count=40"),
    "torus": (*TORUS, "system.sips.count=30", "system.sips.network.shape=[5, 6]"),
    "another port": (*RING, "system.sips.changed=[{which: [3], link: {latency: 300 ns}}]"),
    "another engine": (*RING, "system.sips.changed=[{which: [3], sip: {pe: {issue: 30 ns}}}]"),
}


def _chosen(machine: str, slots: int, slot: int) -> Chosen:
    chosen = shipped_algorithm("ring")
    if machine == "torus":
        chosen = shipped_algorithm("dimension_wise", "algorithms.dimension_wise.channels=1")
    return replace(chosen, queue=replace(chosen.queue, n_slots=slots, slot_size=slot))


@settings(max_examples=60)
@given(
    st.sampled_from(list(MACHINES)),
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
    st.dictionaries(st.integers(0, 11), st.integers(0, 3_000_000), max_size=3),
    st.integers(1, 60).map(lambda number: 64 * number),
    st.integers(0, 30),
    st.integers(1, 4),
    st.sampled_from([512, 4096]),
)
def test_late_ranks_take_what_each_takes(
    machine: str,
    operation: str,
    late: dict[int, int],
    chunk: int,
    more: int,
    slots: int,
    slot: int,
) -> None:
    on = _machine(*MACHINES[machine])
    ranks = on.world_size
    count = chunk * (ranks if operation == "all_reduce" else 1) + more
    (channel,) = _prepared(on, _chosen(machine, slots, slot), count, operation).channels
    assume(channel.in_lanes)
    starts = [late.get(rank, 0) for rank in range(ranks)]

    assert together(channel, tuple(starts), False)[0] == _replayed(channel, starts, None)[0]


@pytest.mark.parametrize("machine", ["ring", "switch"])
def test_what_goes_round_a_ring_is_not_timed_step_by_step(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step takes 100 ns less where nothing is waited for, so a rank in some 40 is late at once.
    base = {"ring": RING, "switch": SWITCH}[machine]
    on, taken = _machine(*base, "system.sips.count=400"), list[bool]()
    (channel,) = _prepared(on, shipped_algorithm("ring"), 16 * 400).channels
    step = lanes._Lanes.step

    def counted(self: Any, send: Any, receive: Any, reduce: bool) -> None:
        taken.append(reduce)
        step(self, send, receive, reduce)

    monkeypatch.setattr(lanes._Lanes, "step", counted)
    starts = [0] * 400
    starts[5] = 4_000_000

    ends, _ = together(channel, tuple(starts), False)

    assert len(taken) < 200 < 2 * 399
    assert len(set(ends)) > 20
