"""Attention as a module: TransformerEngine's arguments, flat heads, groups that change."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cp_cases import (
    SCHEMES,
    Case,
    attend,
    case,
    compare,
    groups_of,
    numbers,
    operands,
    options,
    run,
)
from cp_configs import TWINS
from cp_reference import Array

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp import DotProductAttention
from kernbench.testing import Kernbench

SMALL = replace(
    TWINS["fused_cp_3_0_s"], name="module", s=32, heads=4, groups=4, max_logit=True, window=(9, 0)
)


def built(each: Case, **changed: Any) -> DotProductAttention:
    config = each.config
    given: dict[str, Any] = {
        "num_gqa_groups": config.groups,
        "qkv_format": each.layout,
        "attn_mask_type": config.mask,
        "window_size": config.window,
        "softmax_type": config.softmax,
        "return_max_logit": config.max_logit,
    }
    widths = config.width, config.value_width
    return DotProductAttention(config.heads, widths, **{**given, **changed})


def through(each: Case, rank: int, module: DotProductAttention) -> dict[str, Array]:
    """Runs a case through a module, and takes its flat heads apart."""
    given, keywords = operands(each, rank), options(each, rank)
    lengths = {name: x for name, x in keywords.items() if name.startswith("cu_")}
    if each.packed:
        lengths["attn_mask_type"] = "padding,causal"
    out, peak = module(given["q"], given["k"], given["v"], **lengths)
    assert out.shape == (*given["q"].shape[:-2], each.config.heads * each.config.value_width)
    out.backward(given["dout"].flatten(-2))
    found = {f"d{name}": numbers(given[name].grad) for name in ("q", "k", "v")}
    found["out"] = numbers(out.unflatten(-1, (each.config.heads, -1)))
    found["max_logit"] = numbers(peak)
    if module.softmax_offset is not None:
        assert module.softmax_offset.grad is not None
        found["dsink"] = numbers(module.softmax_offset.grad)
    return found


@pytest.mark.parametrize("layout", ["sbhd", "bshd", "thd"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_module_is_the_function(kernbench: Kernbench, scheme: str, layout: str) -> None:
    lengths = (13, 0, 27) if layout == "thd" else None
    ranks = 4 if scheme == "a2a+p2p" else 2
    each = case(SMALL, layout, scheme, "float64", ranks, lengths=lengths)

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        module = built(each, cp_group=groups, cp_comm_type=scheme)
        mine, plain = through(each, rank, module), attend(each, rank, groups)
        assert all(np.array_equal(mine[name], plain[name]) for name in plain)
        return mine

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


@pytest.mark.parametrize("as_group", [False, True])
def test_without_ranks_to_share_with_it_is_local(kernbench: Kernbench, as_group: bool) -> None:
    each = case(SMALL, "thd", "p2p", ranks=1, lengths=(13, 0, 27))

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        return through(each, rank, built(each, cp_group=groups if as_group else None))

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


def test_without_a_group_the_scheme_does_not_matter(kernbench: Kernbench) -> None:
    each = case(SMALL, "bshd", "p2p", ranks=1)

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        del groups
        found = [through(each, rank, built(each, cp_comm_type=scheme)) for scheme in SCHEMES]
        assert all(np.array_equal(found[0]["out"], other["out"]) for other in found)
        return found[-1]

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


def test_learnable_sink_is_a_parameter(kernbench: Kernbench) -> None:
    """It begins with zeros, as off-by-one has them, and its gradient is that of all ranks."""
    config = replace(SMALL, softmax="learnable")
    each = case(config, "bshd", "p2p", "float32")

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        module = built(each, cp_group=groups)
        assert [name for name, _ in module.named_parameters()] == ["softmax_offset"]
        plain = built(each, cp_group=groups, softmax_type="off-by-one")
        assert [*plain.parameters()] == []
        found = through(each, rank, module)
        same = through(replace(each, config=replace(config, softmax="off-by-one")), rank, plain)
        assert np.array_equal(found["out"], same["out"])
        return {"dsink": found["dsink"]}

    found, _ = run(kernbench, [each], work)
    assert np.array_equal(found[0][0]["dsink"], found[0][1]["dsink"])
    assert found[0][0]["dsink"].all()


def test_groups_may_change_between_calls(kernbench: Kernbench) -> None:
    """One module, trained alone and then by every scheme, finds the same each time."""
    alone = case(SMALL, "sbhd", "p2p", ranks=1)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        module = built(alone)
        compare(alone, [through(alone, 0, module)])
        for scheme in SCHEMES:
            each = case(SMALL, "sbhd", scheme, ranks=4)
            groups = groups_of(each)
            module.set_context_parallel_group(groups, range(4), None, scheme)
            mine: list[Any] = [None] * 4
            dist.all_gather_object(mine, through(each, rank, module))
            compare(each, mine)
            # Nobody to share with is the same by every scheme, also by that which takes two groups.
            module.set_context_parallel_group(None, None, None, scheme)
            compare(alone, [through(alone, 0, module)])
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_heads_are_those_of_a_tensor_parallel_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        for tensor_parallel in ({"tp_size": 2}, {"tp_group": dist.group.WORLD}):
            module = DotProductAttention(
                8,
                4,
                4,
                softmax_type="learnable",
                **tensor_parallel,
            )
            assert module.softmax_offset is not None
            assert module.softmax_offset.shape == (4,)
            q, k = torch.zeros(6, 1, 4, 4, device="cuda"), torch.zeros(6, 1, 2, 4, device="cuda")
            assert module(q, k, k).shape == (6, 1, 16)
            with pytest.raises(ValueError, match=r"expected 4 heads of width 4[\s\S]*8 heads"):
                module(torch.cat([q, q], 2), k, k)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_a_bias_is_added(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        module = DotProductAttention(2, 4, attn_mask_type="no_mask", cp_group=dist.group.WORLD)
        x = torch.ones(4, 1, 2, 4, device="cuda")
        values = torch.arange(4.0, device="cuda").reshape(4, 1, 1, 1).expand(4, 1, 2, 4)
        bias = torch.full((1, 1, 1, 8), -1e9, device="cuda")
        bias[..., 0] = 0
        found = module(
            x, x, values, core_attention_bias_type="post_scale_bias", core_attention_bias=bias
        )
        assert not found.any()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


Build = Callable[[], object]
MAKE = DotProductAttention
VALUES: dict[str, tuple[Build, str]] = {
    "groups": (lambda: MAKE(8, 4, 3), r"num_attention_heads 8 .* num_gqa_groups 3"),
    "no groups": (lambda: MAKE(8, 4, 0), r"num_gqa_groups 0"),
    "heads of ranks": (lambda: MAKE(9, 4, tp_size=2), r"num_attention_heads 9 .* size 2"),
    "groups of ranks": (lambda: MAKE(8, 4, 2, tp_size=4), r"num_gqa_groups 2 .* size 4"),
    "comm type": (lambda: MAKE(8, 4, cp_comm_type="ring"), r"Unsupported communication type"),
    "list": (
        lambda: MAKE(8, 4, cp_group=[dist.group.WORLD]),  # type: ignore[list-item]
        r"'p2p' takes one group",
    ),
    "no list": (
        lambda: MAKE(8, 4, cp_group=dist.group.WORLD, cp_comm_type="a2a+p2p"),
        r"a2a\+p2p' takes a list of two groups",
    ),
    "one group": (
        lambda: MAKE(8, 4, cp_group=[dist.group.WORLD], cp_comm_type="a2a+p2p"),  # type: ignore[list-item]
        r"list of two groups[\s\S]*got 1 groups",
    ),
    "global ranks": (
        lambda: MAKE(8, 4, cp_group=dist.group.WORLD, cp_global_ranks=[1, 0]),
        r"cp_global_ranks are \[1, 0\], .* ranks \[0, 1\]",
    ),
    "no group": (lambda: MAKE(8, 4, cp_group=4), r"no process group"),  # type: ignore[arg-type]
    "heads of another type": (
        lambda: MAKE(8.0, 4),  # type: ignore[arg-type]
        r"num_attention_heads is 8.0[\s\S]*integer",
    ),
    "width as text": (
        lambda: MAKE(8, "4"),  # type: ignore[arg-type]
        r"kv_channels is '4'[\s\S]*two",
    ),
    "three widths": (
        lambda: MAKE(8, (4, 4, 4)),  # type: ignore[arg-type]
        r"kv_channels is \(4, 4, 4\)[\s\S]*two",
    ),
    "format": (lambda: MAKE(8, 4, qkv_format="bhsd"), r"unknown qkv_format: 'bhsd'"),
    "mask type": (lambda: MAKE(8, 4, attn_mask_type="arbitrary"), r"unknown attn_mask_type"),
    "softmax": (lambda: MAKE(8, 4, softmax_type="sparse"), r"unknown softmax_type: 'sparse'"),
    "attention type": (lambda: MAKE(8, 4, attention_type="own"), r"attention_type is 'own'"),
    "bias type": (
        lambda: _call(core_attention_bias_type="some"),
        r"core_attention_bias_type is 'some'",
    ),
    "no bias": (
        lambda: _call(core_attention_bias_type="post_scale_bias"),
        r"'post_scale_bias' was asked for with no bias",
    ),
    "bias unasked": (
        lambda: _call(core_attention_bias=torch.zeros(1, 1, 4, 4, device="cuda")),
        r"'no_bias' was asked for with a bias",
    ),
    "width": (lambda: _call(width=5), r"query_layer of layer 7[\s\S]*of width 4"),
}
UNSUPPORTED: dict[str, tuple[Build, str]] = {
    "dropout": (lambda: MAKE(8, 4, attention_dropout=0.1), r"attention_dropout=0.1[\s\S]*0.0"),
    "diagonal": (lambda: MAKE(8, 4, bottom_right_diagonal=True), r"bottom_right_diagonal=True"),
    "mask": (
        lambda: _call(attention_mask=torch.ones(1, 1, 1, 4, device="cuda")),
        r"attention_mask[\s\S]*cu_seqlens_q",
    ),
    "diagonal of a call": (
        lambda: _call(bottom_right_diagonal=True),
        r"bottom_right_diagonal=True[\s\S]*equal lengths",
    ),
    "checkpoint": (
        lambda: _call(checkpoint_core_attention=True),
        r"checkpoint_core_attention[\s\S]*torch\.utils\.checkpoint",
    ),
    "slopes": (lambda: _call(alibi_slopes=torch.ones(2)), r"alibi_slopes[\s\S]*bias"),
    "inference": (lambda: _call(inference_params=object()), r"inference_params"),
    "alibi": (lambda: _call(core_attention_bias_type="alibi"), r"'alibi'[\s\S]*post_scale_bias"),
}


def _call(width: int = 4, **changed: Any) -> object:
    x = torch.zeros(4, 1, 2, width, device="cuda")
    return DotProductAttention(2, 4, layer_number=7)(x, x, x, **changed)


@pytest.mark.parametrize("name", [*VALUES, *UNSUPPORTED])
def test_refused(kernbench: Kernbench, name: str) -> None:
    kind: type[Exception] = ValueError if name in VALUES else NotImplementedError
    attempt, message = {**VALUES, **UNSUPPORTED}[name]

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        with pytest.raises(kind, match=message):
            attempt()
        dist.barrier()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


@pytest.mark.parametrize("ranks", [[0, 2, 1, 3], [0, 1, 2], [0, 1, 2, 4]], ids=str)
def test_global_ranks_of_two_groups_are_compared(kernbench: Kernbench, ranks: list[int]) -> None:
    each = case(SMALL, "bshd", "a2a+p2p", ranks=4)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        groups = groups_of(each)
        built(each, cp_group=groups, cp_global_ranks=range(4), cp_comm_type="a2a+p2p")
        if rank == 3:
            with pytest.raises(ValueError, match=r"cp_global_ranks are \[0, .* ranks \["):
                built(each, cp_group=groups, cp_global_ranks=ranks, cp_comm_type="a2a+p2p")
        dist.barrier()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_a_refused_change_changes_nothing(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        module = DotProductAttention(8, 4, cp_group=dist.group.WORLD)
        with pytest.raises(ValueError, match="cp_global_ranks"):
            module.set_context_parallel_group(dist.group.WORLD, [0], None, "a2a")
        assert module.cp_comm_type == "p2p"
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)
