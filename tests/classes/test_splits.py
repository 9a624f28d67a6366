"""A run whose classes are split begins again, and shows what its last attempt has done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.classes.partition import Apart, NotAlikeError, Partition
from kernbench.classes.splits import Met, Splits, until_stable
from kernbench.classes.tilings import finer
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec
from kernbench.testing import Kernbench

SLOW = "system.sips.changed=[{which: [5], sip: {launch: 200 us}}]"


def _error(*told: str) -> NotAlikeError:
    return NotAlikeError("they differ", hint="none", apart=Apart(range(len(told)), told))


def test_what_is_known_of_a_group_is_so_of_the_groups_that_are_alike() -> None:
    stages = Partition.by_roles(["0"] * 6 + ["1"] * 6)

    split = finer(stages, Apart([0, 1, 2], ["late", "early", "early"]))

    assert [tuple(one) for one in split.classes] == [
        ("0, late", 0, 2),
        ("0, early", 1, 4),
        ("1", 6, 6),
    ]


def test_classes_are_split_as_errors_tell() -> None:
    whole, splits = Partition.by_roles(["all"] * 6), Splits()

    splits.note(0, whole, Met(), [NotAlikeError("nobody knows why", hint="none")])
    splits.note(0, whole, Met(), [_error(*"aaaaaa")])
    splits.note(0, whole, Met(), [_error(*"abaaaa"), ValueError("of the program")])
    assert not splits.grown()

    splits.note(
        0, whole, Met(), [NotAlikeError("nobody knows why", hint="none"), _error(*"abaaaa")]
    )
    assert splits.grown()
    assert not splits.grown()
    found = splits.classes(0)
    assert found is not None
    assert [one.size for one in found.classes] == [5, 1]
    assert splits.classes(1) is None
    assert splits.reasons == ["1 to 2 classes: they differ"]


def test_what_was_alike_is_so_in_finer_classes() -> None:
    # Ranks of two stages; groups of 3 in each, and messages from each rank to the next stage.
    stages, splits = Partition.by_roles(["0"] * 12 + ["1"] * 12), Splits()
    ranks = np.arange(24)
    pairs = np.stack([ranks[:12], ranks[12:]], axis=1)
    met = Met({(0, 1, 2): ranks[:12].reshape(4, 3)}, {(0, 12): pairs})

    splits.note(0, stages, met, [_error("late", *["early"] * 23)])

    found = splits.classes(0)
    assert found is not None
    # The late rank, its group, the other groups; and to whom they send.
    sizes = {one.member: one.size for one in found.classes}
    assert sizes == {0: 1, 1: 2, 3: 9, 12: 1, 13: 2, 15: 9}


def test_if_most_ranks_are_apart_all_are() -> None:
    splits = Splits()

    splits.note(0, Partition.by_roles(["all"] * 6), Met(), [_error(*"abcdaa")])

    found = splits.classes(0)
    assert found is not None
    assert [one.size for one in found.classes] == [1] * 6


def test_attempts_end_with_the_first_error_that_splits_nothing() -> None:
    whole = Partition.by_roles(["all"] * 6)
    given: Iterator[Any] = iter([_error(*"abaaaa"), _error(*"aaaaaa"), AssertionError])
    seen = []

    def attempt(splits: Splits) -> None:
        classes = splits.classes(0) or whole
        seen.append(len(classes))
        error = next(given)
        splits.note(0, classes, Met(), [error])
        raise error

    with pytest.raises(NotAlikeError):
        until_stable(attempt)
    assert seen == [1, 2]


def _late(rank: int, done: dict[int, int]) -> None:
    dist.init_process_group("nccl")
    done[rank] = done.get(rank, 0) + 1
    x = torch.ones(1 << 14, device="cuda")
    dist.all_reduce(x + 1)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def test_the_fixture_begins_again(kernbench: Kernbench) -> None:
    done: dict[int, int] = {}

    ctx = kernbench.spawn(
        _late,
        args=(done,),
        machine="h200x8",
        overrides=(SLOW,),
        data=False,
        collapse="exact",
    )

    (partition,) = ctx.collapsed
    assert [one.member for one in partition.classes] == list(range(8))
    assert done[0] == len(kernbench.contexts) > 1
    every = kernbench.spawn(_late, args=({},), machine="h200x8", overrides=(SLOW,), data=False)
    assert ctx.engine.loop.now == every.engine.loop.now


BENCH = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def worker(rank):
    dist.init_process_group("nccl")
    print("rank", rank)
    x = torch.ones(1 << 14, device="cuda")
    dist.all_reduce(x + 1)
    dist.destroy_process_group()

def run(ctx):
    print("begin")
    ctx.multiprocessing.spawn(worker, nprocs=8)
    print("end")
"""


def test_a_run_shows_its_last_attempt_and_why_classes_were_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.py"
    file.write_text(BENCH)
    spec = RunSpec(
        bench=str(file), topology="h200x8", overrides=(SLOW,), data=False, collapse="exact"
    )

    assert run_bench(spec, Output(verbose=True)) == 0

    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["begin", *(f"rank {rank}" for rank in range(8)), "end"]
    told = [line for line in shown.err.splitlines() if "classes" in line]
    assert told == [
        "kernbench: split from 2 to 8 classes: ranks 0 and 1 are of one class, and do not end "
        "all_reduce at the same time",
        "kernbench: ranks 8 in 8 classes; exact",
    ]
