"""What ranks send, counted in the log, is what the table of specification B.7 says."""

from dataclasses import replace
from typing import Any

import pytest
from cp_cases import LAYOUTS, Case, attend, case, draw, run
from cp_cases import allocated as rows_of_each
from cp_configs import TWINS

from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

CONFIG = replace(TWINS["fused_cp_3_0_s"], heads=24, groups=12)
SHARES = [
    *(("p2p", cp, 1) for cp in (1, 2, 3, 4, 6, 8)),
    *(("all_gather", cp, 1) for cp in (1, 2, 3, 4, 6)),
    *(("a2a", cp, 1) for cp in (1, 2, 3, 4, 6)),
    *(("a2a+p2p", 4, 2), ("a2a+p2p", 6, 2), ("a2a+p2p", 6, 3), ("a2a+p2p", 8, 2)),
    *(("a2a+p2p", 8, 4), ("a2a+p2p", 4, 1), ("a2a+p2p", 4, 4)),
]


def sent(context: RuntimeContext) -> dict[int, int]:
    """Returns the bytes that each rank put on a link."""
    found: dict[int, int] = {}
    for record in context.engine.op_log.records:
        if record.category == "send":
            found[record.rank] = found.get(record.rank, 0) + record.args["bytes"]
    return found


def formulas(each: Case, e: int, e_grad: int) -> tuple[int, int]:
    """Returns what a rank sends forward and backward, by B.7; exact, or not a whole number."""
    lengths = draw(each.config, each.packed, each.lengths).lengths
    t = sum(rows_of_each(lengths, each.world, each.packed)) // each.world
    widths = each.config.width + each.config.value_width
    kv, qo = t * each.config.groups * widths, t * each.config.heads * widths
    cp, a, p = each.world, each.inner, each.ring
    if each.scheme == "p2p":
        return (cp - 1) * kv * e, (cp - 1) * kv * (e + e_grad)
    if each.scheme == "all_gather":
        return (cp - 1) * kv * e, (cp - 1) * kv * (e + e_grad)
    heads, rest = divmod((kv + qo) * e * (a - 1), a)
    assert not rest
    # After the exchange a rank has a times the tokens and 1/a of the heads.
    return heads + (p - 1) * kv * e, heads + (p - 1) * kv * (e + e_grad)


def of_tokens(each: Case, rank: int, groups: Any) -> dict[str, Any]:
    return attend(each, rank, groups)


@pytest.mark.parametrize(("scheme", "ranks", "inner"), SHARES)
def test_bytes_are_those_of_the_table(
    kernbench: Kernbench, scheme: str, ranks: int, inner: int
) -> None:
    config = replace(CONFIG, name="traffic", s=48)
    for layout in LAYOUTS:
        for dtype, e in (("float64", 8), ("bfloat16", 2)):
            each = case(config, layout, scheme, dtype, ranks, inner=inner)
            forward = replace(each, config=replace(config, backward=False))
            # 16-bit gradients travel as float32 unless told otherwise.
            there, back = formulas(each, e, max(e, 4))
            for one, expected in ((forward, there), (each, there + back)):
                _, context = run(kernbench, [one], record="full")
                found = sent(context)
                assert [found.get(rank, 0) for rank in range(ranks)] == [expected] * ranks, one
