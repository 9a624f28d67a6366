"""Sequences of all kinds by all schemes, in every number of ranks: empty, padded, crossed."""

import warnings
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from cp_cases import SCHEMES, Case, attend, case, compare, numbers, run, tensor
from cp_configs import TWINS
from cp_reference import Array, Problem, rows_of, solve, zigzag

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp
from kernbench.testing import Kernbench

SMALL = replace(
    TWINS["fused_cp_4_2_s"], name="sequences", s=48, heads=12, groups=12, max_logit=True
)
# Ranks, and how many of them exchange heads.
RANKS = [
    *(("p2p", cp, 1) for cp in (1, 2, 3, 4, 6, 8)),
    *(("all_gather", cp, 1) for cp in (1, 2, 3, 4, 6, 8)),
    *(("a2a", cp, cp) for cp in (1, 2, 3, 4, 6)),
    *(("a2a+p2p", a * p, a) for a in (1, 2, 3, 4) for p in (1, 2, 3, 4) if a * p < 6),
    ("a2a+p2p", 6, 2),
    *(
        pytest.param("a2a+p2p", ranks, a, marks=pytest.mark.slow)
        for ranks, a in ((6, 1), (6, 3), (6, 6), (8, 1), (8, 2), (8, 4))
    ),
]


@pytest.mark.parametrize(("scheme", "ranks", "inner"), RANKS)
def test_every_number_of_ranks(kernbench: Kernbench, scheme: str, ranks: int, inner: int) -> None:
    """Packed with padding full of NaN and an empty sequence; and dense, in float32."""
    cases = [
        case(SMALL, "thd", scheme, ranks=ranks, inner=inner, lengths=(13, 0, 31, 1)),
        case(SMALL, "sbhd", scheme, "float32", ranks, inner=inner),
    ]
    found, _ = run(kernbench, cases)
    for each, results in zip(cases, found, strict=True):
        compare(each, results)


