"""Which rows a rank has of a batch, and how packed sequences are padded for that."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cp_reference import rows_of, zigzag

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp.batches import (
    get_batch_on_this_cp_rank,
    pad_thd_sequences_for_cp,
    positional_ids_for_cp,
    seqlens_on_cp_rank,
    thd_partition_indices,
    zigzag_split,
    zigzag_unsplit,
)
from kernbench.testing import Kernbench


def everyone() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def test_packed_rows_of_a_rank(kernbench: Kernbench) -> None:
    kernbench.context()
    found = thd_partition_indices([0, 8, 16, 24, 40], 40, 4, 0)
    assert found.dtype is torch.int32
    assert found.tolist() == [0, 7, 8, 15, 16, 23, 24, 25, 38, 39]
    given = torch.tensor([0, 8, 16, 24, 40])
    assert thd_partition_indices(given, 40, 4, 3).tolist() == [
        3,
        4,
        11,
        12,
        19,
        20,
        30,
        31,
        32,
        33,
    ]


def test_rows_behind_the_last_sequence_are_shared_as_one_more(kernbench: Kernbench) -> None:
    kernbench.context()
    parts = [thd_partition_indices([0, 4], 12, 2, rank).tolist() for rank in range(2)]
    assert parts == [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]
    assert thd_partition_indices([0, 3], 5, 1, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("a", "p"), [(2, 2), (2, 4), (4, 2), (3, 2)])
def test_zigzags_fold(kernbench: Kernbench, a: int, p: int) -> None:
    """Shares of A inner ranks are one among P, and cp = A's order restores sequences in it."""
    kernbench.context()
    rng = np.random.default_rng(a * 10 + p)
    lengths = rng.integers(0, 4, 5) * 2 * a * p
    cu = [0, *np.cumsum(lengths).tolist()]
    folded = [each // p for each in cu]
    for outer in range(p):
        union = np.zeros(cu[-1] // p, int)
        for inner in range(a):
            mine = thd_partition_indices(cu, cu[-1], a * p, outer * a + inner).tolist()
            union[thd_partition_indices(folded, folded[-1], a, inner).tolist()] = mine
        assert union.tolist() == thd_partition_indices(cu, cu[-1], p, outer).tolist()


def test_tokens_of_packed_sequences_on_a_rank() -> None:
    used, rows = [0, 5, 3, 0, 16, 1], [0, 8, 8, 8, 16, 8]
    cu_used, cu_rows = np.cumsum(used).tolist(), np.cumsum(rows).tolist()
    real = rows_of(used[1:], rows[1:]).real
    for cp in (1, 2, 4):
        for rank in range(cp):
            at, expected = 0, []
            for n in rows[1:]:
                expected.append(int(real[at : at + n][zigzag(n, cp, rank)].sum()))
                at += n
            assert seqlens_on_cp_rank(cu_used, cu_rows, cp, rank) == expected


def test_split_and_unsplit_are_inverse(kernbench: Kernbench) -> None:
    kernbench.context()
    for dim, cp in ((0, 2), (1, 3), (1, 1)):
        x = torch.arange(12 * 12).reshape(12, 12).requires_grad_(False)
        parts = [zigzag_split(x, cp, rank, dim) for rank in range(cp)]
        for rank, part in enumerate(parts):
            expected = np.arange(144).reshape(12, 12).take(zigzag(12, cp, rank), dim)
            assert part.tolist() == expected.tolist()
        assert torch.equal(zigzag_unsplit(parts, dim), x)


@pytest.mark.parametrize("as_tensor", [True, False])
def test_each_sequence_is_padded_at_its_end(kernbench: Kernbench, as_tensor: bool) -> None:
    """TransformerEngine's own example: lengths 7, 11 and 5, and a factor of 4."""

    kernbench.context()
    cu: Any = [0, 7, 18, 23]
    cu = torch.tensor(cu, dtype=torch.int32) if as_tensor else cu
    ids = torch.tensor([1] * 7 + [2] * 11 + [3] * 5)
    labels = torch.arange(23)
    padded, targets, cu_padded = pad_thd_sequences_for_cp(ids[None], labels, cu, 4, 9, -1)
    assert padded.tolist() == [1] * 7 + [9] + [2] * 11 + [9] + [3] * 5 + [9] * 3
    assert targets.tolist() == [*range(7), -1, *range(7, 18), -1, *range(18, 23), -1, -1, -1]
    assert isinstance(cu_padded, torch.Tensor) == as_tensor
    found = cu_padded.tolist() if isinstance(cu_padded, torch.Tensor) else cu_padded
    assert found == [0, 8, 20, 28]
    assert not as_tensor or cu_padded.dtype is torch.int32  # type: ignore[union-attr]
    positions = positional_ids_for_cp(cu, 4)
    assert positions.tolist() == [*range(8), *range(12), *range(8)]
    assert positions.dtype is torch.int64


def test_packed_helpers_need_no_data(kernbench: Kernbench) -> None:
    kernbench.context(data=False)
    ids = torch.zeros(7, dtype=torch.int64, device="cuda")
    padded, _, cu_padded = pad_thd_sequences_for_cp(ids, ids, [0, 2, 7], 4)
    assert (padded.shape, cu_padded) == ((12,), [0, 4, 12])
    rows = thd_partition_indices(cu_padded, 12, 2, 0, device="cuda")
    assert padded.index_select(0, rows).shape == (6,)
    assert positional_ids_for_cp([0, 2, 7], 4).shape == (12,)


def test_batch_of_dense_sequences(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = np.arange(2 * 8).reshape(2, 8)
        mask = np.arange(8 * 8).reshape(1, 1, 8, 8)
        batch = {
            "tokens": torch.tensor(x),
            "attention_mask": torch.tensor(mask),
            "labels": None,
        }
        found = get_batch_on_this_cp_rank(batch, everyone())
        mine = zigzag(8, 2, rank)
        assert found["labels"] is None
        assert found["tokens"].tolist() == x[:, mine].tolist()
        assert found["attention_mask"].tolist() == mask[:, :, mine].tolist()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_batch_of_packed_sequences(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        groups = [dist.new_group([2 * p, 2 * p + 1]) for p in range(2)]
        rings = [dist.new_group([a, a + 2]) for a in range(2)]
        batch = {
            "tokens": torch.arange(40)[None],
            "cu_seqlens": [0, 3, 8, 9, 20],
            "cu_seqlens_padded": [0, 8, 16, 24, 40],
            "max_seqlen": 16,
        }
        rows = thd_partition_indices([0, 8, 16, 24, 40], 40, 4, rank).tolist()
        for group in (everyone(), [groups[rank // 2], rings[rank % 2]]):
            found = get_batch_on_this_cp_rank(batch, group)
            assert found["tokens"].tolist() == [rows]
            assert {**found, "tokens": 0} == {**batch, "tokens": 0}
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_batch_of_one_rank_stays(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        tokens = torch.arange(7)[None]
        assert get_batch_on_this_cp_rank({"tokens": tokens}, everyone())["tokens"] is tokens
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=1)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "split": (
        lambda: zigzag_split(torch.zeros(1, 10), 2, 0),
        r"10 tokens cannot be cut among 2 ranks[\s\S]*2 \* cp = 4",
    ),
    "rank": (lambda: zigzag_split(torch.zeros(1, 8), 2, 2), r"no place 2"),
    "unsplit": (
        lambda: zigzag_unsplit([torch.zeros(1, 4), torch.zeros(1, 2)]),
        r"lengths are \[4, 2\]",
    ),
    "no parts": (lambda: zigzag_unsplit([]), r"parts of 0 ranks"),
    "rows": (
        lambda: thd_partition_indices([0, 8, 14], 14, 2, 0),
        r"6 is not divisible by 2 \* cp = 4",
    ),
    "room": (lambda: thd_partition_indices([0, 8], 4, 2, 0), r"4 rows cannot hold.* 8 rows"),
    "place": (lambda: thd_partition_indices([0, 8], 8, 1, 1), r"no place 1"),
    "no ranks": (lambda: zigzag_split(torch.zeros(1, 8), 0, 0), r"0 ranks has no place 0"),
    "cumulative": (
        lambda: thd_partition_indices([0, 8, 4], 8, 2, 0),
        r"cu_seqlens_padded decreases from 8 to 4",
    ),
    "zero first": (
        lambda: thd_partition_indices([4, 8], 8, 2, 0),
        r"begins with 4[\s\S]*expected 0",
    ),
    "empty": (lambda: positional_ids_for_cp([], 4), r"cu_seqlens begins with nothing"),
    "fractions": (lambda: positional_ids_for_cp([0, 1.5], 4), r"integers"),  # type: ignore[list-item]
    "sequences": (lambda: seqlens_on_cp_rank([0, 4], [0, 4, 8], 2, 0), r"of 1 sequences.* of 2"),
    "tokens": (lambda: seqlens_on_cp_rank([0, 5], [0, 4], 2, 0), r"has 5 tokens in 4 rows"),
    "factor": (lambda: positional_ids_for_cp([0, 4], 0), r"divisibility_factor is 0"),
    "ids": (
        lambda: pad_thd_sequences_for_cp(torch.zeros(5), torch.zeros(4), [0, 4], 4),
        r"input_ids of shape \[5\].* 4 tokens",
    ),
    "labels": (
        lambda: pad_thd_sequences_for_cp(torch.zeros(4), torch.zeros(2, 2), [0, 4], 4),
        r"labels of shape \[2, 2\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused(kernbench: Kernbench, name: str) -> None:
    call, message = REFUSED[name]

    kernbench.context()
    with pytest.raises(ValueError, match=message):
        call()


WRONG_KINDS: dict[str, tuple[Callable[[], object], str]] = {
    "text for ids": (
        lambda: pad_thd_sequences_for_cp("abc", torch.zeros(4), [0, 4], 4),  # type: ignore[arg-type]
        r"input_ids[\s\S]*Tensor[\s\S]*str",
    ),
    "ranks as a fraction": (
        lambda: thd_partition_indices([0, 8], 8, 2.0, 0),  # type: ignore[arg-type]
        r"cp_size[\s\S]*int[\s\S]*float",
    ),
    "fraction of a factor": (
        lambda: positional_ids_for_cp([0, 4], 2.5),  # type: ignore[arg-type]
        r"divisibility_factor[\s\S]*int[\s\S]*float",
    ),
}


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_arguments_of_another_kind_are_named(kernbench: Kernbench, name: str) -> None:
    call, message = WRONG_KINDS[name]

    kernbench.context()
    with pytest.raises(TypeError, match=message):
        call()


def test_batch_without_the_dimension_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        for name, x in (("tokens", torch.zeros(8)), ("attention_mask", torch.zeros(1, 8))):
            with pytest.raises(ValueError, match=f"{name} of shape"):
                get_batch_on_this_cp_rank({name: x}, everyone())
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)
