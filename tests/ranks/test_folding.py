"""Texts of many ranks as few."""

import pytest
from report_text import Worker, failure

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ranks.folding import fold, shape_of
from kernbench.testing import Kernbench

RANKS = range(64)


def said(form: str, ranks: range = RANKS) -> dict[int, str]:
    return {rank: eval(f"f{form!r}", {"rank": rank}) for rank in ranks}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("the same of 7", "the same of 7"),
        ("two devices, cuda:{rank} and cpu!", "two devices, cuda:<rank> and cpu!"),
        ("it runs on stream {rank}.1", "it runs on stream <rank>.1"),
        ("shard{rank}.pt of 64", "shard<rank>.pt of 64"),
        ("was issued at {rank + 2} us, at a.py:3:1", "was issued at 2 us to 65 us, at a.py:3:1"),
        ("at {rank * 100 + 500} ns of 3 s", "at 500 ns to 6.8 us of 3 s"),
        ("<object at 0x{rank + 255:x}>", "<object at 0x...>"),
    ],
)
def test_what_is_a_ranks_own_is_told_once(form: str, text: str) -> None:
    texts = said(form)
    if "ns" in form:
        texts = {rank: text.replace("6800 ns", "6.8 us") for rank, text in texts.items()}
    (only,) = fold(texts)
    assert only == (list(RANKS), text)


def test_the_device_of_a_rank_of_a_node_is_its_local_rank() -> None:
    (only,) = fold(said("rank {rank} on cuda:{rank % 8}"), per_node=8)
    assert only.text == "rank <rank> on cuda:<local rank>"
    assert len(fold(said("rank {rank} on cuda:{rank % 8}"), per_node=16)) == 1  # cut, see below
    assert "with other numbers" in fold(said("{rank % 8}"), per_node=16)[0].text


def test_the_subject_is_named_once() -> None:
    (only,) = fold(said("rank {rank} waits; add of rank {rank}"), "each of {}")
    assert only.text == "each of ranks 0-63 waits; add of rank <rank>"


def test_a_number_that_many_share_is_not_that_of_one_rank() -> None:
    """Rank 4 says 4, and means what the others mean."""
    assert [each.ranks for each in fold(said("4 rows"))] == [list(RANKS)]
    forms = fold(said("{4 if rank < 9 else 5} rows on cuda:{rank}"))
    assert [(each.ranks, each.text) for each in forms] == [
        (list(range(9)), "4 rows on cuda:<rank>"),
        (list(range(9, 64)), "5 rows on cuda:<rank>"),
    ]


def test_few_forms_are_told_in_full_and_of_many_the_first() -> None:
    forms = fold(said("{rank + 10} rows", range(4)))
    assert [each.text for each in forms] == ["10 rows", "11 rows", "12 rows", "13 rows"]
    (only,) = fold(said("{rank + 10} rows", range(5)))
    assert only == ([0], "10 rows\n  ranks 1-4 failed alike, with other numbers")


def test_one_rank_says_what_it_says() -> None:
    assert fold({3: "rank 3 on cuda:3 at 2 us"}, "each of {}") == [
        ([3], "rank 3 on cuda:3 at 2 us"),
    ]


def test_words_make_the_shape() -> None:
    assert shape_of("cuda:3 at 2 us") == shape_of("cuda:41 at 1.5 ms")
    assert shape_of("cuda:3 at 2 us") != shape_of("cuda:3 at 2 rows")
    assert shape_of("[4, 8]") != shape_of("[4]")


def test_calls_that_differ_on_every_rank_are_few_lines(kernbench: Kernbench) -> None:
    def root(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.broadcast(torch.ones(4, device="cuda"), src=rank)

    def shape(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(4 + rank, device="cuda"))

    def half(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank % 2:
            dist.all_reduce(torch.ones(4, device="cuda"))
        else:
            dist.barrier()

    def told(worker: Worker) -> list[str]:
        failed = failure(kernbench, worker, 64, topology="ring1024")
        assert len(failed.as_json()["errors"]["0"]["ranks"]) == 64, "each call is in the document"
        return str(failed).splitlines()

    lines = told(root)
    assert len(lines) == 5
    assert lines[0] == "ranks 0-63 failed"
    assert lines[2].startswith("  ranks 0-63: broadcast([4], torch.float32, src=<rank>) at ")
    lines = told(shape)
    assert len(lines) == 13
    assert lines[9].startswith("  rank 7: all_reduce([11], torch.float32, sum) at ")
    assert lines[10] == "  ranks 8-63: 56 more calls"
    lines = told(half)
    assert lines[2].startswith("  ranks 0, 2, ..., 62: barrier() at ")
    assert lines[3].startswith("  ranks 1, 3, ..., 63: all_reduce([4], torch.float32, sum) at ")
