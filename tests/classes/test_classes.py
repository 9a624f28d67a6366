"""Partitions of ranks, the groups that are alike in a mesh, and files of roles."""

from pathlib import Path

import pytest

from kernbench.classes.partition import NotAlikeError, Partition
from kernbench.classes.roles import read_roles
from kernbench.classes.tilings import Tiling, moved_pairs, strides_of
from kernbench.errors import UsageError


def test_ranks_of_one_role_are_a_class_and_its_lowest_rank_runs() -> None:
    partition = Partition.by_roles(["b", "a", "b", "a", "a"])

    assert [tuple(one) for one in partition.classes] == [("b", 0, 2), ("a", 1, 3)]
    assert partition.callers_of([4, 3, 1]) == (1,)
    assert str(partition) == "ranks 5 in 2 classes; exact"


def test_a_refined_partition_splits_only_what_differs() -> None:
    partition = Partition.by_roles(["a"] * 4 + ["b"] * 2).refined(["x", "y", "x", "y", "x", "x"])

    assert [tuple(one) for one in partition.classes] == [
        ("a, x", 0, 2),
        ("a, y", 1, 2),
        ("b", 4, 2),
    ]


def test_a_rank_stands_for_those_of_its_class_in_a_group() -> None:
    partition = Partition.by_roles(["a"] * 4 + ["b"] * 4)

    standing = partition.standing([6, 0, 4, 2])

    assert standing is not None
    assert standing.caller == [2, 1, 2, 1]
    assert standing.places == {2: [0, 2], 1: [1, 3]}
    assert partition.standing([4, 0]) is None  # both run


def test_a_group_without_the_rank_that_runs_is_refused() -> None:
    partition = Partition.by_roles(["first"] * 4)

    with pytest.raises(NotAlikeError, match="rank 2 is in a group without rank 0, which runs"):
        partition.standing([2, 3])


def test_witnesses_run_beside_the_members_of_their_classes() -> None:
    stages = Partition.by_roles(["0"] * 4 + ["1"] * 4).witnessed([3])

    # Rank 7 runs as well: it is to rank 3 what rank 4 is to rank 0.
    assert stages.callers == (0, 3, 4, 7)
    assert str(stages) == "ranks 8 in 2 classes; exact; 2 more ranks did the same"
    beside = stages.standing([2, 3])  # without the member
    assert beside is not None
    assert beside.caller == [1, 1]
    together = stages.standing([3, 2, 1, 0])
    assert together is not None
    assert together.places == {0: [0], 3: [1, 2, 3]}


@pytest.mark.parametrize(("rank", "what"), [(4, "runs the program anyway"), (8, "is not there")])
def test_a_wrong_witness(rank: int, what: str) -> None:
    stages = Partition.by_roles(["0"] * 4 + ["1"] * 4)

    with pytest.raises(UsageError, match=f"--witnesses 1,{rank}: rank {rank} of 8 {what}"):
        stages.witnessed([1, rank])


def test_groups_of_a_mesh_are_found_from_one_of_them() -> None:
    # A mesh of 2 x 3 x 2 ranks, the fastest last: groups along the first and the last dimension.
    assert strides_of([0, 1, 6, 7]) == [(2, 1), (2, 6)]
    assert Tiling([0, 1, 6, 7], 12).tiles.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert Tiling([1, 3, 5], 12).tiles.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


@pytest.mark.parametrize("ranks", [[0, 1, 3], [0, 4], [2, 3, 4, 5], [1, 0]])
def test_what_is_no_part_of_a_mesh_is_refused(ranks: list[int]) -> None:
    with pytest.raises(NotAlikeError, match="is no part of a mesh of 12 ranks"):
        Tiling(ranks, 12)


def test_groups_alike_have_the_same_classes_place_by_place() -> None:
    stages = Partition.by_roles(["0"] * 4 + ["1"] * 4)
    assert Tiling([0, 2], 8).check(stages).tolist() == [[0, 2], [1, 3]]

    odd = Partition.by_roles(["a", "a", "b", "a", "b", "b", "b", "b"])
    with pytest.raises(NotAlikeError) as caught:
        Tiling([0, 1], 8).check(odd)
    assert str(caught.value).splitlines() == [
        "ranks 0, 1 and ranks 2, 3 are of some common classes, and not of the same ones place by "
        "place",
        "  ranks 0, 1: a",
        "  ranks 2, 3: b, a",
        "  hint: give ranks that do not do the same other roles (--roles), or run with --collapse "
        "off, which simulates every rank",
    ]


def test_messages_of_a_class_all_have_receivers_of_one_class() -> None:
    stages = Partition.by_roles(["0"] * 2 + ["1"] * 2 + ["2"] * 2)
    assert moved_pairs(stages, 2, 4).tolist() == [[2, 4], [3, 5]]

    with pytest.raises(NotAlikeError, match="what rank 1 of its class sends has no such receiver"):
        moved_pairs(stages, 0, 1)


def test_stages_behind_ranks_that_are_told_apart_are_split_with_them() -> None:
    stages = Partition.by_roles(["0"] * 3 + ["1"] * 3 + ["2"] * 3 + ["3"] * 2)
    late = stages.refined(["late" if rank == 1 else "" for rank in range(11)])

    with pytest.raises(NotAlikeError) as caught:
        moved_pairs(late, 0, 3)

    assert caught.value.apart is not None
    on_time, behind_late = (f"whose message is of 0, {kind}" for kind in ("", "late"))
    told = caught.value.apart.told
    assert told[3:9] == [on_time, behind_late, on_time] * 2
    assert told[9:] == ["", ""]  # not as many: nobody knows who sends to them


def test_a_file_of_roles(tmp_path: Path) -> None:
    file = tmp_path / "roles"
    file.write_text("# of 6 ranks\n0,4-5 the ends\n\n1-3  middle # of them\n")

    assert read_roles(file, 6) == ["the ends", *["middle"] * 3, *["the ends"] * 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-3 a", "no role for ranks 4, 5"),
        ("0-5 a\n2-3 b", ":2: ranks 2, 3 came before"),
        ("0-6 a", ":1: rank 6, of 6 ranks"),
        ("a 0-5", ":1: expected ranks and a role, got 'a 0-5'"),
    ],
)
def test_a_wrong_file_of_roles(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "roles"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_roles(file, 6)
