"""A layer on some ranks is the layer on one, forward and backward."""

from typing import Any

import numpy as np
import pytest
from ep_cases import EXPERTS, TOKENS, best, both_ways, dense, on_ranks

from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench


def _expected(ctx: RuntimeContext, found: list[dict[str, Any]], tokens: Any) -> dict[str, Any]:
    w1, w2 = (np.concatenate([each[name] for each in found]) for name in ("w1", "w2"))
    return dense(ctx, found[0]["gate"], w1, w2, tokens, best)


def _same(found: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for name in ("out", "dx", "d1", "d2"):
        mine = np.concatenate([each[name] for each in found])
        np.testing.assert_allclose(mine, expected[name], rtol=1e-12, atol=1e-13, err_msg=name)
    # Each rank has the part of its own tokens, which data parallelism sums.
    np.testing.assert_allclose(
        sum(each["router"] for each in found), expected["router"], rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("grouped", [True, False])
def test_unequal_ranks_are_one_dense_layer_both_ways(kernbench: Kernbench, grouped: bool) -> None:
    found = on_ranks(kernbench.context("sip8"), 4, both_ways(TOKENS), moe_grouped_gemm=grouped)
    assert [len(each["w1"]) for each in found] == [EXPERTS // 4] * 4
    _same(found, _expected(kernbench.context("sip8"), found, TOKENS))
