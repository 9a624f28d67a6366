"""Reports as plain values, who calls wrongly at different times, and how to repeat a run."""

# mypy: disable-error-code="arg-type, union-attr"

# ruff: noqa: E501 - texts as users see them

from typing import Any

import pytest
from report_text import Worker, failure, relative

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench

Rows = list[tuple[int, str, int, int | None, int | None]]
"""Of each involved rank: rank, call, line after that of `def`, sequence number, picoseconds."""


def _x(n: int = 4) -> torch.Tensor:
    return torch.ones(n, device="cuda")


def _rows(kernbench: Kernbench, worker: Worker, nprocs: int, rank: int = 0) -> Rows:
    """Returns what the error of a rank says of the ranks, once their sites are checked."""
    errors = failure(kernbench, worker, nprocs).as_json()["errors"]
    error = errors[str(rank)]
    assert all("ranks" in other or other["ranks_as_in"] == str(rank) for other in errors.values())
    first = worker.__code__.co_firstlineno
    found: Rows = []
    for row in error["ranks"]:
        site: dict[str, Any] = row["site"]
        assert site["file"] == __file__
        assert site["source"] in " ".join([*error["facts"], error.get("view", "")])
        line = site["line"] - first
        found.append((row["rank"], row["call"], line, row["sequence"], row["time_ps"]))
    return found


def test_a_meeting_that_ranks_disagree_in(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _x()
        dist.all_reduce(x)
        if rank == 1:
            dist.broadcast(x, 0)
        dist.all_reduce(x)

    reduced = "all_reduce([4], torch.float32, sum)"
    assert _rows(kernbench, worker, 3) == [
        (0, reduced, 6, 2, 4_000_000),
        (1, "broadcast([4], torch.float32, src=0)", 5, 2, 4_000_000),
        (2, reduced, 6, 2, 4_000_000),
    ]


def test_a_rank_that_is_missing_has_its_last_call(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _x()
        if rank == 2:
            return
        dist.all_reduce(x)
        if rank == 0:
            dist.all_reduce(x)

    assert _rows(kernbench, worker, 3) == [
        (0, "all_reduce([4], torch.float32, sum)", 5, 1, 2_000_000),
        (1, "all_reduce([4], torch.float32, sum)", 5, 1, 2_000_000),
        (2, "", 4, None, None),
    ]


def test_messages_that_do_not_fit(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            dist.send(_x(), 1)
            dist.send(_x(), 1)
        else:
            dist.recv(_x(), 0)
            dist.recv(_x(8), 0)

    assert _rows(kernbench, worker, 2) == [
        (0, "send([4], torch.float32, to rank 1, tag 0)", 4, 2, 6_000_000),
        (1, "recv([8], torch.float32, from rank 0, tag 0)", 7, 2, 6_000_000),
    ]


def test_messages_in_a_circle(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _x()
        dist.recv(x, 1 - rank)
        x.tolist()

    assert _rows(kernbench, worker, 2) == [
        (rank, f"recv([4], torch.float32, from rank {1 - rank}, tag 0)", 3, 1, 2_000_000)
        for rank in range(2)
    ]


def test_a_message_that_nobody_sends(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            dist.recv(_x(), 0)

    assert _rows(kernbench, worker, 2, rank=1) == [
        (1, "recv([4], torch.float32, from rank 0, tag 0)", 3, 1, 2_000_000)
    ]


def test_a_call_that_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _x()
        dist.all_reduce(x)
        if rank == 1:
            dist.broadcast(x, 5)

    assert _rows(kernbench, worker, 2, rank=1) == [(1, "broadcast", 5, 2, 4_000_000)]


def test_ranks_that_are_refused_at_other_times_are_told_together(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for _ in range(rank):
            _x()
        dist.barrier(group="tp")

    assert relative(str(failure(kernbench, worker, 3)), worker) == (
        """ranks 0-2 failed
ranks 0-2: UnknownGroupError: barrier(group='tp'): expected a ProcessGroup or None
  at 0 ps to 4 us, at FILE+4: dist.barrier(group="tp")
replay: seed 0, schedule 0"""
    )


@pytest.mark.parametrize("name", ["size", "rank"])
@pytest.mark.parametrize("whole", [False, True], ids=["group", "WORLD"])
def test_c18_nothing_is_asked_of_a_destroyed_group(
    kernbench: Kernbench, name: str, whole: bool
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.group.WORLD if whole else dist.new_group([0, 1])
        assert getattr(group, name)() == (2 if name == "size" else rank)
        dist.destroy_process_group(group)
        assert group.name
        assert group.group_desc == "undefined"
        if rank == 1:
            getattr(group, name)()

    error = failure(kernbench, worker, 2).errors[1]
    assert isinstance(error, RuntimeError)
    label = "WORLD" if whole else "G1{0-1}"
    made = "is that of all ranks"
    if not whole:
        made = (
            "was made by rank 1 at FILE+2: "
            "group = dist.group.WORLD if whole else dist.new_group([0, 1])"
        )
    assert relative(str(error), worker) == (
        f"""[C18] rank 1 called {name} on group {label}, which it has destroyed
  call #1 of group {label} at 0 ps, at FILE+8: getattr(group, name)()
  destroyed at FILE+4: dist.destroy_process_group(group)
  group {label} {made}
  hint: ask before destroy_process_group()"""
    )


@pytest.mark.parametrize("wrong", ["x", 3.5, [0, 1], 7], ids=repr)
@pytest.mark.parametrize(
    "name",
    [
        "get_rank",
        "get_world_size",
        "get_backend",
        "get_process_group_ranks",
        "destroy_process_group",
        "barrier",
    ],
)
def test_what_is_no_group_is_refused_in_a_sentence(
    kernbench: Kernbench, name: str, wrong: Any
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            getattr(dist, name)(wrong)

    assert relative(str(failure(kernbench, worker, 2).errors[1]), worker) == (
        f"{name}(group={wrong!r}): expected a ProcessGroup or None\n"
        "  at 0 ps, at FILE+3: getattr(dist, name)(wrong)"
    )


@pytest.mark.parametrize("name", ["get_group_rank", "get_global_rank"])
@pytest.mark.parametrize("wrong", [2, -1])
def test_a_rank_that_a_group_does_not_have(kernbench: Kernbench, name: str, wrong: Any) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        getattr(dist, name)(dist.group.WORLD, wrong)

    text = relative(str(failure(kernbench, worker, 2).errors[0]), worker)
    kind = "Global" if name == "get_group_rank" else "Group"
    assert text.startswith(
        f"{kind} rank {wrong!r} is not part of group WORLD\n  at 0 ps, at FILE+2"
    )


def test_a_batch_of_what_is_no_group(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.batch_isend_irecv([dist.P2POp(dist.isend, _x(), 1 - rank, group=[0, 1])])

    assert relative(str(failure(kernbench, worker, 2).errors[0]), worker) == (
        """isend(group=[0, 1]): expected a ProcessGroup or None
  at 2 us, at FILE+2: dist.batch_isend_irecv([dist.P2POp(dist.isend, _x(), 1 - rank, group=[0, 1])])"""
    )


def test_a_report_ends_with_what_repeats_it(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        raise ValueError(rank)

    text = str(failure(kernbench, worker, 4, seed=7))
    assert text.endswith("\nreplay: seed 7, schedule 0")
    assert text.count("replay:") == 1
