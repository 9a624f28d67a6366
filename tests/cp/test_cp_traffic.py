"""What ranks send, counted in the log, is what the table of specification B.7 says."""

from dataclasses import replace
from typing import Any

import pytest
from cp_cases import SCHEMES, Case, case, compute, draw, run
from cp_cases import allocated as rows_of_each
from cp_configs import TWINS

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

CONFIG = replace(TWINS["fused_cp_3_0_s"], name="traffic", s=48, heads=24, groups=12)
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


def messages(each: Case) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what a rank starts forward and backward, by B.7."""
    hops, exchanges = each.ring - 1, 4 if each.inner > 1 else 0
    if each.scheme == "all_gather":
        gathers = {"all_gather_into_tensor": 2} if hops else {}
        return gathers, {**gathers, "reduce_scatter_tensor": 2} if hops else {}
    found = []
    for times in (1, 2):
        every = {"all_to_all_single": exchanges, "send": hops * times}
        found.append({name: count for name, count in every.items() if count})
    return found[0], found[1]


def started(context: RuntimeContext) -> dict[str, int]:
    """Returns how many sends and collectives rank 0 started, by name."""
    names = [
        r.name for r in context.engine.op_log.records if r.category == "collective" and not r.rank
    ]
    return {name: names.count(name) for name in names if name != "recv"}


@pytest.mark.parametrize(("scheme", "ranks", "inner"), SHARES)
def test_bytes_are_those_of_the_table(
    kernbench: Kernbench, scheme: str, ranks: int, inner: int
) -> None:
    for layout, dtype, e in (("bshd", "float64", 8), ("thd", "bfloat16", 2)):
        each = case(CONFIG, layout, scheme, dtype, ranks, inner=inner)
        forward = replace(each, config=replace(CONFIG, backward=False))
        # 16-bit gradients of keys and values travel as float32 unless told otherwise.
        there, back = formulas(each, e, max(e, 4))
        starts = messages(each)
        both = {name: sum(s.get(name, 0) for s in starts) for name in {**starts[0], **starts[1]}}
        for one, nbytes, names in ((forward, there, starts[0]), (each, there + back, both)):
            results, context = run(kernbench, [one], compute, record="full", data=False)
            found = sent(context)
            assert [found.get(rank, 0) for rank in range(ranks)] == [nbytes] * ranks, one
            assert started(context) == names, one
            for mine in results[0]:
                plan: Any = mine["plan"]
                assert (plan.bytes_sent, plan.bytes_sent_backward) == (there, back), one
                counts = tuple(sum(s.values()) for s in starts)
                assert (plan.messages, plan.messages_backward) == counts, one


@pytest.mark.parametrize("scheme", ["p2p", "all_gather"])
def test_gradients_may_travel_in_16_bits(kernbench: Kernbench, scheme: str) -> None:
    each = case(CONFIG, "bshd", scheme, "bfloat16", 4)

    def work(each: Case, rank: int, groups: Any) -> dict[str, Any]:
        return compute(each, rank, groups, grad_comm_dtype=torch.bfloat16)

    _, context = run(kernbench, [each], work, record="full", data=False)
    assert sent(context)[0] == sum(formulas(each, 2, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sinks_and_largest_scores_take_some_bytes_a_head(kernbench: Kernbench, scheme: str) -> None:
    """What the table leaves out is a few numbers a head, whatever the sequences' length."""
    more = []
    for s in (48, 96):
        counts = []
        for changed in ({}, {"softmax": "learnable", "max_logit": True}):
            config = replace(CONFIG, s=s, **changed)  # type: ignore[arg-type]
            _, context = run(
                kernbench,
                [case(config, "bshd", scheme, ranks=4)],
                compute,
                record="full",
                data=False,
            )
            counts.append(sent(context)[0])
        more.append(counts[1] - counts[0])
    assert more[0] == more[1]
    assert 0 < more[0] <= 3 * 8 * CONFIG.heads * 4
