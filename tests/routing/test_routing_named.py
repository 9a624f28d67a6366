"""Routings by name: the rows of a public benchmark, and a law of popularity."""

import numpy as np
import pytest

from kernbench.routing import (
    Asked,
    RoutingError,
    coefficient_of_variation,
    overload,
    routing_of,
)

PUBLISHED = {
    # Largest over mean, and deviation over mean, for 8 experts: 128 tokens with 2 choices, 512 with
    # 4; README of Megatron-LM's pull request 7488. Its row of W3 (1.281, 0.159) is not what its
    # code draws.
    "W0": ("1.000 0.000", "1.000 0.000"),
    "W1": ("3.312 1.309", "1.781 0.744"),
    "W2": ("3.219 1.272", "1.770 0.747"),
    "W4": ("1.281 0.141", "1.086 0.046"),
    "W5": ("2.156 1.007", "2.000 1.000"),
    "W6": ("3.312 1.319", "1.770 0.742"),
    "W7": ("1.219 0.126", "1.066 0.040"),
}


def _counts(name: str, *, step: int = 0, tokens: int = 128, topk: int = 2) -> np.ndarray:
    return routing_of(name).choices(Asked(step, 0, 0, tokens, 8, topk)).counts


@pytest.mark.parametrize("name", PUBLISHED)
def test_workloads_have_the_published_histograms(name: str) -> None:
    found = [_counts(name), _counts(name, tokens=512, topk=4)]
    assert (
        tuple(f"{overload(n):.3f} {coefficient_of_variation(n):.3f}" for n in found)
        == (PUBLISHED[name])
    )


@pytest.mark.parametrize("name", [*(f"W{number}" for number in range(8)), "balanced", "zipf:1.2"])
def test_no_token_chooses_an_expert_twice(name: str) -> None:
    for step in range(5):
        chosen = np.sort(routing_of(name).choices(Asked(step, 1, 3, 40, 16, 4)).experts, axis=1)
        assert chosen.shape == (40, 4)
        assert (chosen[:, 1:] > chosen[:, :-1]).all()
        assert chosen.min() >= 0
        assert chosen.max() < 16


def test_the_hot_spot_moves_every_third_step_and_the_burst_is_every_fourth() -> None:
    hottest = [int(np.argmax(_counts("W6", step=step))) // 2 for step in range(12)]
    assert hottest == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    burst = [overload(_counts("W7", step=step, tokens=512)) > 1.5 for step in range(8)]
    assert burst == [False, False, False, True] * 2


def test_popularity_falls_as_a_power_of_the_rank() -> None:
    counts = routing_of("zipf:1").choices(Asked(0, 0, 0, 1 << 14, 4, 1)).counts
    shares = counts / counts.sum()
    assert np.allclose(shares, np.array([12, 6, 4, 3]) / 25, atol=0.015)


def test_ranks_and_layers_differ_in_zipf_alone() -> None:
    for name, differ in (("zipf:1", True), ("W1", False)):
        mine, other = (
            routing_of(name).choices(Asked(0, layer, rank, 64, 8, 2)).experts
            for layer, rank in ((0, 0), (1, 2))
        )
        assert (not np.array_equal(mine, other)) == differ


@pytest.mark.parametrize("name", ["zipf:0", "zipf:nan", "zipf:", "W8", "no/such/file"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(RoutingError, match="expected"):
        routing_of(name)


def test_more_choices_than_experts_are_refused() -> None:
    with pytest.raises(RoutingError, match="topk 5 of 4 experts"):
        _counts("W5", topk=5)
