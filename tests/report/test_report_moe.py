"""How even ranks that share experts were loaded, and who waited for whom."""

from typing import Any

import pytest

from kernbench.report.moe import LoadRow, load_rows
from kernbench.routing import Load
from kernbench.sim_engine.op_log import OpLog, Record, Together, TogetherArgs


def _load(rank: int, by_expert: tuple[int, ...], **changed: Any) -> Load:
    usual = Load(
        rank, 3, 0, "forward", 0, (0, 1), sum(by_expert), by_expert, dropped=0, padded=0, sent=8
    )
    return usual._replace(**changed)


def test_the_busiest_rank_is_compared_with_the_mean_of_each_call() -> None:
    log = OpLog("summary")
    log.loads = [
        _load(0, (3, 0), dropped=1),
        _load(1, (1, 0), sent=24),
        _load(1, (2, 2), step=1),
        _load(0, (2, 2), step=1, dropped=2),
    ]
    # Ranks have 3 and 1 rows, then 4 and 4: 3 / 2 and 1. Experts have 3, 0, 1, 0, whose mean is 1
    # and whose squares of deviations are 4, 1, 0, 1.
    (row,) = load_rows(log)
    assert row.expert_cv == pytest.approx(1.5**0.5 / 2)
    expected = LoadRow(3, "forward", 2, 1.25, 1.5, row.expert_cv, 3, 0, 24, None, None)
    assert row == expected


def test_calls_without_a_number_are_matched_in_their_order() -> None:
    log = OpLog("summary")
    log.loads = [
        _load(rank, (), layer=-1, step=-1, direction="exchange", rows=rows, dropped=None)
        for rank, rows in ((0, 2), (0, 0), (1, 2), (1, 4))
    ]
    (row,) = load_rows(log)
    assert (row.calls, row.overload, row.most_overload) == (2, 1.5, 2.0)
    assert row.expert_cv is None
    assert row.dropped is None


def test_a_rank_waits_in_an_exchange_for_the_last_one() -> None:
    log = OpLog("full")
    log.loads = [
        _load(rank, (1,), direction=way) for rank in (0, 1) for way in ("forward", "backward")
    ]

    def met(rank: int, start: int, sequence: int, phase: str, back: bool = False) -> Record:
        together = Together("all_to_all_single", (0, 1), "", 1, 1, back)
        args = TogetherArgs({"group": "EP", "sequence": sequence}, together)
        ranges = ("step", f"moe 3 {phase}")
        return Record(
            "all_to_all_single",
            "collective",
            rank,
            "stream 0",
            0,
            start,
            90,
            args=args,
            ranges=ranges,
        )

    log.records = [
        *(met(0, 10, 1, "dispatch"), met(1, 16, 1, "dispatch")),
        *(met(0, 40, 2, "combine"), met(1, 20, 2, "combine")),
        *(met(0, 60, 3, "combine"), met(1, 64, 3, "combine")),
        *(met(0, 80, 4, "combine", True), met(1, 82, 4, "combine", True)),
    ]
    # Rank 0 waits 6 and 4, rank 1 waits 20: by phase, over two ranks. Going back, rank 0 waits 2.
    waits = {row.direction: (row.wait_dispatch_ps, row.wait_combine_ps) for row in load_rows(log)}
    assert waits == {"forward": (3, 12), "backward": (0, 1)}
