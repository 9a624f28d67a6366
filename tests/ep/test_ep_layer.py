"""A layer on some ranks is the layer on one, forward and backward."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from ep_cases import EXPERTS, HIDDEN, TOKENS, WIDTH, best, both_ways, dense, on_ranks, tokens_of

import kernbench.torch as torch
from kernbench import tp
from kernbench.ep import MoELayer
from kernbench.ep.moe_utils import topk_routing_with_score_function as route
from kernbench.routing import Asked, routing_of
from kernbench.testing import Kernbench
from kernbench.torch.utils.checkpoint import checkpoint

Found = list[dict[str, Any]]


def _whole(found: Found, etp: int) -> tuple[Any, Any]:
    """Returns the weights of all experts, of ranks that hold parts of them."""
    first, second = [], []
    for start in range(0, len(found), etp):
        parts = found[start : start + etp]
        halves = [np.split(each["w1"], 2, axis=2) for each in parts]
        first.append(np.concatenate([half[side] for side in (0, 1) for half in halves], axis=2))
        second.append(np.concatenate([each["w2"] for each in parts], axis=1))
    return np.concatenate(first), np.concatenate(second)


def _grads(found: Found) -> Found:
    return [{"w1": each["d1"], "w2": each["d2"]} for each in found]


def _check(
    kernbench: Kernbench,
    found: Found,
    tokens: Sequence[int],
    weigh: Callable[[torch.Tensor], torch.Tensor] = best,
    etp: int = 1,
) -> None:
    w1, w2 = _whole(found, etp)
    expected = dense(kernbench.context("sip8"), found[0]["gate"], w1, w2, tokens, weigh)
    d1, d2 = _whole(_grads(found), etp)
    mine = {
        "out": np.concatenate([each["out"] for each in found]),
        "dx": np.concatenate([each["dx"] for each in found]),
        "d1": d1,
        "d2": d2,
        # Each rank has the part of its own tokens, which data parallelism sums.
        "router": sum(each["router"] for each in found),
    }
    for name, values in mine.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("grouped", [True, False])
def test_unequal_ranks_are_one_dense_layer_both_ways(kernbench: Kernbench, grouped: bool) -> None:
    found = on_ranks(kernbench.context("sip8"), 4, both_ways(TOKENS), moe_grouped_gemm=grouped)
    assert [each["w1"].shape for each in found] == [(EXPERTS // 4, HIDDEN, 2 * WIDTH)] * 4
    _check(kernbench, found, TOKENS)


@pytest.mark.parametrize("kind", ["alltoall", "allgather"])
def test_a_fused_permutation_is_the_same_and_moves_each_row_once(
    kernbench: Kernbench, kind: str
) -> None:
    tokens = [4] * 4 if kind == "allgather" else TOKENS
    fields: dict[str, Any] = {"moe_token_dispatcher_type": kind, "moe_permute_fusion": True}
    ctx = kernbench.context("sip8")
    ctx.engine.op_log.keep_records()
    found = on_ranks(ctx, 4, both_ways(tokens), **fields)
    _check(kernbench, found, tokens)
    kernels = Counter(each.name for each in ctx.engine.op_log.records if each.rank == 0)
    # There and back, forward and backward.
    assert kernels["moe::permute"] == kernels["moe::unpermute"] == 2
    assert not kernels["aten::index_select"] + kernels["aten::index_add_"]


@pytest.mark.parametrize(("ranks", "etp"), [(1, 1), (2, 1), (2, 2), (4, 2), (8, 1), (8, 2)])
@pytest.mark.parametrize("kind", ["alltoall", "allgather"])
def test_dispatchers_are_one_dense_layer_at_any_layout(
    kernbench: Kernbench, kind: str, ranks: int, etp: int
) -> None:
    tokens = [4] * ranks if kind == "allgather" else [(3 * rank) % 5 for rank in range(ranks)]
    found = on_ranks(
        kernbench.context("sip8"), ranks, both_ways(tokens), etp=etp, moe_token_dispatcher_type=kind
    )
    _check(kernbench, found, tokens, etp=etp)


def test_weights_do_not_depend_on_the_layout(kernbench: Kernbench) -> None:
    layouts = [(1, 1), (4, 1), (4, 2)]
    found = [
        _whole(on_ranks(kernbench.context("sip8"), ranks, both_ways([1] * ranks), etp=etp), etp)
        for ranks, etp in layouts
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other[0], found[0][0])
        np.testing.assert_array_equal(other[1], found[0][1])


def _sigmoids(logits: torch.Tensor) -> torch.Tensor:
    kept = best(logits, 3).detach() > 0
    scores = torch.sigmoid(logits) * kept.to(logits.dtype)
    weights: torch.Tensor = 2.5 * scores / (scores.sum(-1, keepdim=True) + 1e-20)
    return weights


def _all_then_best(logits: torch.Tensor) -> torch.Tensor:
    kept = best(logits, 3).detach() > 0
    return torch.softmax(logits, -1) * kept.to(logits.dtype)


@pytest.mark.parametrize(
    ("weigh", "fields"),
    [
        (
            _sigmoids,
            {"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5},
        ),
        (_all_then_best, {"moe_router_pre_softmax": True}),
    ],
    ids=["sigmoid", "pre_softmax"],
)
def test_score_functions_are_their_formulas(
    kernbench: Kernbench, weigh: Callable[[torch.Tensor], torch.Tensor], fields: dict[str, Any]
) -> None:
    work = both_ways(TOKENS)
    found = on_ranks(
        kernbench.context("sip8"), 4, work, moe_router_topk=3, moe_router_dtype="fp64", **fields
    )
    _check(kernbench, found, TOKENS, weigh)


def test_the_best_groups_are_chosen_first(kernbench: Kernbench) -> None:
    # Groups of two: (1, 2), (0, 5), (4, 4.5), (3, 3). With one expert of each of two groups, a
    # group is as good as its largest: 5 and 4.5.
    scores = [1.0, 2.0, 0.0, 5.0, 4.0, 4.5, 3.0, 3.0]
    with kernbench.context("sip8"):
        _, chosen = route(torch.tensor([scores], device="cuda"), 2, False, 4, 2)
        assert chosen.cpu()[0].nonzero().reshape(-1).tolist() == [3, 5]
        _, chosen = route(torch.tensor([scores], device="cuda"), 4, False, 4, 2)
        # With both experts of two groups, sums count: 8.5 and 6.
        assert chosen.cpu()[0].nonzero().reshape(-1).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("data", [True, False])
def test_a_routing_says_what_tokens_choose(kernbench: Kernbench, data: bool) -> None:
    received: dict[int, list[int]] = {}

    def work(layer: MoELayer, rank: int) -> None:
        for _ in range(2):
            x = torch.zeros(16, HIDDEN, dtype=torch.float64, device="cuda", requires_grad=True)
            layer(x)[0].sum().backward()
        received[rank] = layer.token_dispatcher.plan.by_expert

    ctx = kernbench.context("sip8", data=data, routing="W6")
    on_ranks(ctx, 4, work)
    counts = 4 * routing_of("W6").choices(Asked(1, 0, 0, 16, EXPERTS, 2)).counts
    assert [rows for rank in range(4) for rows in received[rank]] == counts.tolist()
    loads = ctx.engine.op_log.loads
    assert len(loads) == 4 * 2 * 2
    assert {each.direction for each in loads} == {"forward", "backward"}
    assert sum(each.rows for each in loads if each.step == 1) == 2 * 4 * 16 * 2


def test_identity_experts_give_back_tokens_times_their_choices(kernbench: Kernbench) -> None:
    """The exact oracle of Megatron-LM's pull request 7488: sentinels on a grid of 2**-10."""
    tokens, hidden, topk = 24, 8, 2

    def work(layer: MoELayer, rank: int) -> bool:
        signs = np.roll(np.tile([42, -42], hidden // 2), 2 * rank)
        row = (signs + 1024 * (topk + rank) // hidden) / 1024
        x = torch.tensor(np.tile(row, (tokens, 1)), device="cuda")
        probs, chosen = layer.router(x)
        dispatcher = layer.token_dispatcher
        rows, weights = dispatcher.dispatch_preprocess(x, chosen, probs)
        rows, sizes, _ = dispatcher.dispatch_postprocess(*dispatcher.token_dispatch(rows, weights))
        assert sum(sizes) == rows.shape[0]
        rows = dispatcher.token_combine(dispatcher.combine_preprocess(rows))
        return bool(torch.equal(dispatcher.combine_postprocess(rows), topk * x))

    for name in ("W1", "W5", "zipf:1.5"):
        for kind in ("alltoall", "allgather"):
            ctx = kernbench.context("sip8", routing=name)
            found = on_ranks(ctx, 4, work, hidden_size=hidden, moe_token_dispatcher_type=kind)
            assert found == [True] * 4


def _kept(logits: np.ndarray[Any, Any], capacity: int, policy: str) -> np.ndarray[Any, Any]:
    """Returns which choices experts take, one by one."""
    chosen = np.zeros(logits.shape, bool)
    for token, row in enumerate(logits):
        chosen[token, np.argsort(-row)[:2]] = True
    weights = np.where(chosen, np.exp(logits), 0)
    weights /= weights.sum(1, keepdims=True)
    for expert in range(logits.shape[1]):
        takers = np.flatnonzero(chosen[:, expert])
        if policy == "probs":
            takers = takers[np.argsort(-weights[takers, expert])]
        chosen[takers[capacity:], expert] = False
    return chosen


@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_capacity_drops_rows_and_their_gradients(
    kernbench: Kernbench, policy: str, padded: bool
) -> None:
    tokens = [12] * 4
    # Twelve tokens choose 24 times among 8 experts: 3 for each, of which two thirds are 2.
    fields: dict[str, Any] = {
        "moe_expert_capacity_factor": 2 / 3,
        "moe_token_drop_policy": policy,
        "moe_pad_expert_input_to_capacity": padded,
    }
    found = on_ranks(kernbench.context("sip8"), 4, both_ways(tokens), **fields)
    gate = found[0]["gate"]
    kept = np.concatenate(
        [_kept(tokens_of(rank, 12) @ gate.T, 2, policy) for rank in range(len(tokens))]
    )
    assert 0 < kept.sum() < 2 * sum(tokens)

    def weigh(logits: torch.Tensor) -> torch.Tensor:
        return best(logits) * torch.tensor(kept, device="cuda").to(logits.dtype)

    _check(kernbench, found, tokens, weigh)


def test_experts_filled_up_to_a_capacity_need_no_values(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> list[int]:
        del rank
        layer(torch.zeros(12, HIDDEN, dtype=torch.float64, device="cuda"))
        return layer.token_dispatcher.plan.by_expert

    fields: dict[str, Any] = {
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    }
    found = on_ranks(kernbench.context("sip8", data=False), 4, work, **fields)
    assert found == [[4 * 3] * 2] * 4


def test_the_second_run_of_a_checkpoint_has_the_choices_of_the_first(kernbench: Kernbench) -> None:
    def own(function: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = tp.checkpoint(function, False, x)
        return out

    kinds: list[Callable[..., torch.Tensor]] = [
        partial(checkpoint, use_reentrant=False),
        partial(checkpoint, use_reentrant=True),
        own,
    ]

    def work(layer: MoELayer, rank: int) -> list[int]:
        found = []
        for kind in kinds:
            x = torch.zeros(24, HIDDEN, dtype=torch.float64, device="cuda", requires_grad=True)
            first, second = (kind(lambda x: layer(x)[0], x) for _ in range(2))
            first.sum().backward()
            second.sum().backward()
            found.append(layer.router.calls)
        return found

    ctx = kernbench.context("sip8", data=False, routing="zipf:0.5")
    assert on_ranks(ctx, 2, work) == [[2, 4, 6]] * 2
    rows: dict[tuple[int, int, str], list[tuple[int, ...]]] = {}
    for load in ctx.engine.op_log.loads:
        rows.setdefault((load.rank, load.step, load.direction), []).append(load.by_expert)
    # Each step runs twice forward, and the steps differ.
    assert all(len(of) == 2 - (way == "backward") for (*_, way), of in rows.items())
    assert all(len(set(of)) == 1 for of in rows.values())
    assert len({of[0] for (rank, _, way), of in rows.items() if not rank and way == "forward"}) == 6