@pytest.mark.parametrize("scheme", ["p2p", "all_gather", "a2a+p2p"])
def test_eight_ranks_of_which_heads_are_eight(kernbench: Kernbench, scheme: str) -> None:
    config = replace(SMALL, heads=16, groups=8)
    each = case(config, "thd", scheme, ranks=8, inner=8, lengths=(40, 3))
    found, _ = run(kernbench, [each])
    compare(each, found[0])
    each = case(config, "bshd", "a2a", ranks=8)
    found, _ = run(kernbench, [each])
    compare(each, found[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", [(8, 8), (3, 6), (0, 30), (0, 0)])
def test_windows_that_reach_over_the_chunks_of_short_sequences(
    kernbench: Kernbench, scheme: str, window: tuple[int, int]
) -> None:
    """Upstream corrects a window once, for the longest sequence, and is wrong for the others."""
    ranks = 4 if scheme == "a2a+p2p" else 2
    config = replace(SMALL, mask="no_mask", window=window, heads=4, groups=2)
    each = case(config, "thd", scheme, ranks=ranks, lengths=(5, 27, 16, 9))
    found, _ = run(kernbench, [each])
    compare(each, found[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("softmax", ["vanilla", "off-by-one", "learnable"])
def test_no_token_at_all(kernbench: Kernbench, scheme: str, softmax: str) -> None:
    """Rooms without a token: zeros everywhere, and no largest score."""
    ranks = 4 if scheme == "a2a+p2p" else 2
    config = replace(SMALL, softmax=softmax, heads=4, groups=4)
    each = case(config, "thd", scheme, ranks=ranks)

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        del rank
        x = [tensor(np.full((4, 4, 8), np.nan), "float64") for _ in range(3)]
        sink = tensor(np.ones(4), "float64") if softmax == "learnable" else None
        lengths: dict[str, Any] = {
            f"cu_seqlens_{of}{kind}": cu
            for of in ("q", "kv")
            for kind, cu in (("", [0, 0, 0]), ("_padded", [0, 0, 4 * ranks]))
        }
        out, peak = cp.cp_attention(
            *x,
            cp_group=groups,
            cp_comm_type=scheme,
            qkv_format="thd",
            attn_mask_type="padding",
            softmax_type=softmax,
            softmax_offset=sink,
            return_max_logit=True,
            **lengths,
        )
        out.backward(tensor(np.full((4, 4, 8), np.nan), "float64", leaf=False))
        assert not numbers(out).any()
        assert np.isneginf(numbers(peak)).all()
        for each_ in (*x, *([] if sink is None else [sink])):
            assert each_.grad is not None
            assert not numbers(each_.grad).any()
        return {}

    run(kernbench, [each], work)


def crossed(packed: bool) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns tokens and rows of queries, tokens and rows of keys."""
    if packed:
        return [7, 0, 16, 3], [8, 8, 16, 8], [20, 5, 1, 0], [24, 8, 8, 0]
    return [16, 16], [16, 16], [24, 24], [24, 24]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layout", ["bshd", "thd"])
@pytest.mark.parametrize("window", [(-1, -1), (4, 3)])
def test_keys_of_other_sequences(
    kernbench: Kernbench, scheme: str, layout: str, window: tuple[int, int]
) -> None:
    """Queries and keys have lengths of their own; rows behind the last sequence are padding."""
    ranks, packed = 4 if scheme == "a2a+p2p" else 2, layout == "thd"
    used_q, room_q, used_k, room_k = crossed(packed)
    rng = np.random.default_rng(3)
    rows_q, rows_k = rows_of(used_q, room_q), rows_of(used_k, room_k)
    t, u = len(rows_q.real), len(rows_k.real)
    q, dout = rng.normal(size=(t, 4, 3)), rng.normal(size=(t, 4, 5))
    k, v = rng.normal(size=(u, 4, 3)), rng.normal(size=(u, 4, 5))
    right = solve(Problem(q, k, v, dout, rows_q, rows_k, window, 0.3))
    tail = 3 if packed else 0

    def mine(x: Array, rooms: list[int], rank: int) -> Array:
        starts = accumulate((0, *rooms))
        rows = [
            s + at for s, n in zip(starts, rooms, strict=False) for at in zigzag(n, ranks, rank)
        ]
        return np.concatenate([x[rows], np.full((tail, *x.shape[1:]), np.nan)])

    def given(x: Array, rooms: list[int], real: Array, rank: int) -> torch.Tensor:
        x = mine(np.where(real[:, None, None], x, np.nan), rooms, rank)
        return tensor(x if packed else x.reshape(2, -1, *x.shape[1:]), "float64")

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        del each
        query, grad = (given(x, room_q, rows_q.real, rank) for x in (q, dout))
        key, value = (given(x, room_k, rows_k.real, rank) for x in (k, v))
        lengths: dict[str, Any] = {}
        if packed:
            lengths = {
                "cu_seqlens_q": [*accumulate((0, *used_q))],
                "cu_seqlens_q_padded": [*accumulate((0, *room_q))],
                "cu_seqlens_kv": [*accumulate((0, *used_k))],
                "cu_seqlens_kv_padded": [*accumulate((0, *room_k))],
            }
        out = cp.cp_attention(
            query,
            key,
            value,
            cp_group=groups,
            cp_comm_type=scheme,
            qkv_format=layout,
            attn_mask_type="padding" if packed else "no_mask",
            window_size=window,
            softmax_scale=0.3,
            **lengths,
        )
        out.backward(grad.detach())
        for name, found, whole, rooms in (
            ("out", out, right.out, room_q),
            ("dq", query.grad, right.dq, room_q),
            ("dk", key.grad, right.dk, room_k),
            ("dv", value.grad, right.dv, room_k),
        ):
            expected = np.nan_to_num(mine(whole, rooms, rank))
            values = numbers(found).reshape(expected.shape)
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12, err_msg=name)
        return {}

    run(kernbench, [case(SMALL, layout, scheme, ranks=ranks)], work)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dense_sequences_with_padding(kernbench: Kernbench, scheme: str) -> None:
    """Lengths of dense sequences: rows behind a sequence's tokens are padding."""
    ranks = 4 if scheme == "a2a+p2p" else 2
    rng = np.random.default_rng(4)
    rows = rows_of([13, 0], [16, 16])
    x = [rng.normal(size=(32, 4, 4)) for _ in range(4)]
    right = solve(Problem(x[0], x[1], x[2], x[3], rows, rows, (-1, 0), 0.5))

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        del each
        at = np.array([s + p for s in (0, 16) for p in zigzag(16, ranks, rank)])
        q, k, v, dout = (
            tensor(
                np.where(rows.real[:, None, None], y, np.nan)[at].reshape(2, -1, 4, 4), "float64"
            )
            for y in x
        )
        out = cp.cp_attention(
            q,
            k,
            v,
            cp_group=groups,
            cp_comm_type=scheme,
            attn_mask_type="padding_causal",
            cu_seqlens_q=[0, 13, 13],
        )
        out.backward(dout.detach())
        for found, whole in (
            (out, right.out),
            (q.grad, right.dq),
            (k.grad, right.dk),
            (v.grad, right.dv),
        ):
            values = numbers(found).reshape(-1, 4, 4)
            np.testing.assert_allclose(values, whole[at], rtol=1e-12, atol=1e-12)
        return {}

    run(kernbench, [case(SMALL, "bshd", scheme, ranks=ranks)], work)


def test_padding_is_inferred_from_values(kernbench: Kernbench) -> None:
    """Equal lengths in two objects are no padding; True and None are the same where they differ."""
    each = case(SMALL, "thd", "p2p", lengths=(16, 24))
    same: list[Any] = [True, False, None]

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        outs = [attend(each, rank, groups, pad_between_seqs=given)["out"] for given in same]
        lengths = {
            f"cu_seqlens_{of}{kind}": torch.tensor([0, 16, 40])
            for of in ("q", "kv")
            for kind in ("", "_padded")
        }
        outs.append(attend(each, rank, groups, pad_between_seqs=False, **lengths)["out"])
        assert all(np.array_equal(out, outs[0]) for out in outs)
        return {}

    run(kernbench, [each], work)


WINDOWS: list[tuple[str, tuple[int, int], tuple[int, int], bool]] = [
    ("causal", (-1, 0), (-1, 0), False),
    ("causal", (-1, -1), (-1, 0), True),
    ("causal", (4, 0), (4, 0), False),
    ("causal", (4, 7), (4, 0), True),
    ("causal", (4, -1), (4, 0), True),
    ("no_mask", (-1, -1), (-1, -1), False),
    ("no_mask", (-1, 0), (-1, -1), True),
    ("no_mask", (2, 3), (2, 3), False),
    ("no_mask", (0, 0), (0, 0), False),
]


@pytest.mark.parametrize(("mask", "given", "meant", "warns"), WINDOWS)
def test_windows_are_normalised(
    kernbench: Kernbench, mask: str, given: tuple[int, int], meant: tuple[int, int], warns: bool
) -> None:
    config = replace(SMALL, s=16, heads=4, groups=4, mask=mask, window=meant)
    each = case(config, "bshd", "p2p")

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        if warns:
            with pytest.warns(UserWarning, match=r"window_size=.* is taken as"):
                return attend(each, rank, groups, window_size=given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return attend(each, rank, groups, window_size=given)

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


def test_causal_of_packed_sequences_is_with_padding(kernbench: Kernbench) -> None:
    each = case(SMALL, "thd", "a2a", lengths=(13, 20))

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        return attend(each, rank, groups, attn_mask_type="causal")

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


@pytest.mark.parametrize("travels", [None, "bfloat16", "float32"])
def test_gradients_are_added_wide_however_they_travel(
    kernbench: Kernbench, travels: str | None
) -> None:
    each = case(replace(SMALL, heads=4, groups=4), "bshd", "p2p", "bfloat16", 4)

    def work(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        dtype = None if travels is None else getattr(torch, travels)
        return attend(each, rank, groups, grad_comm_dtype=dtype)

    found, _ = run(kernbench, [each], work)
    compare(each, found[0])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_time_does_not_depend_on_data(kernbench: Kernbench, scheme: str) -> None:
    ranks = 4 if scheme == "a2a+p2p" else 2

    def work(rank: int) -> None:
        dist.init_process_group("nccl")
        groups: Any = dist.group.WORLD
        if scheme == "a2a+p2p":
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            rings = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            groups = [pairs[rank // 2], rings[rank % 2]]
        x = [
            torch.ones(12, 4, 8, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for _ in range(3)
        ]
        cu, rows = [0, 3, 17], [0, 2 * ranks, 12 * ranks]
        out = cp.cp_attention(
            *x,
            cp_group=groups,
            cp_comm_type=scheme,
            qkv_format="thd",
            cu_seqlens_q=cu,
            cu_seqlens_q_padded=rows,
        )
        out.backward(torch.ones_like(out))
        dist.destroy_process_group()

    times = [
        kernbench.spawn(work, nprocs=ranks, data=data).flight_record()["time_ps"]
        for data in (True, False)
    ]
    assert times[0] == times[1]
