"""Layers on some ranks are the mixtures of experts of Hugging Face's transformers, both ways."""

from typing import Any

import numpy as np
import pytest
from ep_cases import EXPERTS, HIDDEN, WIDTH, both_ways, on_ranks, tokens_of

from kernbench.testing import Kernbench

real = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BLOCKS = {
    "mixtral.Mixtral": {"num_local_experts": EXPERTS},
    "qwen3_moe.Qwen3Moe": {
        "num_experts": EXPERTS,
        "moe_intermediate_size": WIDTH,
        "norm_topk_prob": True,
    },
    "olmoe.Olmoe": {"num_experts": EXPERTS, "norm_topk_prob": False},
}
"""Of each, its configuration; Olmoe's weights are of all experts, not of the chosen ones."""


def _block(name: str, weights: dict[str, Any]) -> Any:
    module, model = name.split(".")
    config = getattr(transformers, f"{model}Config")(
        hidden_size=HIDDEN, intermediate_size=WIDTH, num_experts_per_tok=2, **BLOCKS[name]
    )
    whole = f"transformers.models.{module}.modeling_{module}"
    blocks = pytest.importorskip(whole)
    block = getattr(blocks, f"{model}SparseMoeBlock")(config).double()
    with real.no_grad():
        block.gate.weight.copy_(real.from_numpy(weights["gate"]))
        block.experts.gate_up_proj.copy_(real.from_numpy(weights["w1"]).transpose(1, 2))
        block.experts.down_proj.copy_(real.from_numpy(weights["w2"]).transpose(1, 2))
    return block


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", BLOCKS)
def test_ranks_are_the_dense_block(kernbench: Kernbench, name: str, ranks: int) -> None:
    tokens = [(3 * rank + 5) % 8 for rank in range(ranks)]
    of_all = name == "olmoe.Olmoe"
    found = on_ranks(
        kernbench.context("sip8"), ranks, both_ways(tokens), moe_router_pre_softmax=of_all
    )
    joint = {key: np.concatenate([each[key] for each in found]) for key in found[0]}
    block = _block(name, {**joint, "gate": found[0]["gate"]})
    given = [tokens_of(rank, count) for rank, count in enumerate(tokens)]
    grads = [tokens_of(50 + rank, count) for rank, count in enumerate(tokens)]
    x = real.tensor(np.concatenate(given), requires_grad=True)
    # The block's own scores are float32: its experts get the same ones in float64.
    logits, _, places = block.gate(x)
    scores = real.softmax(logits, -1).gather(1, places)
    if not of_all:
        scores = scores / scores.sum(-1, keepdim=True)
    out = block.experts(x, places, scores)
    whole = block(x[None])
    np.testing.assert_allclose(out.detach(), whole[0].detach(), rtol=1e-5, atol=1e-5)
    out.backward(real.tensor(np.concatenate(grads)))
    expected = {
        "out": out.detach(),
        "dx": x.grad,
        "d1": block.experts.gate_up_proj.grad.transpose(1, 2),
        "d2": block.experts.down_proj.grad.transpose(1, 2),
        "router": block.gate.weight.grad,
    }
    mine = {**joint, "router": sum(each["router"] for each in found)}
    for key, values in expected.items():
        np.testing.assert_allclose(mine[key], values, rtol=1e-12, atol=1e-12, err_msg=key)
