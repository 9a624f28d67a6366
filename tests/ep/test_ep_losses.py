"""Losses for balance, the bias of experts, and what a router learns from them."""

from typing import Any

import numpy as np
import pytest
from ep_cases import EXPERTS, HIDDEN, config, on_ranks, tokens_of

import kernbench.torch as torch
from kernbench.ep import MoEAuxLossAutoScaler, MoELayer, finalize_expert_bias
from kernbench.testing import Kernbench

TOPK, COEFF = 2, 0.5


def _softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _chosen(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    order = np.argsort(-logits, axis=-1)[..., :TOPK]
    return np.asarray(np.eye(EXPERTS)[order].sum(-2))


def _balance(logits: np.ndarray[Any, Any], share: np.ndarray[Any, Any]) -> float:
    """Returns `coeff x E x sum_e f_e P_e` of tokens."""
    return float(COEFF * EXPERTS * (share * _softmax(logits).mean(0)).sum())


def _share(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(_chosen(logits).sum(0) / (TOPK * len(logits)))


def _losses(kernbench: Kernbench, ranks: int, **fields: Any) -> list[Any]:
    """Returns losses, logits and the gradient of the router of a backward pass of nothing else."""

    def work(layer: MoELayer, rank: int) -> Any:
        layer.zero_grad()
        # Two sequences of five tokens: [sequence, batch, hidden].
        x = torch.tensor(tokens_of(rank, 10).reshape(5, 2, HIDDEN), device="cuda")
        probs, _ = layer.router(x)
        (probs * 0).sum().backward()
        logits = (x @ layer.router.weight.detach().T).cpu().numpy()
        assert layer.router.weight.grad is not None
        losses = {name: each.item() for name, each in layer.router.losses.items()}
        return losses, logits, layer.router.weight.grad.cpu().numpy().copy(), x.cpu().numpy()

    return on_ranks(kernbench.context("sip8"), ranks, work, moe_router_dtype="fp64", **fields)


def test_the_loss_of_a_micro_batch_is_its_formula_and_reaches_the_router(
    kernbench: Kernbench,
) -> None:
    fields = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": COEFF}
    ((losses, logits, grad, x),) = _losses(kernbench, 1, **fields)
    flat = logits.reshape(-1, EXPERTS)
    assert losses["aux_loss"] == pytest.approx(_balance(flat, _share(flat)), rel=1e-6)
    # d(coeff E sum_e f_e mean P_e) / d logits, of the softmax.
    scores, share = _softmax(flat), _share(flat)
    of_logits = COEFF * EXPERTS / len(flat) * scores * (share - (scores * share).sum(1)[:, None])
    np.testing.assert_allclose(grad, of_logits.T @ x.reshape(-1, HIDDEN), rtol=1e-6)


def test_the_loss_of_sequences_is_the_mean_of_each(kernbench: Kernbench) -> None:
    fields = {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": COEFF}
    ((losses, logits, _, _),) = _losses(kernbench, 1, **fields)
    each = [_balance(logits[:, b], _share(logits[:, b])) for b in range(2)]
    assert losses["seq_aux_loss"] == pytest.approx(np.mean(each), rel=1e-6)


def test_the_global_loss_counts_the_choices_of_all_ranks(kernbench: Kernbench) -> None:
    fields = {"moe_router_load_balancing_type": "global_aux_loss", "moe_aux_loss_coeff": COEFF}
    found = _losses(kernbench, 4, **fields)
    flat = [logits.reshape(-1, EXPERTS) for _, logits, _, _ in found]
    share = _share(np.concatenate(flat))
    for (losses, *_), mine in zip(found, flat, strict=True):
        # A rank has the part of the mean probability that is of its own tokens.
        assert losses["global_aux_loss"] == pytest.approx(_balance(mine, share) / 4, rel=1e-6)


def test_the_z_loss_is_the_mean_square_of_logsumexp(kernbench: Kernbench) -> None:
    ((losses, logits, _, _),) = _losses(kernbench, 1, moe_z_loss_coeff=0.1)
    expected = 0.1 * np.mean(np.log(np.exp(logits).sum(-1)) ** 2)
    assert losses["z_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_scale_multiplies_the_gradients_of_losses_alone(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> Any:
        x = torch.tensor(tokens_of(rank, 10), device="cuda")
        grads = []
        for scale in (1.0, 8.0):
            MoEAuxLossAutoScaler.set_loss_scale(scale)
            layer.zero_grad()
            probs, _ = layer.router(x)
            (probs * 0).sum().backward()
            assert layer.router.weight.grad is not None
            grads.append(layer.router.weight.grad.cpu().numpy().copy())
        return grads

    fields: dict[str, Any] = {
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": COEFF,
    }
    ((one, eight),) = on_ranks(kernbench.context("sip8"), 1, work, **fields)
    np.testing.assert_allclose(eight, 8 * one, rtol=1e-12)


def test_a_bias_rises_where_ranks_together_chose_less_than_the_mean(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> Any:
        x = torch.tensor(tokens_of(rank, 9), device="cuda")
        _, first = layer.router(x)
        finalize_expert_bias(layer)
        bias = layer.router.expert_bias
        assert bias is not None
        moved = bias.cpu().numpy().copy()
        with torch.no_grad():
            bias += torch.tensor([10.0] * 2 + [0.0] * (EXPERTS - 2), device="cuda")
        probs, second = layer.router(x)
        return first.cpu().numpy(), moved, second.cpu().numpy(), probs.detach().cpu().numpy()

    fields: dict[str, Any] = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.25,
    }
    found = on_ranks(kernbench.context("sip8"), 4, work, **fields)
    counts = sum(first.sum(0) for first, *_ in found)
    for _, moved, second, probs in found:
        np.testing.assert_array_equal(moved, 0.25 * np.sign(counts.mean() - counts))
        # The bias decides, and the weights are those of the scores without it.
        assert second[:, :2].all()
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-6)
        assert (probs[:, :2] > 0.01).all()


def test_sinkhorn_evens_out_a_router_that_prefers_one_expert(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> Any:
        del rank
        values = np.random.default_rng(0).normal(size=(64, HIDDEN))
        values[:, 0] = 4.0
        with torch.no_grad():
            layer.router.weight.zero_()
            layer.router.weight[:, 1:] = torch.tensor(
                np.random.default_rng(1).normal(size=(EXPERTS, HIDDEN - 1)), device="cuda"
            )
            layer.router.weight[0, 0] = 2.0  # expert 0 is everybody's choice
        probs, chosen = layer.router(torch.tensor(values, device="cuda"))
        return chosen.sum(0).tolist(), probs.detach().cpu().numpy()

    usual, even = (
        on_ranks(
            kernbench.context("sip8"),
            1,
            work,
            moe_router_topk=1,
            moe_router_load_balancing_type=kind,
        )[0]
        for kind in ("none", "sinkhorn")
    )
    assert usual[0][0] >= 56
    assert max(even[0]) <= 16
    assert ((even[1] > 0).sum(1) == 1).all()


def test_choices_in_turn_are_even_whatever_the_logits_are(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> list[int]:
        layer(torch.tensor(tokens_of(rank, 8), device="cuda"))
        return layer.token_dispatcher.plan.by_expert

    found = on_ranks(kernbench.context("sip8"), 4, work, moe_router_force_load_balancing=True)
    assert found == [[8, 8]] * 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"moe_router_topk": 9}, "moe_router_topk=9 of num_moe_experts=8"),
        ({"moe_router_topk": 0}, "moe_router_topk=0: expected 1 or more"),
        ({"moe_router_num_groups": 3, "moe_router_group_topk": 1}, "num_moe_experts=8 is no multi"),
        ({"moe_router_num_groups": 4}, "expected both, or neither"),
        ({"moe_router_num_groups": 4, "moe_router_group_topk": 5}, "moe_router_group_topk=5 of 4"),
        (
            {"moe_router_num_groups": 4, "moe_router_group_topk": 1, "moe_router_topk": 3},
            "moe_router_group_topk=1 of 4 groups of 2, for moe_router_topk=3",
        ),
        ({"moe_router_enable_expert_bias": True}, "needs moe_router_score_function='sigmoid'"),
        ({"moe_router_score_function": "tanh"}, "'tanh': expected one of softmax, sigmoid"),
        ({"moe_token_dispatcher_type": "flex"}, "'flex': expected one of alltoall, allgather"),
        ({"moe_pad_expert_input_to_capacity": True}, "needs moe_expert_capacity_factor"),
        ({"moe_expert_capacity_factor": float("nan")}, "expected a number above 0, or None"),
        (
            {"moe_expert_capacity_factor": 1.0, "moe_token_dispatcher_type": "allgather"},
            "needs moe_token_dispatcher_type='alltoall'",
        ),
        ({"moe_router_load_balancing_type": "even"}, "expected one of none, aux_loss"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="MoEConfig") as caught:
        config(**fields)
    assert said in str(caught.value)
