"""What ranks give alike to make groups is looked at once; the check that they are alike stays."""

from typing import Any

import pytest

from kernbench.distributed import group_making
from kernbench.parallel import parallel_state
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.torch import distributed as dist

RANKS = 8
HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))


def spawned(ctx: RuntimeContext, split: Any) -> list[list[int]]:
    """Returns the members of each rank's part."""
    found: list[list[int]] = [[] for _ in range(RANKS)]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        given = split(rank) if callable(split) else split
        part = dist.split_group(None, given)
        found[rank] = dist.get_process_group_ranks(part)
        dist.destroy_process_group()

    ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    return found


def test_one_tuple_is_looked_at_once(ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    members = group_making._members

    def counting(*args: object) -> tuple[int, ...]:
        looked.append(args)
        return members(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(group_making, "_members", counting)
    assert spawned(ctx, HALVES) == [list(HALVES[rank // 4]) for rank in range(RANKS)]
    assert len(looked) == len(HALVES)


def test_other_forms_give_the_same_parts(ctx: RuntimeContext) -> None:
    shared = spawned(ctx, HALVES)
    assert spawned(ctx, lambda _: [list(part) for part in HALVES]) == shared
    assert spawned(ctx, lambda rank: HALVES if rank % 2 else tuple(map(list, HALVES))) == shared


def test_a_list_that_changes_between_two_ranks_is_seen(ctx: RuntimeContext) -> None:
    parts = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def changing(rank: int) -> list[list[int]]:
        if rank == 1:
            parts[0][3], parts[1][0] = parts[1][0], parts[0][3]
        return parts

    with pytest.raises(SpawnException) as failed:
        spawned(ctx, changing)
    assert "C9" in failed.value.codes


def test_different_tuples_are_a_mismatch(ctx: RuntimeContext) -> None:
    with pytest.raises(SpawnException) as failed:
        spawned(ctx, lambda rank: ((0, 1), (2, 3, 4, 5, 6, 7)) if rank == 5 else HALVES)
    assert "C9" in failed.value.codes


def test_subgroups_meet_single_groups(ctx: RuntimeContext) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank % 2:
            mine, _ = dist.new_subgroups(4)
        else:
            mine = [dist.new_group([*part]) for part in HALVES][rank // 4]
        assert dist.get_process_group_ranks(mine) == list(HALVES[rank // 4])
        dist.destroy_process_group()

    ctx.multiprocessing.spawn(worker, nprocs=RANKS)


def test_a_layout_looks_at_no_part_twice(
    ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[int, ...]] = []
    members = group_making._members

    def counting(*args: object) -> tuple[int, ...]:
        looked.append(members(*args))  # type: ignore[arg-type]
        return looked[-1]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        before = len(looked)
        parallel_state.initialize_model_parallel(4)
        assert rank == 0 or len(looked) == before
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    monkeypatch.setattr(group_making, "_members", counting)
    ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    assert looked
