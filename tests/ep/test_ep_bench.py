"""The bench of layers of experts: what it counts is what its formula says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.run_spec import RunSpec
from kernbench.scripts.running import run_once


def _routings(*arguments: str) -> list[dict[str, float]]:
    spec = RunSpec(topology="h200x8", data=False, bench="moe", arguments=arguments)
    outcome = run_once(spec, quiet=True)
    assert outcome.error is None, outcome.error
    document = json.loads(json.dumps(outcome.document))
    found: list[dict[str, float]] = document["results"][0]["routings"]
    assert {row["direction"] for row in document["moe"]} == {"forward", "backward"}
    return found


SMALL = ("--experts", "16", "--hidden", "2048", "--ffn", "1024", "--tokens", "2048", "--topk", "2")


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_what_ranks_send_is_the_formula_and_imbalance_costs(dispatcher: str) -> None:
    rows = []
    for name in ("W0", "W2"):
        (row,) = _routings(*SMALL, "--dispatcher", dispatcher, "--routing", name)
        assert row["sent_bytes"] == row["formula_bytes"]
        rows.append(row)
    even, hot = rows
    assert even["overload"] == 1
    assert hot["overload"] > 3
    for name in ("forward_us", "backward_us", "exposed_us"):
        assert hot[name] > even[name]


def test_the_more_rows_the_busiest_has_the_longer_a_layer_takes(tmp_path: Path) -> None:
    # Tokens of rank 0 choose expert 0 ever more often, instead of one of another rank.
    times = []
    for moved in (0, 100, 300, 1000):
        lines = [{"schema": 1, "experts": 16, "topk": 2, "tokens_per_rank": [2048] * 8}]
        for step in (0, 1):
            for rank in range(8):
                taken = [min(256, max(0, moved - 256 * each)) for each in range(4)]
                counts = [256 + moved, *[256] * 11, *(256 - each for each in reversed(taken))]
                lines.append({"step": step, "layer": 0, "rank": rank, "counts": counts})
        path = tmp_path / f"{moved}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        (row,) = _routings(*SMALL, "--routing", str(path))
        times.append(row["forward_us"])
    assert times == sorted(times)


def test_the_routing_of_the_run_is_the_one_that_is_measured() -> None:
    spec = RunSpec(topology="h200x8", data=False, bench="moe", arguments=SMALL, routing="W5")
    document = run_once(spec, quiet=True).document
    assert document is not None
    assert [row["routing"] for row in document["results"][0]["routings"]] == ["W5"]
    outcome = run_once(replace(spec, arguments=(*SMALL, "--routing", "W1")), quiet=True)
    assert "--routing W1 after --, W5 before it: expected one of them" in str(outcome.error)


def test_flags_that_do_not_fit_are_refused() -> None:
    for arguments, said in (
        (("--experts", "12"), "--experts 12"),
        (("--topk", "40"), "--topk 40: expected at most half of --experts 64"),
        (("--ep", "16"), "16"),
        (("--routing", "W9"), "no routing is called 'W9'"),
    ):
        outcome = run_once(RunSpec(topology="h200x8", data=False, bench="moe", arguments=arguments))
        assert said in str(outcome.error)
