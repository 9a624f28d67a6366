"""Faults that the originals had (specification B.11), each shown to be impossible here."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from cp_cases import (
    SCHEMES,
    Case,
    attend,
    case,
    compare,
    numbers,
    operands,
    options,
    run,
    tensor,
)
from cp_configs import TWINS
from cp_reference import Array

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp
from kernbench.cp import lanes
from kernbench.memory.allocator import OutOfMemoryError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench

SMALL = replace(TWINS["flash_cp_1_0_s"], name="small", s=32, heads=4, groups=4)


def same(a: Any, b: Any) -> bool:
    """Returns whether two cases' results are the same bits on all ranks."""
    return all(
        one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)
        for one, other in zip(a, b, strict=True)
    )


def packed(scheme: str, lengths: tuple[int, ...] = (13, 0, 27), **changed: Any) -> Case:
    ranks = 4 if scheme == "a2a+p2p" else 2
    return case(replace(SMALL, **changed), "thd", scheme, "float64", ranks, lengths=lengths)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_is_seen_by_every_scheme(kernbench: Kernbench, scheme: str) -> None:
    """The plan says so, and other lengths in the same rows give another output."""
    each = packed(scheme)

    def planned(each: Case, rank: int, groups: Any) -> dict[str, Any]:
        given, keywords = operands(each, rank), options(each, rank)
        keywords.update(cp_group=groups, cp_comm_type=each.scheme)
        q, k, v = (
            tensor(np.nan_to_num(numbers(given[name]), nan=0.25), each.dtype)
            for name in ("q", "k", "v")
        )
        _, plan = cp.cp_attention(q, k, v, **keywords, return_plan=True)
        assert plan.padding_active is True
        assert plan.comm_type == scheme
        outs = []
        for last in (40, 39):
            for of in ("q", "kv"):
                keywords[f"cu_seqlens_{of}"] = [0, 13, 13, last]
            outs.append(numbers(cp.cp_attention(q, k, v, **keywords)))
        rows = np.array([plan.rows_masked])
        return {"rows": rows, "changed": np.array(not np.array_equal(outs[0], outs[1]))}

    found, _ = run(kernbench, [each], planned)
    assert any(mine["changed"] for mine in found[0])
    room = sum(-(-n // (2 * each.world)) * 2 * each.world for n in (13, 0, 27))
    assert sum(int(mine["rows"][0]) for mine in found[0]) == room - 40


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_padding_the_plan_says_so(kernbench: Kernbench, scheme: str) -> None:
    each = packed(scheme, (16, 24))

    def planned(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        given, keywords = operands(each, rank), options(each, rank)
        keywords.update(cp_group=groups, cp_comm_type=each.scheme)
        q, k, v = (given[name] for name in ("q", "k", "v"))
        _, plan = cp.cp_attention(q, k, v, **keywords, return_plan=True)
        assert (plan.padding_active, plan.rows_masked) == (False, 0)
        return {}

    run(kernbench, [each], planned)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_that_come_late_change_nothing(kernbench: Kernbench, scheme: str) -> None:
    each = packed(scheme, max_logit=True, softmax="learnable")

    def late(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        for _ in range([3, 0, 5, 1][rank]):
            x = torch.zeros(256, 256, device="cuda")
            torch.mm(x, x)
        return attend(each, rank, groups)

    found, context = run(kernbench, [each])
    delayed, slower = run(kernbench, [each], late)
    compare(each, found[0])
    assert same(found[0], delayed[0])
    assert slower.flight_record()["time_ps"] > context.flight_record()["time_ps"]


@pytest.mark.parametrize("scheme", ["p2p", "all_gather"])
def test_steps_on_a_side_stream(kernbench: Kernbench, scheme: str) -> None:
    """The same bits; and without the event between the streams, the report of unordered access."""
    each = case(replace(SMALL, max_logit=True), "thd", scheme, ranks=3, lengths=(13, 0, 27))

    def aside(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        stream = torch.cuda.Stream()
        return attend(each, rank, groups, cp_stream=stream)

    plain, _ = run(kernbench, [each])
    found, _ = run(kernbench, [each], aside)
    compare(each, found[0])
    assert same(plain[0], found[0])


@pytest.mark.parametrize(("missing", "ranks"), [("note", 3), ("close", 2)])
def test_a_missing_event_is_reported(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch, missing: str, ranks: int
) -> None:
    each = case(replace(SMALL, s=48, max_logit=True), "bshd", "p2p", ranks=ranks)
    monkeypatch.setattr(lanes.Lanes, missing, lambda *_: None)

    def aside(each: Case, rank: int, groups: Any) -> dict[str, Array]:
        return attend(each, rank, groups, cp_stream=torch.cuda.Stream())

    with pytest.raises(SpawnException, match=r"C14|C15|M10"):
        run(kernbench, [each], aside)


def test_groups_of_a_failed_case_do_not_stay(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")

        def attempt() -> None:
            with dist.group_scope():
                x = torch.zeros(1, 4, 2, 2, device="cuda")
                group = dist.new_group([0, 1])
                cp.cp_attention(x, x, x, cp_group=group, cp_comm_type="ring")

        with pytest.raises(ValueError, match="Unsupported"):
            attempt()
        assert [each.name for each in dist.live_groups()] == ["WORLD"]
        dist.destroy_process_group()
        del rank

    kernbench.spawn(worker, nprocs=2)


def test_configurations_are_frozen_and_typed() -> None:
    config = TWINS["fused_cp_1_0_s"]
    with pytest.raises(FrozenInstanceError):
        config.s = 8  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"max_logit of .* is 'True'"):
        replace(config, max_logit="True")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"s of .* is True"):
        replace(config, s=True)


def test_calls_remember_nothing_of_each_other(kernbench: Kernbench) -> None:
    """Other heads, masks and softmaxes before it do not change what a call finds."""
    last = packed("a2a")
    others = [
        packed("a2a", heads=8, groups=2),
        packed("a2a", (5, 32), mask="no_mask", softmax="off-by-one"),
        packed("p2p", window=(3, 0)),
    ]
    alone, _ = run(kernbench, [last])
    after, _ = run(kernbench, [*others, last])
    assert same(alone[0], after[-1])


@pytest.mark.parametrize(
    ("sequences", "deterministic", "fits"), [(2, True, True), (8, True, False), (8, False, True)]
)
def test_deterministic_gradients_of_packed_sequences_need_a_workspace(
    kernbench: Kernbench, sequences: int, deterministic: bool, fits: bool
) -> None:
    """Upstream skips 2**30 pairs and more; here the device says that it has no room."""
    s = 4096

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        torch.use_deterministic_algorithms(deterministic)
        x = torch.zeros(
            sequences * s // 2, 16, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True
        )
        cu = [s * at for at in range(sequences + 1)]
        given: dict[str, Any] = {"cu_seqlens_q": cu, "cu_seqlens_q_padded": cu}
        out = cp.cp_attention(x, x, x, cp_group=dist.group.WORLD, qkv_format="thd", **given)
        if fits:
            out.backward(torch.ones_like(out))
        else:
            with pytest.raises(OutOfMemoryError, match=r"2\d\d(\.\d+)? GiB"):
                out.backward(torch.ones_like(out))
        del x, out
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2, machine="h200x8", data=False)
