"""Every scheme against attention of the whole batch on one rank, with NaN in every padded row."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from cp_small import Array, Batch, Case, batch_of, share

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp
from kernbench.testing import Kernbench

NAN = float("nan")


def host(tensor: torch.Tensor | None) -> Array:
    assert tensor is not None
    array: Array = tensor.detach().cpu().double().numpy()
    return array


def groups_of(scheme: str, ranks: int, inner: int) -> Any:
    """The groups that a scheme takes; every rank makes all of them."""
    if scheme != "a2a+p2p":
        return dist.group.WORLD
    rank = dist.get_rank()
    near = [[*range(p * inner, (p + 1) * inner)] for p in range(ranks // inner)]
    far = [[*range(a, ranks, inner)] for a in range(inner)]
    made = [dist.new_subgroups_by_enumeration(each)[0] for each in (near, far)]
    assert all(rank in dist.get_process_group_ranks(each) for each in made)
    return made


def arguments(case: Case) -> dict[str, Any]:
    keyed = case.keyed()
    found = {
        "qkv_format": case.layout,
        "attn_mask_type": case.mask,
        "window_size": case.window,
        "softmax_type": case.softmax,
        **case.options,
    }
    if "padding" in case.mask or case.layout == "thd":
        found["cu_seqlens_q"] = [0, *accumulate(case.used)]
        found["cu_seqlens_kv"] = [0, *accumulate(keyed.used)]
    if case.layout == "thd":
        found["cu_seqlens_q_padded"] = [0, *accumulate(case.room)]
        found["cu_seqlens_kv_padded"] = [0, *accumulate(keyed.room)]
    return found


def check(
    kernbench: Kernbench,
    case: Case,
    scheme: str,
    ranks: int,
    inner: int = 1,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-12,
    **more: Any,
) -> list[cp.Plan]:
    batch = batch_of(case)
    plans: list[cp.Plan] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = groups_of(scheme, ranks, inner)
        plans.append(compare(case, batch, group, scheme, ranks, rank, dtype, tolerance, **more))
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=ranks)
    return plans


def compare(
    case: Case,
    batch: Batch,
    group: Any,
    scheme: str,
    ranks: int,
    rank: int,
    dtype: torch.dtype,
    tolerance: float,
    side: bool = False,
    **more: Any,
) -> cp.Plan:
    keyed = case.keyed()

    def put(array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(dtype).cuda().requires_grad_()

    q = put(share(case, batch.q, ranks, rank, NAN))
    k, v = (put(share(keyed, each, ranks, rank, NAN)) for each in (batch.k, batch.v))
    grad = put(share(case, batch.grad, ranks, rank, NAN)).detach()
    sink = put(batch.sink) if case.softmax == "learnable" else None
    bias = None if batch.bias is None else put(batch.bias)
    out, peak, plan = cp.cp_attention(
        q,
        k,
        v,
        cp_group=group,
        cp_comm_type=scheme,
        softmax_offset=sink,
        core_attention_bias=bias,
        return_max_logit=True,
        return_plan=True,
        cp_stream=torch.cuda.Stream() if side else None,
        **arguments(case),
        **more,
    )
    assert out.is_contiguous()
    assert out.dtype is dtype
    out.backward(grad)

    def near(got: torch.Tensor | None, want: Array) -> None:
        np.testing.assert_allclose(host(got), want, rtol=tolerance, atol=tolerance)

    near(out, share(case, batch.out, ranks, rank, 0))
    near(q.grad, share(case, batch.dq, ranks, rank, 0))
    near(k.grad, share(keyed, batch.dk, ranks, rank, 0))
    near(v.grad, share(keyed, batch.dv, ranks, rank, 0))
    near(peak, batch.peak)
    if sink is not None:
        near(sink.grad, batch.dsink)
    if batch.dbias is not None:
        assert bias is not None
        near(bias.grad, batch.dbias)
    assert isinstance(plan, cp.Plan)
    return plan


SCHEMES = [
    ("p2p", 1, 1),
    ("p2p", 2, 1),
    ("p2p", 3, 1),
    ("p2p", 4, 1),
    ("all_gather", 1, 1),
    ("all_gather", 2, 1),
    ("all_gather", 3, 1),
    ("a2a", 2, 2),
    ("a2a+p2p", 4, 2),
    ("a2a+p2p", 2, 1),
    ("a2a+p2p", 2, 2),
    ("a2a+p2p", 6, 2),
]
DENSE = Case((24, 24), (24, 24))
PACKED = Case((24, 0, 5, 13, 0), (24, 24, 24, 24, 0), layout="thd", mask="padding_causal", tail=3)
CASES = {
    "causal": DENSE,
    "sbhd": Case((24, 24), (24, 24), layout="sbhd", softmax="learnable"),
    "no mask": Case((24, 24), (24, 24), mask="no_mask", softmax="off-by-one"),
    "window": Case((24, 24), (24, 24), window=(5, 0), softmax="learnable"),
    "window of both": Case((24, 24), (24, 24), mask="no_mask", window=(3, 2)),
    "padding": Case((24, 7), (24, 24), mask="padding", layout="sbhd"),
    "padding causal": Case((3, 17), (24, 24), mask="padding_causal", softmax="learnable"),
    "cross": Case((24, 24), (24, 24), mask="no_mask", keys=((48, 48), (48, 48))),
    "packed": PACKED,
    "packed, sink": Case((1, 20), (24, 24), layout="thd", mask="causal", softmax="learnable"),
    "packed, window": Case((9, 48), (24, 48), layout="thd", mask="padding", window=(2, 9)),
    "packed, cross": Case(
        (1, 9, 24),
        (24, 24, 24),
        layout="thd",
        mask="padding",
        keys=((13, 0, 30), (24, 24, 48)),
        softmax="learnable",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("scheme", "ranks", "inner"), SCHEMES)
def test_a_scheme_is_attention(
    kernbench: Kernbench, case: Case, scheme: str, ranks: int, inner: int
) -> None:
    plans = check(kernbench, case, scheme, ranks, inner)
    padded = case.tail or case.used != case.room or case.keyed().used != case.keyed().room
    assert all(plan.padding_active == bool(padded) for plan in plans)
