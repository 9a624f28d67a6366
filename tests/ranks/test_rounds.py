"""Who stands in a report: ranks that were on their way, and where others were aborted."""
# ruff: noqa: E501 - texts as users see them

import pytest
from report_text import failure, relative, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench


def _ones(count: int = 4) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def test_ranks_that_are_some_nanoseconds_behind_stand_in_the_report(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones()
        dist.barrier()
        if rank == 2:
            return
        if rank < 2:
            for _ in range(3):
                x.sum().item()
        dist.all_reduce(x)
        x.tolist()

    found = {ranks: text.splitlines() for ranks, text in views(kernbench, worker, 4).items()}
    assert list(found) == [(0, 1, 3)]
    summary, waiting, missing, _ = found[0, 1, 3]
    assert summary.endswith("[C1] all_reduce #2 of group WORLD: ranks 0-1, 3 wait for rank 2")
    assert waiting.startswith("  waiting ranks 0-1, 3: all_reduce([4], torch.float32, sum) at ")
    assert waiting.endswith(" us, at FILE+9: dist.all_reduce(x)")
    assert " us to " in waiting  # the first and the last call
    assert missing.startswith("  missing rank 2 returned at FILE+5: return; its last collective")


def test_a_mismatch_waits_for_those_who_come_later(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones(8 if rank == 0 else 4)
        if rank >= 2:
            x.sum().item()
        dist.all_reduce(x)
        x.tolist()

    failed = failure(kernbench, worker, 4)
    assert sorted(failed.errors) == [0, 1, 2, 3]
    ((ranks, _, text),) = failed.alike()
    assert ranks == [0, 1, 2, 3]
    assert "collective #1 of group WORLD: ranks 0-3 differ in shape" in text


def test_a_mismatch_is_told_once_whoever_has_raised_it(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones()
        if rank % 2 == 0:
            dist.all_reduce(x)
        else:
            dist.broadcast(x, src=0)

    assert relative(str(failure(kernbench, worker, 3)), worker) == (
        """ranks 0-2 failed
ranks 0-2: CollectiveMismatchError: [C2] collective #1 of group WORLD: ranks 0-2 differ in collective
  ranks 0, 2: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x)
  rank 1: broadcast([4], torch.float32, src=0) at 2 us, at FILE+6: dist.broadcast(x, src=0)
  hint: every rank of a group calls the same collectives in the same order
replay: seed 0, schedule 0"""
    )


def test_ranks_that_go_on_for_ever_delay_no_report(kernbench: Kernbench) -> None:
    turns: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        busy, x = dist.new_group([2, 3]), _ones()
        if rank == 1:
            return
        while rank >= 2:
            dist.all_reduce(x, group=busy)
            x.tolist()
            turns.append(rank)
        dist.all_reduce(x)
        x.tolist()

    lines = views(kernbench, worker, 4)[0,].splitlines()
    assert lines[0].endswith("all_reduce #1 of group WORLD: rank 0 waits for rank 1")
    assert lines[3] == "  on the way: ranks 2-3, at FILE+7: x.tolist()"
    assert len(turns) < 40


def test_an_exception_during_the_round_hides_no_deadlock(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones()
        dist.barrier()
        if rank == 0:
            return
        if rank == 2:
            dist.recv(x, src=3)
            x.tolist()
            raise ValueError("no file")
        if rank == 3:
            x.sum().item()
            dist.send(x, dst=2)
        dist.all_reduce(x)
        x.tolist()

    failed = failure(kernbench, worker, 4)
    assert {rank: type(error).__name__ for rank, error in failed.errors.items()} == {
        1: "CollectiveMismatchError",
        2: "ValueError",
        3: "CollectiveMismatchError",
    }


def test_an_aborted_rank_is_shown_where_it_stood(kernbench: Kernbench) -> None:
    """Its `finally` waits again, at another line, after the abort."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones()
        if rank == 0:
            x.sum().item()
            raise ValueError("no file")
        try:
            dist.recv(x, src=0)
            x.tolist()
        finally:
            torch.cuda.synchronize()
            dist.barrier()

    lines = relative("\n".join(failure(kernbench, worker, 3).aborted_lines()), worker)
    assert lines == "ranks 1-2 aborted at 6 us, at FILE+8: x.tolist()"


def test_an_error_in_finally_tells_what_was_raised_before(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = _ones()
        try:
            if rank == 0:
                raise ValueError("no file")
            dist.all_reduce(x)
        finally:
            dist.barrier()

    text = relative(str(failure(kernbench, worker, 2)), worker)
    assert text.count("CollectiveMismatchError") == 1
    assert (
        'rank 0 was handling ValueError: no file, raised at FILE+5: raise ValueError("no file")'
        in text
    )


def test_crossing_tags_between_devices_are_told(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x, y = _ones(), _ones()
        if rank == 0:
            works = [dist.isend(x, 1, tag=1), dist.isend(y, 1, tag=2)]
            for work in works:
                work.wait()
        else:
            dist.recv(y, 0, tag=2)
            dist.recv(x, 0, tag=1)
        torch.cuda.synchronize()

    (error,) = {str(error.hint) for error in failure(kernbench, worker, 2).errors.values()}  # type: ignore[attr-defined]
    assert error == (
        "messages between two devices move in the order of the calls, whatever their tags: receive "
        "them in the order in which they are sent"
    )


@pytest.mark.parametrize("covered", [0, 3])
def test_m5_names_who_has_written_last(kernbench: Kernbench, covered: int) -> None:
    def worker(rank: int) -> None:
        x = torch.empty(8, device="cuda")
        if covered:
            x[:covered] = 1
        y = x + 1
        x.zero_()  # too late
        y.tolist()

    lines = views(kernbench, worker, 1)[0,].splitlines()
    assert lines[2] == '  allocated at FILE+1: x = torch.empty(8, device="cuda")'
    assert lines[3] == (
        "  last written by aten::fill_, issued at FILE+3: x[:covered] = 1"
        if covered
        else "  nothing was issued that writes to it"
    )


def test_m5_names_no_writer_that_was_issued_later(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x, z = torch.empty(8, device="cuda"), _ones()
        if rank == 1:
            z.sum().item()
        dist.all_reduce(z)  # the stream of rank 0 waits here, and its host goes on
        y = x + 1
        x.zero_()
        y.tolist()

    lines = views(kernbench, worker, 2)[0,].splitlines()
    assert lines[3].startswith("  aten::add was issued at")
